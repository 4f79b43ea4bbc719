// What a plan says: the facts that the terminal, the JSON file and the HTML page show alike.
//
// Bytes are of one device, as the compiler laid them out (or, from the analytic mode, as computed: `source` says which). Times
// are estimates, always: no number here was measured on a TPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hlo/graph.h"

namespace flambeau::plan {

// What a piece of memory holds.
enum class MemoryKind { Parameters, Gradients, OptimizerStates, Batch, SavedActivations, Temporaries, Collectives, Padding };
std::string_view name_of(MemoryKind kind);  // "saved activations"

struct Buffer {
  std::string name;      // the model's own: "layers.*.feed_forward.{w1,w3}.weight, exp_avg", "layers/attention/wo"
  MemoryKind kind = MemoryKind::Temporaries;
  std::string shape;     // "f32[32,2,14336,256]", one device's part
  int64_t bytes = 0;     // as it lies in memory
  int64_t padding = 0;   // of these, what its elements do not fill
  bool at_peak = false;  // it lives when most memory is in use
};

struct Memory {
  int64_t total = 0;  // what must fit: arguments and temporaries, outputs over arguments where they can be
  int64_t limit = 0;  // what a program may use of one device; 0: not known
  int64_t host = 0;   // in the host's memory, for one device
  std::vector<std::pair<MemoryKind, int64_t>> by_kind;         // at the moment when most is in use; sums to `total`
  std::vector<Buffer> largest;                                 // ten at most, the largest first
  std::vector<std::pair<double, int64_t>> over_step;           // (part of the step's schedule in 0..1, bytes in use), ascending
  bool fits() const { return limit == 0 || total <= limit; }
};

// Collectives of one kind, over the same axes of the mesh, at one place of the step.
struct CollectiveGroup {
  std::string kind;    // "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"
  std::string axes;    // of the mesh: "shard", "replicate x shard"; "?" where the devices are no axis
  int64_t group_size = 0;
  std::string type;    // "bf16"
  std::string place;   // "layers, forward", "layers, backward", "loss", "accumulation", "outside of the layers"
  double count = 0;    // executions a step
  double bytes = 0;    // a step, of the larger of operand and result, one device
  double overlapped = 0;  // of these bytes, what runs while something is computed
};

// One device's work in one step.
struct Work {
  double flops = 0;      // of all matrix products
  double hbm_bytes = 0;  // read and written
  double collective_bytes = 0;
};

struct Estimate {
  double compute_s = 0;        // matrix products at the chip's peak
  double hbm_s = 0;            // memory traffic at the chip's bandwidth
  double communication_s = 0;  // collectives over links, alone
  double exposed_s = 0;        // the part of it during which nothing is computed
  double host_s = 0;           // to the host's memory and back
  double step_s = 0;           // what compute_s and exposed_s leave of it is shown as exposed memory traffic
  std::vector<std::string> assumptions;  // one sentence each, with the figures used
};

// Configuration keys and values, as the command line takes them.
using Keys = std::vector<std::pair<std::string, std::string>>;
std::string describe(const Keys& keys);  // "training.sequences_per_microbatch = 2, loss.chunks = 32"

// What a change of the configuration gives, as compiled.
struct Change {
  Keys keys;
  int64_t total = 0;     // HBM a device
  double step_s = 0;
  bool fits = false;
  std::string failure;   // why it could not be compiled; empty: it was
};

struct Report {
  std::string config, model;          // "configs/llama3/8b.toml", "llama3 8B"
  std::string pod, device_kind;       // "v5e:4x4 (16 chips)", "TPU v5 lite"
  std::string source;                 // "libtpu, first phase", "libtpu, whole compilation", "analytic"
  int64_t devices = 0, chips = 0, slices = 1;
  std::vector<hlo::MeshAxis> mesh;  // axis, degree: ("shard", 16)
  int64_t parameters = 0;
  int64_t tokens_per_step = 0, sequences_per_device = 0, context = 0, accumulation = 1;
  std::string activation_checkpoint, attention;

  Memory memory;
  std::vector<CollectiveGroup> collectives;
  Work work;
  // Of the model's matrix products in a step, one device's share, as models::TokenFlops counts them.
  double model_flops = 0, model_flops_causal = 0;
  double peak_flops = 0;              // a second, of one device in bfloat16
  bool exact = true;                  // all trip counts of the program are known
  Estimate estimate;
  std::vector<Change> changes;        // when it does not fit
  std::vector<std::string> warnings;  // one line each
  double planned_s = 0;               // how long planning took

  std::optional<double> price_per_chip_hour;
  double training_tokens = 0;         // for "days to N tokens"; 0: not asked

  double tokens_per_second_per_chip() const;
  double mfu() const;                 // 0..1: model_flops over what the device could do in estimate.step_s; training prints the same
  double mfu_causal() const;          // of model_flops_causal
  double days() const;                // to training_tokens
  double price() const;               // of these days, all chips
};

// For a terminal or a pipe, at most 100 columns wide; ends in a newline.
std::string to_text(const Report& report, bool colour);
// The same facts as a JSON object, indented, ends in a newline. Keys are the names above.
std::string to_json(const Report& report);
// One page that needs nothing else: no scripts or styles from outside, plots as inline SVG.
std::string to_html(const Report& report);

}  // namespace flambeau::plan
