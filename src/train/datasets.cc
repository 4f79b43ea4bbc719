#include "train/datasets.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "nn/loss.h"

namespace flambeau::train {

static_assert(data::kIgnoredLabel == nn::kIgnoredLabel);

std::unique_ptr<data::Tokenizer> make_tokenizer(const Config&) { return std::make_unique<data::ByteTokenizer>(); }

Datasets load_datasets(const Config& config) {
  Datasets out;
  out.tokenizer = make_tokenizer(config);
  std::vector<std::string> patterns;
  if (!config.data.pattern.empty()) patterns.push_back(config.data.pattern);
  try {
    data::Split split = data::split_documents(data::read_documents({config.data.source}, {.patterns = patterns}),
                                              config.data.held_out);
    data::DatasetOptions options{.seq_len = config.training.max_context_length,
                                 .seed = static_cast<uint64_t>(config.dataloader.seed),
                                 .shuffle = config.dataloader.shuffle};
    out.train = std::make_unique<data::Dataset>(data::Corpus(split.train, *out.tokenizer), options);
    options.shuffle = false;
    options.keep_remainder = true;
    if (!split.held_out.empty()) {
      out.held_out = std::make_unique<data::Dataset>(data::Corpus(split.held_out, *out.tokenizer), options);
    }
  } catch (const Error& e) {
    raise_in_config(config, fmt::format("data.source: {}", e.what()));
  }
  return out;
}

TokenBatch to_tensors(const data::Batch& batch, int64_t microbatches, bool documents) {
  const auto tensor = [&](const std::vector<int64_t>& values) {
    const at::Tensor flat = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
    std::copy(values.begin(), values.end(), flat.data_ptr<int64_t>());
    return microbatches > 0 ? flat.view({microbatches, batch.rows / microbatches, batch.seq_len})
                            : flat.view({batch.rows, batch.seq_len});
  };
  TokenBatch out{.tokens = tensor(batch.tokens), .labels = tensor(batch.labels), .positions = {}, .documents = {}};
  if (documents) {
    out.positions = tensor(batch.positions);
    out.documents = tensor(batch.documents);
  }
  return out;
}

}  // namespace flambeau::train
