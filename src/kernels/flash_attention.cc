// Causal attention on TPUs: the kernels of JAX's Splash attention, forward ("forward") and backward ("dq", "dkv").
//
// Operands: query [B, H, S, E], scaled already; key and value [B, K, S, E]; documents [B, S] int32 or none. Options: the lengths of a block
// of queries and of a block of keys; 0: chosen. The twin is attention in blocks, forward and backward.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "flambeau_tpu_attention.h"
#include "kernels/entries.h"
#include "kernels/python_child.h"
#include "ops/kernel_call.h"

namespace flambeau::kernels {
namespace {

using nlohmann::json;

constexpr int64_t kLanes = 128, kLongestBlock = 512;
constexpr int kFormat = 2;  // of what the script prints; it has it too
constexpr Tool kTool{.name = "tpu_attention", .script = kTpuAttentionScript, .format = kFormat};

struct Shape {
  int64_t batch, heads, kv_heads, length, head_dim;
  DType dtype;
  bool documents;
  int64_t block_q, block_kv;
};

Shape shape_of(const Request& request) {
  FLAMBEAU_CHECK((request.operands.size() == 3 || request.operands.size() == 4) && request.options.size() == 2,
                 "attention has a query, a key, a value, perhaps documents, and two lengths of blocks");
  const hlo::Dims &query = request.operands[0].dims, &key = request.operands[1].dims;
  FLAMBEAU_CHECK(query.size() == 4 && key.size() == 4, "queries and keys of attention have four dimensions");
  return {.batch = query[0], .heads = query[1], .kv_heads = key[1], .length = query[2], .head_dim = query[3],
          .dtype = request.operands[0].dtype, .documents = request.operands.size() == 4, .block_q = request.options[0],
          .block_kv = request.options[1]};
}

// Chooses lengths of blocks that are not given. Why there is no kernel; empty where there is one.
std::string fit(Shape& s) {
  if (s.dtype != DType::BF16 && s.dtype != DType::F32) return "the kernels are for bfloat16 and float32";
  if (s.length % kLanes != 0 || s.head_dim % kLanes != 0) {
    return fmt::format("a kernel wants rows and heads of multiples of {}, and these are {} tokens and {} wide", kLanes, s.length, s.head_dim);
  }
  for (int64_t* block : {&s.block_q, &s.block_kv}) {
    if (*block == 0)
      for (*block = kLongestBlock; s.length % *block != 0;) *block /= 2;
    if (*block % kLanes != 0 || s.length % *block != 0)
      return fmt::format("a kernel wants blocks of multiples of {} that divide a row, and {} does not", kLanes, *block);
  }
  return {};
}

std::vector<std::string> arguments_of(const Shape& s) {
  std::vector<std::string> arguments;
  const auto add = [&](const char* name, auto value) {
    arguments.emplace_back(name);
    arguments.push_back(fmt::format("{}", value));
  };
  add("--batch", s.batch);
  add("--heads", s.heads);
  add("--kv-heads", s.kv_heads);
  add("--length", s.length);
  add("--head-dim", s.head_dim);
  add("--dtype", torch_name(s.dtype));
  add("--block-q", s.block_q);
  add("--block-kv", s.block_kv);
  if (s.documents) arguments.emplace_back("--documents");
  return arguments;
}

std::string file_of(const Shape& s) {
  return fmt::format("b{}_h{}_kv{}_s{}_e{}_{}{}_q{}_kv{}", s.batch, s.heads, s.kv_heads, s.length, s.head_dim, torch_name(s.dtype),
                     s.documents ? "_documents" : "", s.block_q, s.block_kv);
}

const ops::Row& row_named(std::string_view name) {
  for (const ops::Row& row : ops::kernel_rows())
    if (row.name == name) return row;
  FLAMBEAU_CHECK(false, "flash attention has its rows");
}

// Builds what the calls would be used for, which checks every type.
void check(const Calls& calls, const Shape& s) {
  hlo::Graph graph;
  hlo::Builder b(graph);
  const auto tensor = [&](DType dtype, hlo::Dims dims) { return ops::Operand{graph.add_parameter({dtype, std::move(dims)})}; };
  const hlo::Dims heads{s.batch, s.heads, s.length, s.head_dim}, kv_heads{s.batch, s.kv_heads, s.length, s.head_dim};
  const ops::Operand q = tensor(s.dtype, heads), k = tensor(s.dtype, kv_heads), v = tensor(s.dtype, kv_heads);
  const ops::Argument documents =
      s.documents ? ops::Argument(tensor(DType::S32, {s.batch, s.length})) : ops::Argument(std::monostate{});
  const std::string &dq = calls.at("dq"), &dkv = calls.at("dkv");
  const std::vector<ops::Argument> forward = {q, k, v, documents, calls.at("forward"), dq, dkv};
  const auto out = row_named("flambeau::flash_attention").lower(b, forward, nullptr);
  const std::vector<ops::Argument> backward = {tensor(s.dtype, heads), q, k, v, documents, ops::Operand{out[0]}, ops::Operand{out[1]}, dq, dkv};
  row_named("flambeau::flash_attention_backward").lower(b, backward, nullptr);
}

Answer find_flash_attention(const Request& request) {
  Shape shape = shape_of(request);
  if (std::string why_not = fit(shape); !why_not.empty()) return {nullptr, std::move(why_not)};
  return lower_in_child(kTool, file_of(shape), arguments_of(shape), [&](const json& content) {
    Calls calls;
    for (const char* name : {"forward", "dq", "dkv"}) calls[name] = content.at(name).dump();
    check(calls, shape);
    return calls;
  });
}

}  // namespace

Entry flash_attention_entry() {
  return {.name = "flash_attention", .form = targets::KernelForm::Mosaic, .twin = "flambeau::causal_attention", .find = &find_flash_attention};
}

}  // namespace flambeau::kernels
