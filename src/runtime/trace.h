// A list of recorded op calls: what a program is made from.
//
// A Trace names values by small numbers: external ones (what storages held before) and outputs of its calls. It keeps, for each
// storage that it has seen, which value the storage now holds, so that in-place ops and views are resolved while recording.
// A trace of one call is how strict eager mode runs an op; a capture is a trace of a whole step; the body of a loop is a
// trace inside another. A trace is for one mesh, or for one device: it refuses tensors that lie elsewhere. One thread uses a trace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "ops/op.h"
#include "runtime/arguments.h"
#include "runtime/devices.h"

namespace flambeau::runtime {

class Trace;

// for i in 0..trip_count (or backwards): carry = body(i, carry, row i of each stacked value)
struct Loop {
  int64_t trip_count = 0;
  bool reverse = false;
  std::unique_ptr<Trace> body;     // its inputs: the index, the carry, a row of each stacked value; then values of the trace around it
  std::vector<ValueView> carry;    // in the trace around it
  std::vector<ValueView> stacked;  // likewise, [trip_count, ...]
  std::vector<ValueId> results;    // in the body: the carry's next values
  std::vector<ValueId> rows;       // in the body: values that are stacked, [trip_count, ...], behind the final carry in the outputs
  uint64_t random_blocks = 0;      // that one iteration draws
  size_t rows_on_host = 0;         // so many of the first `rows` are stacked in host memory
  size_t stacked_on_host = 0;      // so many of the first `stacked` lie there
};

// Code that is written for each device's own parts of its operands (sdy.manual_computation). Its operands are the call's arguments.
struct Manual {
  std::unique_ptr<Trace> body;          // its inputs: the local parts
  std::vector<hlo::Sharding> in, out;   // of the operands and of the results, over `axes`
  std::vector<std::string> axes;        // of the mesh, that the body sees split
  std::vector<ValueId> results;         // in the body
  std::vector<Type> result_types;       // global
};

struct Call {
  const ops::Row* row = nullptr;  // null: a loop
  std::vector<Recorded> arguments;
  std::vector<std::optional<ValueId>> outputs;
  uint64_t random_distance = 0;  // blocks from the trace's base offset
  std::unique_ptr<Loop> loop;
  std::shared_ptr<const Manual> manual;  // then the row is kManual
  std::string site;  // where it comes from: for messages and names, no part of the key
  Key key;  // of the row and the arguments
};

// Where a value comes from that no call makes.
struct External {
  Type type;
  std::shared_ptr<Storage> storage;   // what it held when first read; null: a declared input, index or carry, or a place
  std::shared_ptr<const Array> value;   // strict mode: that very value
  std::optional<ValueId> outer;       // in a loop's body: a value of the trace around it
  hlo::Sharding sharding = {};        // how it lies on the mesh
};

// What a storage holds while the trace is recorded.
struct Binding {
  std::weak_ptr<Storage> storage;
  ValueId value;
  bool written = false;  // existed before, and has another value now
  bool born = false;     // made in this trace
};

// Where random numbers come from: a generator's stream, in blocks of four 32-bit words.
struct RandomPosition {
  uint64_t seed = 0, offset = 0;
};
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  // The position before `blocks` are drawn; the next call's position comes after them.
  virtual RandomPosition advance(uint64_t blocks) = 0;
};

enum class TraceKind {
  Strict,   // runs at once: changing numbers are parameters
  Capture,  // replays: numbers are constants but for those that are declared as inputs
};

// Says where the calling thread is ("layers/attention"): asked for the site of calls that are captured without one.
using SiteSource = std::string (*)();
void set_site_source(SiteSource source);

// What a trace is recorded for.
struct TraceContext {
  const DeviceMesh* mesh = nullptr;  // null: one device
  const Devices* devices = nullptr;  // where state that has no value yet gets one
};

class Trace {
 public:
  explicit Trace(TraceKind kind, TraceContext context = {}) : Trace(kind, nullptr, context) {}
  Trace(TraceKind kind, Trace* outer) : Trace(kind, outer, outer->context_) {}
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  // Empty again, memory kept, for another mesh (strict mode).
  void reset(const DeviceMesh* mesh = nullptr);

  // The trace that this thread records into; null: strict.
  static Trace* current();
  static void set_current(Trace* trace);

  uint64_t id() const { return id_; }
  TraceKind kind() const { return kind_; }
  Trace* outer() const { return outer_; }
  const DeviceMesh* mesh() const { return context_.mesh; }
  const Devices* devices() const { return context_.devices; }

  // Whether numbers of calls from now on are parameters of the program; at first so in strict mode only.
  void make_numbers_parameters(bool on) { numbers_are_parameters_ = on; }

  // A value that the caller gives at each run: a declared input, a loop's index or carry.
  ValueId add_input(Type type, hlo::Sharding sharding = {});

  // Records a call and gives the value of each output (none: the op does not give it). Raises what the lowering raises, and then
  // nothing has been recorded.
  std::vector<std::optional<ValueId>> append(const ops::Row& row, std::span<const CallArgument> arguments,
                                             uint64_t random_distance = 0, std::string site = {});
  // Gives the first output; the others follow. A loop that draws another's random numbers again is given that one's distance.
  ValueId append_loop(std::unique_ptr<Loop> loop, std::string site, std::optional<uint64_t> random_distance = {});

  // Gives the first output. The body uses nothing of the traces around it but its inputs, and draws no random numbers.
  ValueId append_manual(std::shared_ptr<const Manual> manual, std::vector<ValueView> operands);

  // Records a call of another trace again, its values renamed by `ids`, which gains the new outputs.
  void append_copy(const Call& call, std::unordered_map<ValueId, ValueId>& ids);
  // Makes this trace's random positions those of `other`, from which calls are copied.
  void share_random(const Trace& other) { put_back(other.drawn_); }
  // In a loop's body: a value of the trace around it.
  ValueId value_of_outer(ValueId outer_value);

  // The types of the outputs that append() would give, without recording.
  std::vector<std::optional<Type>> infer(const ops::Row& row, std::span<const CallArgument> arguments);

  // The value `tensor` shows, as an argument of a call.
  ValueView read(const TensorRef& tensor);
  // A value that holds exactly what `tensor` shows.
  ValueId dense(const TensorRef& tensor);
  // `tensor` becomes `value`: its storage is replaced, or updated where the view is a part of it.
  void write(const TensorRef& tensor, ValueId value);
  // A new storage holds `value`.
  void bind_new(const std::shared_ptr<Storage>& storage, ValueId value);
  // New storages hold `count` consecutive values.
  std::vector<std::shared_ptr<Storage>> bind_new(ValueId first, size_t count);
  // A storage that existed before stands for a declared input.
  void bind_input(const std::shared_ptr<Storage>& storage, ValueId value);

  const Type& type(ValueId id) const { return types_[id]; }
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<External>& externals() const { return externals_; }
  // External i is what stands in a place at each replay, not this storage.
  void release_external(size_t i) { externals_[i].storage = nullptr; }
  ValueId external_value(size_t i) const { return external_values_[i]; }
  const std::unordered_map<uint64_t, Binding>& bindings() const { return bindings_; }
  const std::vector<RecordedNumber>& numbers() const { return numbers_; }  // the parameters, in order
  // The values of the externals, which the trace lets go of (strict mode).
  std::vector<std::shared_ptr<const Array>> take_values();
  size_t value_count() const { return types_.size(); }
  bool random() const { return random_; }
  // Reserves blocks of the random stream; gives their distance from the trace's base offset.
  uint64_t draw(uint64_t blocks) { return std::exchange(drawn_, drawn_ + blocks); }
  uint64_t drawn() const { return drawn_; }
  // Goes back, or on again, to where drawn() once was: what is drawn next is the same again.
  void put_back(uint64_t drawn) { drawn_ = drawn; }

  // Structure, constants and types; not which storages.
  Key key() const;

 private:
  static std::unique_ptr<Loop> copy_of(const Loop& loop, Trace* outer, const std::unordered_map<ValueId, ValueId>& ids);
  ValueId new_value(Type type);
  Trace(TraceKind kind, Trace* outer, TraceContext context);
  void check_mesh(const Held& held) const;
  bool born_here(const Storage& storage) const;
  ValueId in_shape_of(const Storage& storage, ValueId value);
  ValueId current_value(Storage& storage, const TensorRef& tensor);
  std::vector<std::optional<ValueId>> append_recorded(const ops::Row& row, std::vector<Recorded> arguments,
                                                      uint64_t random_distance, std::string site);
  std::string site_or_here(std::string site) const;
  Recorded resolve(const CallArgument& argument, bool specialise);
  RecordedNumber number(const NumberRef& ref, bool specialise);

  uint64_t id_;
  TraceKind kind_;
  Trace* outer_;
  TraceContext context_;
  bool numbers_are_parameters_;
  bool random_ = false;
  uint64_t drawn_ = 0;
  std::vector<Type> types_;
  std::vector<Call> calls_;
  std::vector<External> externals_;
  std::vector<ValueId> external_values_;
  std::vector<RecordedNumber> numbers_;
  std::unordered_map<uint64_t, Binding> bindings_;      // by storage id
  std::unordered_map<ValueId, ValueId> outer_values_;   // outer value -> ours
};

// Calls f(ValueId) for every value that a call reads, a loop's body included. A value may come several times.
template <class F>
void for_each_value(const Call& call, F&& f) {
  for (const Recorded& argument : call.arguments) {
    if (auto* v = std::get_if<ValueView>(&argument)) f(v->value);
    if (auto* list = std::get_if<std::vector<std::optional<ValueView>>>(&argument))
      for (const auto& v : *list)
        if (v) f(v->value);
  }
  if (!call.loop) return;
  for (const auto* views : {&call.loop->carry, &call.loop->stacked})
    for (const ValueView& v : *views) f(v.value);
  for (const External& external : call.loop->body->externals())
    if (external.outer) f(*external.outer);
}

// Whether a call gives any of the values that `needed` (by value) marks.
bool makes_any(const Call& call, const std::vector<bool>& needed);
// By value: whether it is one of `wanted`, or is read by a call on the way to them.
std::vector<bool> needed_values(const Trace& trace, std::span<const ValueId> wanted);

}  // namespace flambeau::runtime
