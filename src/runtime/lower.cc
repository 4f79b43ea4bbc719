#include "runtime/lower.h"

#include "base/error.h"
#include "ops/check.h"
#include "runtime/internal_ops.h"
#include "runtime/lower_call.h"

namespace flambeau::runtime {
namespace {

using hlo::Builder;
using hlo::Value;

// Where random numbers come from while a trace is lowered.
struct Stream {
  Value seed, offset;
};

Value vector_element(Builder& b, Value vector, int64_t i) { return b.reshape(b.slice_dim(vector, 0, i, i + 1), {}); }

// What compilers and profiles call it: "layers/attention/mm".
std::string name_of(const Call& call) {
  std::string_view name = call.row ? call.row->name : "loop";
  name.remove_prefix(name.rfind(':') + 1);
  return call.site.empty() ? std::string(name) : fmt::format("{}/{}", call.site, name);
}

// Lowers one trace into a block of a graph.
class TraceScope : public ArgumentScope {
 public:
  TraceScope(const Trace& trace, std::span<const ValueId> wanted, std::optional<Stream> stream, Value floats, Value integers)
      : trace_(trace), stream_(stream), floats_(floats), integers_(integers), needed_(needed_values(trace, wanted)) {}

  void set(ValueId id, Value value) { values_[id] = value; }
  Value value(ValueId id) const {
    auto it = values_.find(id);
    FLAMBEAU_CHECK(it != values_.end(), "a value is lowered before it is used");
    return it->second;
  }

  void run(Builder& b) {
    for (const Call& call : trace_.calls()) {
      if (!makes_any(call, needed_)) {
        skip_numbers(call);
        continue;
      }
      b.set_site(name_of(call));
      std::vector<Value> results = call.loop ? run_loop(b, call) : call.manual ? run_manual(b, call) : run_call(b, call);
      for (size_t i = 0; i < call.outputs.size(); ++i)
        if (call.outputs[i]) values_[*call.outputs[i]] = results[i];
    }
  }

  Value view(Builder& b, const ValueView& v) override {
    Value base = value(v.value);
    if (v.whole) return base;
    return read_view(b, reinterpret_elements(b, base, v.dtype), v.view);
  }

  Value parameter(Builder& b, const ops::Number& number) override {
    bool is_float = number.category() == DType::F64;
    return vector_element(b, is_float ? floats_ : integers_, is_float ? next_float_++ : next_integer_++);
  }

 private:
  void skip_numbers(const Call& call) {
    for (const Recorded& r : call.arguments)
      if (auto* n = std::get_if<RecordedNumber>(&r); n && n->parameter)
        ++(n->number.category() == DType::F64 ? next_float_ : next_integer_);
  }

  std::vector<Value> run_call(Builder& b, const Call& call) {
    std::vector<ops::Argument> args = lower_arguments(b, call.arguments, *this);
    if (!call.row->random) return call.row->lower(b, args, nullptr);
    ops::Random random{stream_->seed, advance(b, stream_->offset, call.random_distance)};
    return call.row->lower(b, args, &random);
  }

  std::vector<Value> run_manual(Builder& b, const Call& call) {
    const Manual& manual = *call.manual;
    ops::NoChecks no_checks;  // a flag of one device cannot leave it
    std::vector<Value> operands;
    for (const Recorded& r : call.arguments) operands.push_back(view(b, std::get<ValueView>(r)));
    return b.manual_computation(operands, manual.in, manual.out, manual.axes, [&](Builder& inner, std::span<const Value> local) {
      TraceScope body(*manual.body, manual.results, std::nullopt, {}, {});
      for (size_t i = 0; i < local.size(); ++i) body.set(manual.body->external_value(i), local[i]);
      body.run(inner);
      std::vector<Value> results;
      for (ValueId id : manual.results) results.push_back(body.value(id));
      return results;
    });
  }

  static Value advance(Builder& b, Value offset, uint64_t blocks) {
    return blocks == 0 ? offset : b.add(offset, b.constant(DType::U64, static_cast<int64_t>(blocks)));
  }

  // Row `index` (rank-0 S32) of a stacked value.
  static Value row_of(Builder& b, Value stacked, Value index) {
    hlo::Dims sizes = stacked.dims();
    sizes[0] = 1;
    Value row = b.dynamic_slice(stacked, row_starts(b, index, stacked.rank()), sizes);
    return b.reshape(row, {sizes.begin() + 1, sizes.end()});
  }
  static Value with_row(Builder& b, Value stacked, Value row, Value index) {
    hlo::Dims dims = row.dims();
    dims.insert(dims.begin(), 1);
    return b.dynamic_update_slice(stacked, b.reshape(row, dims), row_starts(b, index, stacked.rank()));
  }
  static std::vector<Value> row_starts(Builder& b, Value index, int64_t rank) {
    std::vector<Value> starts(static_cast<size_t>(rank), b.constant(DType::S32, 0));
    starts[0] = index;
    return starts;
  }

  // Where an iteration's random numbers come from.
  std::optional<Stream> iteration_stream(Builder& b, const Call& call, Value index) {
    if (!call.loop->body->random()) return std::nullopt;
    Value drawn = b.multiply(b.convert(index, DType::U64), b.constant(DType::U64, static_cast<int64_t>(call.loop->random_blocks)));
    return Stream{stream_->seed, b.add(advance(b, stream_->offset, call.random_distance), drawn)};
  }

  std::vector<Value> run_loop(Builder& b, const Call& call) {
    const Loop& loop = *call.loop;
    ops::NoChecks no_checks;  // a flag computed inside of a loop cannot leave it
    std::vector<Value> init, stacked;
    for (const ValueView& v : loop.carry) init.push_back(view(b, v));
    for (const ValueView& v : loop.stacked) stacked.push_back(view(b, v));
    size_t carried = init.size();
    for (size_t k = carried; k < call.outputs.size(); ++k) {
      const Type& type = trace_.type(*call.outputs[k]);
      init.push_back(kZeros.lower(b, std::vector<ops::Argument>{type.dims, type.dtype}, nullptr)[0]);
    }
    return b.for_loop(loop.trip_count, init, [&](Builder& inner, std::span<const Value> parameters) {
      // Rows are found by the loop's own counter, unconverted: compilers then see that every row is written and leave out the zeros.
      Value row_index = parameters[0];
      if (loop.reverse) row_index = inner.subtract(inner.constant(DType::S32, loop.trip_count - 1), row_index);
      const Value index = inner.convert(row_index, DType::S64);
      std::vector<Value> given{index};
      given.insert(given.end(), parameters.begin() + 1, parameters.begin() + 1 + static_cast<std::ptrdiff_t>(carried));
      for (size_t k = 0; k < stacked.size(); ++k) {
        Value row = row_of(inner, stacked[k], row_index);
        given.push_back(k < loop.stacked_on_host ? inner.in_memory(row, "device") : row);
      }

      std::vector<ValueId> wanted = loop.results;
      wanted.insert(wanted.end(), loop.rows.begin(), loop.rows.end());
      TraceScope body(*loop.body, wanted, iteration_stream(inner, call, index), {}, {});
      size_t next = 0;
      for (size_t i = 0; i < loop.body->externals().size(); ++i) {
        const External& external = loop.body->externals()[i];
        body.set(loop.body->external_value(i), external.outer ? value(*external.outer) : given[next++]);
      }
      body.run(inner);
      std::vector<Value> results;
      for (ValueId id : loop.results) results.push_back(body.value(id));
      for (size_t k = 0; k < loop.rows.size(); ++k) {
        Value row = body.value(loop.rows[k]);
        if (k < loop.rows_on_host) row = inner.in_memory(row, "pinned_host");
        results.push_back(with_row(inner, parameters[1 + carried + k], row, row_index));
      }
      return results;
    });
  }

  const Trace& trace_;
  std::optional<Stream> stream_;
  Value floats_, integers_;
  int64_t next_float_ = 0, next_integer_ = 0;
  std::unordered_map<ValueId, Value> values_;
  std::vector<bool> needed_;
};

}  // namespace

Lowered lower(const Trace& trace, std::span<const ValueId> outputs, std::span<const std::pair<size_t, size_t>> aliases,
              std::span<const hlo::Sharding> shardings) {
  Lowered lowered;
  lowered.graph = std::make_unique<hlo::Graph>();
  hlo::Graph& graph = *lowered.graph;
  const bool on_mesh = trace.mesh() != nullptr;
  if (on_mesh) graph.set_mesh(trace.mesh()->mesh);
  Builder b(graph);
  // A value that is told no sharding would get one of the partitioner's choice.
  const auto sharding = [&](const hlo::Sharding& given, const Type& type) {
    return on_mesh ? std::optional(with_rank(given, type.rank())) : std::nullopt;
  };
  const auto add_replicated = [&](const Type& type) { return graph.add_parameter(type, {.sharding = sharding({}, type)}); };

  std::vector<int64_t> result_index(outputs.size(), -1);
  int64_t results_with_elements = 0;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (trace.type(outputs[i]).elements() > 0) result_index[i] = results_with_elements++;

  std::vector<Value> external_values;
  for (size_t i = 0; i < trace.externals().size(); ++i) {
    const Type& type = trace.externals()[i].type;
    if (type.elements() == 0) {
      external_values.push_back(kZeros.lower(b, std::vector<ops::Argument>{type.dims, type.dtype}, nullptr)[0]);
      continue;
    }
    hlo::Signature signature{.sharding = sharding(trace.externals()[i].sharding, type)};
    for (auto [external, output] : aliases)
      if (external == i) signature.aliasing_output = result_index[output];
    external_values.push_back(graph.add_parameter(type, signature));
    lowered.externals.push_back(i);
  }
  int64_t floats = 0, integers = 0;
  for (const RecordedNumber& n : trace.numbers()) ++(n.number.category() == DType::F64 ? floats : integers);
  Value float_vector, integer_vector;
  if ((lowered.floats = floats > 0)) float_vector = add_replicated({DType::F64, {floats}});
  if ((lowered.integers = integers > 0)) integer_vector = add_replicated({DType::S64, {integers}});
  std::optional<Stream> stream;
  if ((lowered.random = trace.random())) {
    Value position = add_replicated({DType::U64, {2}});
    stream = Stream{vector_element(b, position, 0), vector_element(b, position, 1)};
  }

  ops::CheckScope checks;
  TraceScope scope(trace, outputs, stream, float_vector, integer_vector);
  for (size_t i = 0; i < external_values.size(); ++i) scope.set(trace.external_value(i), external_values[i]);
  scope.run(b);

  std::vector<Value> results;
  std::vector<hlo::Signature> signatures;
  const auto add_result = [&](Value value, const hlo::Sharding& given) {
    results.push_back(value);
    signatures.push_back({.sharding = sharding(given, value.type())});
  };
  for (size_t i = 0; i < outputs.size(); ++i)
    if (trace.type(outputs[i]).elements() > 0) add_result(scope.value(outputs[i]), on_mesh ? shardings[i] : hlo::Sharding{});
  std::vector<Value> flags;
  for (const auto& check : checks.checks()) {
    flags.push_back(b.reshape(check.failed, {1}));
    lowered.checks.push_back(check.error);
  }
  if (!flags.empty()) add_result(flags.size() == 1 ? flags[0] : b.concatenate(flags, 0), {});
  graph.set_results(std::move(results), std::move(signatures));
  return lowered;
}

}  // namespace flambeau::runtime
