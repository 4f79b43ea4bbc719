// The sizes of the Llama 3 family.
#include "models/llama3/llama3.h"

namespace flambeau::models {
namespace {

// `rope_factor`: 8 in Llama 3.1, 32 in Llama 3.2, which has the small ones.
Flavor flavor(const char* name, DecoderConfig sizes, double rope_factor = 8) {
  sizes.rope = {.theta = 500000, .factor = rope_factor, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_context = 8192};
  sizes.max_context = 131072;
  if (sizes.vocab_size == 0) sizes.vocab_size = 128256;
  return {name, sizes};
}

const std::vector<Flavor>& all_flavors() {
  static const std::vector<Flavor> all = {
      flavor("debug", {.layers = 6, .dim = 256, .heads = 8, .kv_heads = 4, .ffn_dim = 768, .vocab_size = 320}),
      flavor("1B", {.layers = 16, .dim = 2048, .heads = 32, .kv_heads = 8, .ffn_dim = 8192, .tied = true}, 32),
      flavor("3B", {.layers = 28, .dim = 3072, .heads = 24, .kv_heads = 8, .ffn_dim = 8192, .tied = true}, 32),
      flavor("8B", {.layers = 32, .dim = 4096, .heads = 32, .kv_heads = 8, .ffn_dim = 14336}),
      flavor("70B", {.layers = 80, .dim = 8192, .heads = 64, .kv_heads = 8, .ffn_dim = 28672}),
      flavor("405B", {.layers = 126, .dim = 16384, .heads = 128, .kv_heads = 8, .ffn_dim = 53248}),
  };
  return all;
}

}  // namespace

Llama3::Llama3(const std::string& flavor, const Overrides& overrides)
    : Decoder("llama3", choose_flavor(all_flavors(), flavor, overrides)) {}

std::vector<std::string> Llama3::flavors() { return flavor_names(all_flavors()); }

}  // namespace flambeau::models
