// The sizes of the dense Qwen3 family.
#include "models/qwen3/qwen3.h"

namespace flambeau::models {
namespace {

Flavor flavor(const char* name, DecoderConfig sizes) {
  sizes.head_dim = 128;
  sizes.qk_norm = true;
  sizes.norm_epsilon = 1e-6;
  sizes.rope = {.theta = 1e6};
  sizes.max_context = 40960;
  if (sizes.vocab_size == 0) sizes.vocab_size = 151936;
  return {name, sizes};
}

const std::vector<Flavor>& all_flavors() {
  static const std::vector<Flavor> all = {
      flavor("debug", {.layers = 8, .dim = 256, .heads = 16, .kv_heads = 8, .ffn_dim = 3072, .vocab_size = 2048, .tied = true}),
      flavor("0.6B", {.layers = 28, .dim = 1024, .heads = 16, .kv_heads = 8, .ffn_dim = 3072, .tied = true}),
      flavor("1.7B", {.layers = 28, .dim = 2048, .heads = 16, .kv_heads = 8, .ffn_dim = 6144, .tied = true}),
      flavor("4B", {.layers = 36, .dim = 2560, .heads = 32, .kv_heads = 8, .ffn_dim = 9728, .tied = true}),
      flavor("8B", {.layers = 36, .dim = 4096, .heads = 32, .kv_heads = 8, .ffn_dim = 12288}),
      flavor("14B", {.layers = 40, .dim = 5120, .heads = 40, .kv_heads = 8, .ffn_dim = 17408}),
      flavor("32B", {.layers = 64, .dim = 5120, .heads = 64, .kv_heads = 8, .ffn_dim = 25600}),
  };
  return all;
}

}  // namespace

Qwen3::Qwen3(const std::string& flavor, const Overrides& overrides)
    : Decoder("qwen3", choose_flavor(all_flavors(), flavor, overrides)) {}

std::vector<std::string> Qwen3::flavors() { return flavor_names(all_flavors()); }

}  // namespace flambeau::models
