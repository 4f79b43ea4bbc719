// The sizes of the Llama 3 family.
#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"
#include "models/llama3/llama3.h"

namespace flambeau::models {
namespace {

struct Flavor {
  const char* name;
  Llama3Config config;
};

const std::vector<Flavor>& flavors() {
  static const std::vector<Flavor> all = {
      {"debug", {.layers = 6, .dim = 256, .heads = 8, .kv_heads = 4, .ffn_dim = 768, .vocab_size = 320}},
      {"1B", {.layers = 16, .dim = 2048, .heads = 32, .kv_heads = 8, .ffn_dim = 8192, .vocab_size = 128256, .tied = true}},
      {"3B", {.layers = 28, .dim = 3072, .heads = 24, .kv_heads = 8, .ffn_dim = 8192, .vocab_size = 128256, .tied = true}},
      {"8B", {.layers = 32, .dim = 4096, .heads = 32, .kv_heads = 8, .ffn_dim = 14336, .vocab_size = 128256}},
      {"70B", {.layers = 80, .dim = 8192, .heads = 64, .kv_heads = 8, .ffn_dim = 28672, .vocab_size = 128256}},
      {"405B", {.layers = 126, .dim = 16384, .heads = 128, .kv_heads = 8, .ffn_dim = 53248, .vocab_size = 128256}},
  };
  return all;
}

void expect_positive(const char* key, int64_t value) {
  if (value <= 0) raise<InvalidArgument>("[{}] expected a positive number, got {}; remove it to use the flavour's", key, value);
}

}  // namespace

void Llama3Config::check() const {
  expect_positive("model.n_layers", layers);
  expect_positive("model.dim", dim);
  expect_positive("model.n_heads", heads);
  expect_positive("model.n_kv_heads", kv_heads);
  expect_positive("model.ffn_dim", ffn_dim);
  expect_positive("model.vocab_size", vocab_size);
  if (dim % heads != 0 || dim / heads % 2 != 0) {
    raise<InvalidArgument>("[model.n_heads] expected a number of heads that divides model.dim = {} into an even head size, "
                           "got {}; choose for example {}", dim, heads, dim % 64 == 0 ? dim / 64 : dim / 2);
  }
  if (heads % kv_heads != 0) {
    raise<InvalidArgument>("[model.n_kv_heads] expected a divisor of model.n_heads = {}, got {}; choose for example {}", heads,
                           kv_heads, heads);
  }
}

std::vector<std::string> llama3_flavors() {
  std::vector<std::string> names;
  for (const Flavor& f : flavors()) names.emplace_back(f.name);
  return names;
}

Llama3Config llama3_config(const std::string& flavor, const Overrides& o) {
  const auto found = std::ranges::find_if(flavors(), [&](const Flavor& f) { return f.name == flavor; });
  if (found == flavors().end()) {
    raise<InvalidArgument>("[model.flavor] expected one of {}, got \"{}\"; choose one of them",
                           fmt::join(llama3_flavors(), ", "), flavor);
  }
  Llama3Config config = found->config;
  const auto replace = [](int64_t& field, int64_t value) { field = value != 0 ? value : field; };
  replace(config.vocab_size, o.vocab_size);
  replace(config.layers, o.n_layers);
  replace(config.dim, o.dim);
  replace(config.heads, o.n_heads);
  replace(config.kv_heads, o.n_kv_heads);
  replace(config.ffn_dim, o.ffn_dim);
  config.check();
  return config;
}

}  // namespace flambeau::models
