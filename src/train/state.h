// A run's state as a checkpoint holds it: to and from the live tensors.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/folder.h"
#include "models/model.h"
#include "train/optimizer.h"
#include "train/config.h"

namespace flambeau::train {

// The live tensors under the names of a checkpoint. Those that are stacked or fused are copied to the CPU, nothing else is copied.
checkpoint::State collect_state(const Config& config, const models::Model& model, const Optimizer& optimizer, at::Device device);

// Copies a loaded state into the live tensors. InvalidArgument (with `where`) when a tensor is missing or has another shape, or when
// the states are those of another optimizer. Checkpoints of format 1 have fused tensors under the names of then (nn::Stored::key).
void restore_state(const checkpoint::State& state, const std::filesystem::path& where, const Config& config, models::Model& model,
                   Optimizer& optimizer, at::Device device);

// Only the parameters of a step's folder.
void load_parameters(const std::filesystem::path& step_folder, models::Model& model);
// The same from checkpoint.initial_load_path: a step folder of ours or a Hugging Face folder.
void load_initial(const Config& config, models::Model& model);

// Writes the model as a Hugging Face folder (model.safetensors, config.json), whole or not at all.
void export_hugging_face(const std::filesystem::path& folder, const models::Model& model);

// A checksum of names and bytes; generators' states do not count.
uint64_t checksum_of(const checkpoint::NamedTensors& tensors);
// "parameters 0123456789abcdef, optimizer 0123456789abcdef": checksums of names and bytes, for comparing runs.
std::string state_checksums(const checkpoint::State& state);

}  // namespace flambeau::train
