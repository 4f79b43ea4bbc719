#include "targets/compile_options.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace flambeau::targets {
namespace {

bool is_option_name(std::string_view name) {
  constexpr std::string_view kPrefix = "xla_";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

pjrt::CompileFlags::mapped_type value_of(std::string_view text) {
  int64_t integer = 0;
  double real = 0;
  if (text == "true" || text == "false") return text == "true";
  if (parse_whole(text, integer)) return integer;
  if (parse_whole(text, real) && std::isfinite(real)) return real;
  return std::string(text);
}

}  // namespace

pjrt::CompileFlags parse_compile_options(std::string_view text) {
  pjrt::CompileFlags flags;
  if (trimmed(text).empty()) return flags;
  for (const std::string& part : split(text, ',')) {
    const std::string_view entry = trimmed(part);
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view name = trimmed(entry.substr(0, equals)), value = trimmed(entry.substr(std::min(equals + 1, entry.size())));
    if (!is_option_name(name) || value.empty()) {
      raise<InvalidArgument>("expected options of XLA such as xla_tpu_scoped_vmem_limit_kib=65536, got '{}'; write name=value, the name "
                             "in small letters and beginning with xla_", entry);
    }
    if (!flags.emplace(name, value_of(value)).second)
      raise<InvalidArgument>("expected each option once, got {} twice; remove one", name);
  }
  return flags;
}

namespace {

constexpr std::string_view kV5e = "TPU v5 lite", kV5p = "TPU v5", kV6e = "TPU v6 lite";

// What the compiler of libtpu 0.0.52 does by itself is left to it: scheduling for hidden latency, gathers fused with matrix products
// on v5e, SparseCore collectives on v7x, the share of VMEM. The figures are of its first phase for Llama-3 8B, sharded over all
// devices of v5e:16x16, v5:4x4x4 and v6e:16x16, 2,048 tokens each.
//
// By itself it sums the gradients of a weight over a whole slice with an all-reduce and keeps a shard of the result, because its
// all-reduce, unlike its reduce-scatter, may use all dimensions of the torus.
const std::vector<PreferredOption>& table() {
  static const std::vector<PreferredOption> rows = {
      {kV5e, "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter", true,
       "gradients are scattered in two dimensions, by the TensorCore in spite of the name: half the bytes of 3 of a layer's 4 sums, and "
       "686 MiB less of 12,891 with 8,192 tokens on v5e:4x4"},

      {kV5p, "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter", true,
       "with the next two, gradients of layers are scattered, half the bytes, on the SparseCores while matrix products run: 4 of 4, 31 "
       "MiB more of 7,467"},
      {kV5p, "xla_tpu_enable_sparse_core_reduce_scatter_v2", true, "the SparseCores' older reduce-scatter is gone"},
      {kV5p, "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter", true, "else those over a whole slice stay all-reduces"},
      {kV5p, "xla_tpu_enable_sparse_core_collective_offload_all_gather", true,
       "with the next two, weights are gathered on the SparseCores while others are used, none were asynchronous: 12 of 12, 114 MiB more"},
      {kV5p, "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather", true, "those over two dimensions of the torus"},
      {kV5p, "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather", true, "those over three, a whole slice"},

      {kV6e, "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter", true,
       "as on v5p, and in both dimensions of the torus at once: 4 of a layer's 4 sums of gradients"},
      {kV6e, "xla_tpu_enable_sparse_core_reduce_scatter_v2", true, "as on v5p"},
      {kV6e, "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter", true, "as on v5p"},
      {kV6e, "xla_tpu_enable_sparse_core_collective_offload_all_gather", true,
       "as on v5p: 12 of 12 gathers, none were asynchronous, since fusing them with products is for v5e alone"},
      {kV6e, "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather", true, "those over a whole slice"},
  };
  return rows;
}

}  // namespace

std::span<const PreferredOption> preferred_options() { return table(); }

pjrt::CompileFlags preferred_options(const Target& target) {
  pjrt::CompileFlags flags;
  if (target.platform != "tpu") return flags;
  for (const PreferredOption& option : preferred_options())
    if (option.generation == target.generation) flags.emplace(option.name, option.value);
  return flags;
}

}  // namespace flambeau::targets
