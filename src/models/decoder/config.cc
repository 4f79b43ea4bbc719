// Sizes of a decoder: choosing a flavour, overriding parts of it, checking that they fit together.
#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"
#include "models/decoder/decoder.h"

namespace flambeau::models {
namespace {

void expect_positive(const char* key, int64_t value) {
  if (value <= 0) raise<InvalidArgument>("[{}] expected a positive number, got {}; remove it to use the flavour's", key, value);
}

int64_t split_into_heads(int64_t dim, int64_t heads) {
  expect_positive("model.dim", dim);
  expect_positive("model.n_heads", heads);
  if (dim % heads != 0 || dim / heads % 2 != 0) {
    raise<InvalidArgument>("[model.n_heads] expected a number of heads that divides model.dim = {} into an even head size, "
                           "got {}; choose for example {}", dim, heads, dim % 64 == 0 ? dim / 64 : dim / 2);
  }
  return dim / heads;
}

}  // namespace

void DecoderConfig::check() const {
  expect_positive("model.n_layers", layers);
  expect_positive("model.dim", dim);
  expect_positive("model.n_heads", heads);
  expect_positive("model.n_kv_heads", kv_heads);
  expect_positive("model.ffn_dim", ffn_dim);
  expect_positive("model.vocab_size", vocab_size);
  // RoPE rotates pairs.
  if (head_dim <= 0 || head_dim % 2 != 0) raise<InvalidArgument>("[model] expected heads of an even size, got {}", head_dim);
  if (heads % kv_heads != 0) {
    raise<InvalidArgument>("[model.n_kv_heads] expected a divisor of model.n_heads = {}, got {}; choose for example {}", heads,
                           kv_heads, heads);
  }
}

std::vector<std::string> flavor_names(std::span<const Flavor> flavors) {
  std::vector<std::string> names;
  for (const Flavor& f : flavors) names.emplace_back(f.name);
  return names;
}

DecoderConfig choose_flavor(std::span<const Flavor> flavors, const std::string& name, const Overrides& o) {
  const auto found = std::ranges::find_if(flavors, [&](const Flavor& f) { return f.name == name; });
  if (found == flavors.end()) {
    raise<InvalidArgument>("[model.flavor] expected one of {}, got \"{}\"; choose one of them",
                           fmt::join(flavor_names(flavors), ", "), name);
  }
  DecoderConfig config = found->config;
  const auto replace = [](int64_t& field, int64_t value) { field = value != 0 ? value : field; };
  replace(config.vocab_size, o.vocab_size);
  replace(config.layers, o.n_layers);
  replace(config.dim, o.dim);
  replace(config.heads, o.n_heads);
  replace(config.kv_heads, o.n_kv_heads);
  replace(config.ffn_dim, o.ffn_dim);
  if (config.head_dim == 0) config.head_dim = split_into_heads(config.dim, config.heads);
  config.check();
  return config;
}

}  // namespace flambeau::models
