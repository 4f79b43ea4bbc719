// The data of a run, from its configuration: documents, tokens, the training samples and the held-out ones.
#pragma once

#include <memory>

#include "data/dataset.h"
#include "data/loader.h"
#include "train/config.h"
#include "train/step.h"

namespace flambeau::train {

struct Datasets {
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<data::Dataset> train;
  std::unique_ptr<data::Dataset> held_out;  // null where nothing is held out
};

// What turns the run's text into tokens.
std::unique_ptr<data::Tokenizer> make_tokenizer(const Config& config);

// Reads the text. InvalidArgument or IoError with the configuration's file and key.
Datasets load_datasets(const Config& config);

// As the programs take it: [A, B, S] with `microbatches` > 0, else [B, S]; with positions and documents if `documents`.
TokenBatch to_tensors(const data::Batch& batch, int64_t microbatches, bool documents);

}  // namespace flambeau::train
