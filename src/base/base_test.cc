#include <filesystem>

#include <unistd.h>

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"

namespace flambeau {
namespace {

TEST(DType, NamesGoBothWays) {
  for (int i = 0; i < kDTypeCount; ++i) {
    auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_torch_name(torch_name(dtype)), dtype);
    EXPECT_GT(byte_size(dtype), 0);
  }
  EXPECT_EQ(parse_torch_name("float33"), std::nullopt);
}

TEST(Hash, LengthsCount) {
  int64_t data[] = {1, 2, 3};
  std::span<const int64_t> all(data);
  EXPECT_NE(Hasher().add(all.first(2)).add(all.last(1)).value(), Hasher().add(all.first(1)).add(all.last(2)).value());
}

TEST(Hash, ChecksumStreams) {
  Checksum parts;
  parts.update("abc", 3);
  parts.update("def", 3);
  EXPECT_EQ(parts.digest(), hash_bytes("abcdef", 6));
}

TEST(Files, AtomicWriteReplacesAndLeavesNothingBehind) {
  auto folder = std::filesystem::temp_directory_path() / ("flambeau_base_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "a", "one");
  write_file_atomically(folder / "a", "two");
  EXPECT_EQ(read_file(folder / "a"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  EXPECT_THROW(read_file(folder / "a", 2), IoError);
  EXPECT_THROW(read_file(folder), IoError);
  EXPECT_THROW(read_file(folder / "missing"), IoError);
  EXPECT_THROW(write_file_atomically(folder / "missing" / "a", ""), IoError);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace flambeau
