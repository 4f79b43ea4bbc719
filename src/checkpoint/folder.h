// Checkpoints of a run: a folder with one subfolder `step-N` each.
//
//   model.safetensors      parameters and buffers under their own names
//   optimizer.safetensors  <parameter>.<state> (exp_avg, exp_avg_sq; momentum_buffer), and rng.<device>: states of generators
//   train_state.json       step, tokens seen, data cursor, what the optimizer is, and each file's size and checksum
//
// A checkpoint is written into a folder with another name, synced, and renamed last: `step-N` is whole or does not exist, at whatever moment
// the process is killed. Deleting renames first for the same reason. What killed runs left behind is removed when the folder
// is opened, which takes a lock: two runs never write one folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace flambeau::checkpoint {

struct State {
  int64_t step = 0;
  int64_t tokens_seen = 0;
  std::string data_cursor;  // JSON, the dataset's own
  std::string model;        // what the parameters belong to: "llama3 debug"
  std::string optimizer_kind = {};  // what the states belong to, as train/same_optimizer.h says it; empty in checkpoints of format 1
  int64_t went_back_to = -1;   // the step that the run was last sent back to (checkpoint.load_step); -1: none
  NamedTensors parameters, optimizer;
};

// Reads one step's folder, once, and verifies sizes and checksums. InvalidArgument or IoError with the path of what is missing or damaged.
State load(const std::filesystem::path& step_folder);

// State::went_back_to of a step's folder, without reading its tensors.
int64_t went_back_to(const std::filesystem::path& step_folder);

class Folder {
 public:
  // Creates the folder where needed, locks it and cleans up. InvalidArgument when another process has it open.
  explicit Folder(std::filesystem::path path);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path step_path(int64_t step) const;
  // Steps that can be loaded, ascending.
  std::vector<int64_t> steps() const;
  // Writes `state` as its step, then deletes the oldest other steps beyond `keep` (0: none). Does nothing if the step is there.
  void save(const State& state, int64_t keep) const;
  // For a run that goes back: renames the steps after `step` to abandoned-step-N, which nothing here reads or deletes. Returns the new
  // names.
  std::vector<std::string> abandon_after(int64_t step) const;

 private:
  void write(const State& state) const;
  void remove_old(int64_t written, int64_t keep) const;

  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace flambeau::checkpoint
