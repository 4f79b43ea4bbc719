#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"

namespace flambeau::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string name = (fs::temp_directory_path() / "flambeau-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~CheckpointTest() override { fs::remove_all(folder_); }

  fs::path write_raw(const std::string& header, const std::string& data) {
    const uint64_t size = header.size();
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
    write_file_atomically(folder_ / "raw", bytes + header + data);
    return folder_ / "raw";
  }

  State state(int64_t step) {
    return {.step = step, .tokens_seen = 10 * step, .data_cursor = "{}", .model = "m",
            .parameters = {{"w", at::full({2, 3}, static_cast<double>(step))}}, .optimizer = {{"w.exp_avg", at::ones({2, 3})}}};
  }

  fs::path folder_;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST_F(CheckpointTest, TensorsComeBackBitForBit) {
  const at::Tensor strided = at::arange(6, at::kFloat).view({2, 3}).t();
  const NamedTensors tensors = {{"f32", strided},
                                {"bf16", at::randn({5}).to(at::kBFloat16)},
                                {"i64", at::tensor({1L << 62, -1L}, at::kLong)},
                                {"bool", at::tensor({1, 0, 1}, at::kLong).to(at::kBool)},
                                {"scalar", at::scalar_tensor(2.5)},
                                {"empty", at::empty({0, 4})}};
  const uint64_t checksum = write_safetensors(folder_ / "a", tensors, {{"format", "pt"}});
  EXPECT_EQ(checksum, SafetensorsReader(folder_ / "a").read_with_checksum().second);
  const SafetensorsReader reader(folder_ / "a");
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor got = reader.read(name);
    EXPECT_EQ(got.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(got, tensor)) << name;
  }
  EXPECT_THROW(reader.read("other"), InvalidArgument);
}

TEST_F(CheckpointTest, DamagedSafetensorsAreRefusedWithTheirPath) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(SafetensorsReader(write_raw(good, std::string(8, '\0'))).tensors().size(), 1U);
  const struct {
    const char* header;
    size_t data;
    const char* message;
  } cases[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "outside"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9, "expected 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "does not fit"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "impossible shape"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "impossible shape"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, "impossible shape"},
      {R"({"a":{"dtype":"F32","shape":[0,4611686018427387904],"data_offsets":[0,0]}})", 0, "impossible shape"},
      {R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8, "dtype"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "outside"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "malformed"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", 8, "lacks"},
      {R"({"a":5})", 0, "lacks"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6, "overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})", 6, "gap"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "twice"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__"},
      {R"([1,2])", 0, "not an object"},
      {R"({"a":{"dtype")", 0, "not JSON"},
      {"\xff\xfe", 0, "not JSON"},
      {R"({"a":[[[[[[1]]]]]]})", 0, "deeply"},
  };
  for (const auto& c : cases) {
    const fs::path path = write_raw(c.header, std::string(c.data, '\0'));
    const std::string message = message_of([&] { SafetensorsReader{path}; });
    EXPECT_THAT(message, testing::AllOf(testing::HasSubstr(c.message), testing::HasSubstr(path.string()))) << c.header;
  }
}

TEST_F(CheckpointTest, EveryTruncationOfAFileIsRefused) {
  write_safetensors(folder_ / "a", {{"w", at::ones({4})}, {"v", at::ones({3})}});
  const std::string whole = read_file(folder_ / "a");
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file_atomically(folder_ / "cut", whole.substr(0, size));
    EXPECT_THROW(SafetensorsReader(folder_ / "cut"), InvalidArgument) << size;
  }
}

TEST_F(CheckpointTest, EveryFlippedByteOfAHeaderIsRefusedOrReadable) {
  write_safetensors(folder_ / "a", {{"w", at::ones({4})}, {"v", at::ones({3})}});
  const std::string whole = read_file(folder_ / "a");
  for (size_t i = 0; i < whole.size() - 28; ++i) {
    for (const char flip : {'\x01', '\x20', '\x80'}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      write_file_atomically(folder_ / "flipped", bytes);
      message_of([&] { SafetensorsReader(folder_ / "flipped").read_all(); });  // an Error or nothing, and no crash
    }
  }
}

TEST_F(CheckpointTest, SavesLoadsAndKeepsTheNewest) {
  const Folder checkpoints(folder_ / "c");
  for (int64_t step : {5, 10, 15, 20}) checkpoints.save(state(step), 3);
  EXPECT_EQ(checkpoints.steps(), (std::vector<int64_t>{10, 15, 20}));
  const State loaded = load(checkpoints.step_path(15));
  EXPECT_EQ(loaded.step, 15);
  EXPECT_EQ(loaded.tokens_seen, 150);
  EXPECT_TRUE(at::equal(loaded.parameters.at(0).second, at::full({2, 3}, 15.0)));
  EXPECT_EQ(loaded.optimizer.at(0).first, "w.exp_avg");
}

TEST_F(CheckpointTest, ReadsTheFirstFormat) {
  const Folder checkpoints(folder_ / "c");
  State written = state(5);
  written.optimizer_kind = "{}";
  written.went_back_to = 3;
  checkpoints.save(written, 0);
  EXPECT_EQ(load(checkpoints.step_path(5)).optimizer_kind, "{}");
  EXPECT_EQ(went_back_to(checkpoints.step_path(5)), 3);
  const fs::path file = checkpoints.step_path(5) / "train_state.json";
  for (const int format : {1, 3}) {
    nlohmann::json fields = nlohmann::json::parse(read_file(file)).at("state");
    fields["format"] = format;
    fields.erase("optimizer_kind");
    fields.erase("went_back_to");
    write_file_atomically(file, nlohmann::json{{"state", fields}, {"xxh3", fmt::format("{:016x}", hash_string(fields.dump()))}}.dump());
    if (format == 3) {
      EXPECT_THAT(message_of([&] { load(checkpoints.step_path(5)); }), testing::HasSubstr("another version"));
      continue;
    }
    const State loaded = load(checkpoints.step_path(5));
    EXPECT_EQ(loaded.step, 5);
    EXPECT_EQ(loaded.optimizer_kind, "");
    EXPECT_EQ(went_back_to(checkpoints.step_path(5)), -1);
  }
}

TEST_F(CheckpointTest, GoingBackSetsLaterStepsAside) {
  const Folder checkpoints(folder_ / "c");
  for (int round = 0; round < 2; ++round) {
    for (int64_t step : {5, 10, 15}) checkpoints.save(state(step), 0);
    EXPECT_EQ(checkpoints.abandon_after(5).size(), 2U);
    EXPECT_EQ(checkpoints.steps(), (std::vector<int64_t>{5}));
  }
  for (const char* name : {"abandoned-step-10", "abandoned-step-15", "abandoned-step-10.2", "abandoned-step-15.2"}) {
    EXPECT_NO_THROW(load(folder_ / "c" / name)) << name;
  }
}

TEST_F(CheckpointTest, NeverDeletesTheStepJustWritten) {
  const Folder checkpoints(folder_ / "c");
  for (int64_t step : {10, 15, 5}) checkpoints.save(state(step), 2);
  EXPECT_EQ(checkpoints.steps().front(), 5);
}

TEST_F(CheckpointTest, CleansUpWhatKilledRunsLeft) {
  fs::create_directories(folder_ / "c" / ".tmp-mine");
  fs::create_directories(folder_ / "c" / ".tmp-step-5");
  fs::create_directories(folder_ / "c" / ".deleted-step-1");
  write_file_atomically(folder_ / "c" / ".tmp-step-5" / "model.safetensors", "half");
  const Folder checkpoints(folder_ / "c");
  EXPECT_TRUE(checkpoints.steps().empty());
  EXPECT_FALSE(fs::exists(folder_ / "c" / ".tmp-step-5"));
  EXPECT_FALSE(fs::exists(folder_ / "c" / ".deleted-step-1"));
  EXPECT_TRUE(fs::exists(folder_ / "c" / ".tmp-mine"));  // not one of ours
}

TEST_F(CheckpointTest, OneRunAtATime) {
  const Folder checkpoints(folder_ / "c");
  EXPECT_THAT(message_of([&] { Folder second(folder_ / "c"); }), testing::HasSubstr("another run"));
}

TEST_F(CheckpointTest, DamageIsNamed) {
  const struct {
    const char* file;
    std::function<void(const fs::path&)> damage;
    const char* message;
  } cases[] = {
      {"model.safetensors", [](const fs::path& p) { fs::resize_file(p, fs::file_size(p) - 1); }, "bytes"},
      {"model.safetensors", [](const fs::path& p) { fs::remove(p); }, "missing"},
      {"optimizer.safetensors",
       [](const fs::path& p) {
         std::string bytes = read_file(p);
         bytes.back() = static_cast<char>(bytes.back() ^ 1);
         write_file_atomically(p, bytes);
       },
       "checksum"},
      {"train_state.json", [](const fs::path& p) { write_file_atomically(p, "{}"); }, "JSON"},
      {"train_state.json",
       [](const fs::path& p) {
         std::string text = read_file(p);
         text.replace(text.find("\"step\": 5"), 9, "\"step\": 6");
         write_file_atomically(p, text);
       },
       "checksum"},
      {"train_state.json", [](const fs::path& p) { write_file_atomically(p, std::string(1 << 20, '[')); }, "nested"},
      {"train_state.json", [](const fs::path& p) { fs::remove(p); }, "not a checkpoint"},
  };
  for (const auto& c : cases) {
    fs::remove_all(folder_ / "c");
    const Folder checkpoints(folder_ / "c");
    checkpoints.save(state(5), 0);
    c.damage(checkpoints.step_path(5) / c.file);
    const std::string message = message_of([&] { load(checkpoints.step_path(5)); });
    EXPECT_THAT(message, testing::AllOf(testing::HasSubstr(c.message), testing::HasSubstr(c.file)));
  }
}

// Whatever the moment of a kill, the steps that are there can be loaded.
TEST_F(CheckpointTest, KilledWhileSavingNothingIsBroken) {
  for (int delay_us : {200, 1000, 3000, 6000, 12000, 25000}) {
    fs::remove_all(folder_ / "c");
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Folder checkpoints(folder_ / "c");
      for (int64_t step = 1;; ++step) checkpoints.save(state(step), 2);
    }
    usleep(static_cast<useconds_t>(delay_us));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Folder checkpoints(folder_ / "c");
    for (const int64_t step : checkpoints.steps()) EXPECT_EQ(load(checkpoints.step_path(step)).step, step);
  }
}

}  // namespace
}  // namespace flambeau::checkpoint
