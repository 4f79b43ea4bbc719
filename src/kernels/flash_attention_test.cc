// Finding, making and keeping kernels, with a shell script in the place of the Python that has JAX.
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "kernels/registry.h"

namespace flambeau::kernels {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

constexpr int kFormat = 2;  // of what the script prints

struct Shape {
  int64_t batch = 1, heads = 2, kv_heads = 1, length = 256, head_dim = 128, block_q = 0;
};

Answer find_kernel(const Shape& s, DType dtype = DType::BF16) {
  const hlo::Type query{dtype, {s.batch, s.heads, s.length, s.head_dim}}, key{dtype, {s.batch, s.kv_heads, s.length, s.head_dim}};
  return find({.name = "flash_attention", .operands = {query, key, key, {DType::S32, {s.batch, s.length}}}, .options = {s.block_q, 0}},
              targets::Target::ahead_of_time(targets::chip_of(targets::Generation::V5e), 8));
}

// What a helper would write for a shape.
json kernels_of(const Shape& s) {
  const json heads{s.batch, s.heads, s.length, s.head_dim}, kv_heads{s.batch, s.kv_heads, s.length, s.head_dim};
  const auto operand = [](const char* input, const json& shape, json dims) {
    return json{{"input", input}, {"shape", shape}, {"type", "bf16"}, {"dims", std::move(dims)}};
  };
  const auto result = [](const json& shape, const char* type, const char* name) { return json{{"shape", shape}, {"type", type}, {"name", name}}; };
  json operands{operand("query", heads, {0, 1, 2, 3}), operand("key", kv_heads, {0, 1, 2, 3}), operand("value", kv_heads, {0, 1, 2, 3}),
                {{"constant", {{"shape", {2, 2}}, {"values", {1, -1, 0, 3}}}}, {"shape", {2, 2}}, {"type", "i8"}, {"dims", {0, 1}}},
                {{"constant", {{"shape", {s.length}}}}, {"shape", {s.length, 128}}, {"type", "i32"}, {"dims", {0}}},
                {{"input", "documents"}, {"shape", {s.batch, 8, s.length}}, {"type", "i32"}, {"dims", {0, 2}}}};
  const auto call = [&](json results) {
    return json{{"target", "tpu_custom_call"}, {"config", "{}"}, {"operands", operands}, {"results", std::move(results)}};
  };
  return {{"format", kFormat},
          {"versions", "jax 1, jaxlib 2"},
          {"forward", call(json::array({result(heads, "bf16", "output"), result({s.batch, s.heads, s.length, 128}, "f32", "logsumexp")}))},
          {"dq", call(json::array({result(heads, "bf16", "dq")}))},
          {"dkv", call(json::array({result(kv_heads, "bf16", "dk"), result(kv_heads, "bf16", "dv")}))}};
}

// One folder for all tests: what the helper is and which versions it has is asked once a process.
class FlashAttention : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder() / "cache");
    write_file_atomically(folder() / "python",
                          "#!/bin/sh\n[ \"$3\" = --versions ] && { echo jax 1, jaxlib 2; exit 0; }\nexec sh " + (folder() / "answer").string() + "\n");
    fs::permissions(folder() / "python", fs::perms::owner_all);
    setenv("FLAMBEAU_PYTHON", (folder() / "python").c_str(), 1);
    setenv("FLAMBEAU_CACHE", (folder() / "cache").c_str(), 1);
    answer("echo no kernel for that >&2; exit 3");
  }
  static const fs::path& folder() {
    static const fs::path path = [] {
      std::string name = (fs::temp_directory_path() / "flash_attention_XXXXXX").string();
      return fs::path(mkdtemp(name.data()));
    }();
    return path;
  }
  static void TearDownTestSuite() {
    fs::remove_all(folder());
    unsetenv("FLAMBEAU_PYTHON");
    unsetenv("FLAMBEAU_CACHE");
  }
  void answer(const std::string& script) { write_file_atomically(folder() / "answer", script + "\n"); }
  void give(const json& kernels) {
    write_file_atomically(folder() / "kernels", kernels.dump());
    answer("cat " + (folder() / "kernels").string());
  }
  // Each question of a process is answered once, so that every case needs a shape of its own.
  static Shape fresh() {
    static int64_t batch = 1;
    return {.batch = ++batch};
  }
  static fs::path cached(const Shape& s) {
    return folder() / "cache" / "tpu_attention" /
           fmt::format("b{}_h2_kv1_s256_e128_bfloat16_documents_q256_kv256_jax_1__jaxlib_2_{}.json", s.batch, kFormat);
  }
};

TEST_F(FlashAttention, AreMadeAndKept) {
  const Shape shape = fresh();
  give(kernels_of(shape));
  const Answer made = find_kernel(shape);
  ASSERT_NE(made.calls, nullptr) << made.why_not;
  EXPECT_EQ(json::parse(made.calls->at("dq")), kernels_of(shape)["dq"]);
  EXPECT_EQ(json::parse(read_file(cached(shape))), kernels_of(shape));
  answer("exit 3");
  EXPECT_EQ(find_kernel(shape).calls, made.calls);
}

TEST_F(FlashAttention, AreTakenFromTheCache) {
  const Shape shape = fresh();
  fs::create_directories(cached(shape).parent_path());
  write_file_atomically(cached(shape), kernels_of(shape).dump());
  const Answer found = find_kernel(shape);
  EXPECT_NE(found.calls, nullptr) << found.why_not;
}

TEST_F(FlashAttention, AreMadeAnewWhereTheCacheIsWrong) {
  const auto change = [](auto edit) {
    return [edit](json k) {
      edit(k);
      return k.dump();
    };
  };
  const std::function<std::string(json)> faults[] = {
      [](const json&) { return std::string(); },
      [](const json& k) { return k.dump().substr(0, 500); },
      [](const json&) { return std::string(100000, '['); },
      [](const json& k) {  // a hundred thousand levels that are well formed
        const std::string text = k.dump(), open = std::string(100000, '['), closed = std::string(100000, ']');
        return text.substr(0, text.size() - 1) + ",\"more\":" + open + closed + "}";
      },
      change([](json& k) { k["versions"] = "jax 0"; }),
      change([](json& k) { k["format"] = kFormat - 1; }),
      change([](json& k) { k.erase("dkv"); }),
      change([](json& k) { k["forward"]["target"] = "anything"; }),
      change([](json& k) { k["forward"]["operands"][0]["input"] = "gradient"; }),
      change([](json& k) { k["forward"]["operands"][0]["shape"] = {1, 1, 256, 128}; }),
      change([](json& k) { k["forward"]["operands"][5]["dims"] = {0, 7}; }),
      change([](json& k) { k["forward"]["operands"][3]["constant"]["values"] = {1, 2, 3}; }),
      change([](json& k) { k["forward"]["operands"][3]["constant"]["values"] = {1, 2, 3, 4000}; }),
      change([](json& k) { k["forward"]["operands"][3]["constant"]["shape"] = {int64_t{1} << 40, int64_t{1} << 40}; }),
      change([](json& k) { k["forward"]["operands"][3]["type"] = "i999"; }),
      change([](json& k) { k["forward"]["results"][0]["shape"] = {1, 2, 256, 127}; }),
      change([](json& k) { k["forward"]["results"][1].erase("name"); }),
      change([](json& k) { k["dq"]["results"] = 7; }),
  };
  for (size_t i = 0; i < std::size(faults); ++i) {
    const Shape shape = fresh();
    fs::create_directories(cached(shape).parent_path());
    write_file_atomically(cached(shape), faults[i](kernels_of(shape)));
    give(kernels_of(shape));
    const Answer made = find_kernel(shape);
    EXPECT_NE(made.calls, nullptr) << i << ": " << made.why_not;
    EXPECT_EQ(json::parse(read_file(cached(shape))), kernels_of(shape)) << i;
  }
}

TEST_F(FlashAttention, SayWhyThereAreNone) {
  const auto why_of = [](const Shape& shape, DType dtype = DType::BF16) {
    const Answer answer = find_kernel(shape, dtype);
    EXPECT_EQ(answer.calls, nullptr);
    return answer.why_not;
  };
  EXPECT_THAT(why_of(fresh()), HasSubstr("jax 1, jaxlib 2 made no kernel (no kernel for that)"));
  give(json{{"format", kFormat}});
  EXPECT_THAT(why_of(fresh()), HasSubstr("made a kernel that does not fit"));
  Shape shape = fresh();
  shape.head_dim = 64;
  EXPECT_THAT(why_of(shape), HasSubstr("multiples of 128, and these are 256 tokens and 64 wide"));
  shape = fresh();
  shape.block_q = 100;
  EXPECT_THAT(why_of(shape), HasSubstr("100 does not"));
  EXPECT_THAT(why_of(fresh(), DType::F16), HasSubstr("bfloat16 and float32"));
}

}  // namespace
}  // namespace flambeau::kernels
