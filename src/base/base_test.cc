#include <chrono>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <unistd.h>

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/process.h"
#include "base/text.h"

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

TEST(Text, IsTakenApart) {
  const struct {
    const char* text;
    std::vector<std::string> parts;
  } kCases[] = {{"", {""}}, {"a", {"a"}}, {"a,b", {"a", "b"}}, {",a,", {"", "a", ""}}};
  for (const auto& c : kCases) EXPECT_EQ(split(c.text, ','), c.parts) << c.text;
  EXPECT_EQ(trimmed(" \ta b\n"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
  int64_t integer = 0;
  double real = 0;
  EXPECT_TRUE(parse_whole("-12", integer));
  EXPECT_EQ(integer, -12);
  EXPECT_TRUE(parse_whole("1e3", real));
  EXPECT_EQ(real, 1000);
  for (const char* text : {"", "12 ", " 12", "12x", "99999999999999999999"}) EXPECT_FALSE(parse_whole(text, integer)) << text;
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

TEST(Process, IsRunToItsEnd) {
  const auto shell = [](const char* script, int seconds = 60) { return run_process({"sh", "-c", script}, std::chrono::seconds(seconds)); };
  const ProcessResult spoke = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(std::tuple(spoke.exit_code, spoke.timed_out, spoke.output, spoke.error), std::tuple(3, false, "out\n", "err\n"));
  EXPECT_EQ(shell("kill -15 $$").exit_code, 128 + 15);
  const ProcessResult slow = shell("echo begun; exec sleep 60", 1);
  EXPECT_EQ(std::tuple(slow.exit_code, slow.timed_out, slow.output), std::tuple(128 + 9, true, "begun\n"));
  EXPECT_THROW(run_process({"/no/such/program"}, std::chrono::seconds(1)), IoError);
}

}  // namespace
}  // namespace flambeau
