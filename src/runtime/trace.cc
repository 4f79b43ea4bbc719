#include "runtime/trace.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include <fmt/ranges.h>

#include "base/error.h"
#include "runtime/internal_ops.h"
#include "runtime/lower_call.h"

namespace flambeau::runtime {
namespace {

std::atomic<uint64_t> next_trace{1};
std::atomic<SiteSource> g_site_source{nullptr};

void hash_sharding(KeyHasher& h, const hlo::Sharding& sharding) {
  h.add(sharding.dims.size());
  for (const hlo::Sharding::Dim& dim : sharding.dims) {
    h.add(dim.axes.size(), dim.open);
    for (const std::string& axis : dim.axes) h.add(std::string_view(axis));
  }
}

}  // namespace

bool makes_any(const Call& call, const std::vector<bool>& needed) {
  return std::ranges::any_of(call.outputs, [&](const auto& output) { return output && needed[*output]; });
}

std::vector<bool> needed_values(const Trace& trace, std::span<const ValueId> wanted) {
  std::vector<bool> needed(trace.value_count(), false);
  for (ValueId id : wanted) needed[id] = true;
  for (auto call = trace.calls().rbegin(); call != trace.calls().rend(); ++call)
    if (makes_any(*call, needed)) for_each_value(*call, [&](ValueId id) { needed[id] = true; });
  return needed;
}

Trace::Trace(TraceKind kind, Trace* outer, TraceContext context)
    : id_(next_trace++), kind_(kind), outer_(outer), context_(context), numbers_are_parameters_(kind == TraceKind::Strict) {}
Trace::~Trace() = default;

static thread_local Trace* t_current = nullptr;
Trace* Trace::current() { return t_current; }
void Trace::set_current(Trace* trace) { t_current = trace; }

void Trace::reset(const DeviceMesh* mesh) {
  context_.mesh = mesh;
  random_ = false;
  drawn_ = 0;
  types_.clear();
  calls_.clear();
  externals_.clear();
  external_values_.clear();
  numbers_.clear();
  bindings_.clear();
  outer_values_.clear();
}

ValueId Trace::new_value(Type type) {
  types_.push_back(std::move(type));
  return static_cast<ValueId>(types_.size() - 1);
}

ValueId Trace::add_input(Type type, hlo::Sharding sharding) {
  ValueId id = new_value(type);
  externals_.push_back({std::move(type), nullptr, nullptr, std::nullopt, std::move(sharding)});
  external_values_.push_back(id);
  return id;
}

ValueId Trace::value_of_outer(ValueId outer_value) {
  if (auto it = outer_values_.find(outer_value); it != outer_values_.end()) return it->second;
  ValueId id = new_value(outer_->type(outer_value));
  externals_.push_back({types_[id], nullptr, nullptr, outer_value});
  external_values_.push_back(id);
  outer_values_.emplace(outer_value, id);
  return id;
}

// Storages are marked when they are made, also those that have no value yet. Inputs are marked too, but bound as what they are.
bool Trace::born_here(const Storage& storage) const {
  if (auto it = bindings_.find(storage.id); it != bindings_.end()) return it->second.born;
  return storage.recording() == id_;
}

void Trace::check_mesh(const Held& held) const {
  if (!held.array || held.array->mesh() == context_.mesh) return;
  raise<InvalidArgument>("[mesh] expected tensors that lie on {}, as this {} uses, got {} on {}; make it where the others are, or copy it "
                         "there through the CPU", describe(context_.mesh), kind_ == TraceKind::Strict ? "op" : "recording",
                         held.type.to_string(), describe(held.array->mesh()));
}

// The value of a storage that this trace has not bound yet is what it held before, or zeros when it held nothing.
ValueId Trace::current_value(Storage& storage, const TensorRef& tensor) {
  if (auto it = bindings_.find(storage.id); it != bindings_.end()) return it->second.value;
  if (outer_ && storage.recording() != id_) return value_of_outer(outer_->current_value(storage, tensor));
  // State that was never written: given a value now, since a constant would hide what later steps write.
  if (kind_ == TraceKind::Capture && context_.devices) context_.devices->materialise(tensor, context_.mesh);
  Held held = storage.held();
  if (held.failure) throw Error(*held.failure);
  const bool born = held.recording == id_;
  if (held.recording != 0 && !born)
    raise("[capture] this tensor was made while a step was recorded and was not returned by it, so it has no value outside; return "
          "it from the captured function, or make it before");
  check_mesh(held);
  ValueId id;
  if (held.array) {
    id = new_value(held.type);
    hlo::Sharding sharding = held.array->sharding();
    externals_.push_back({std::move(held.type), storage.shared_from_this(),
                          kind_ == TraceKind::Strict ? std::move(held.array) : nullptr, std::nullopt, std::move(sharding)});
    external_values_.push_back(id);
  } else {
    Recorded arguments[] = {Dims{storage.nbytes() / byte_size(tensor.dtype)}, tensor.dtype};
    id = *append_recorded(kZeros, {std::begin(arguments), std::end(arguments)}, 0, {})[0];
  }
  bindings_.emplace(storage.id, Binding{storage.weak_from_this(), id, false, born});
  return id;
}

std::vector<std::shared_ptr<const Array>> Trace::take_values() {
  std::vector<std::shared_ptr<const Array>> values;
  values.reserve(externals_.size());
  for (External& external : externals_) values.push_back(std::move(external.value));
  return values;
}

ValueView Trace::read(const TensorRef& tensor) {
  ValueId id = current_value(*tensor.storage, tensor);
  const Type& type = types_[id];
  bool whole = type.dtype == tensor.dtype && tensor.view.offset == 0 && type.dims == tensor.view.sizes &&
               tensor.view.is_contiguous();
  return {id, tensor.view, tensor.dtype, whole};
}

ValueId Trace::dense(const TensorRef& tensor) {
  ValueView v = read(tensor);
  if (v.whole) return v.value;
  CallArgument arguments[] = {tensor, tensor.dtype};
  return *append(kIdentity, arguments)[0];
}

RecordedNumber Trace::number(const NumberRef& ref, bool specialise) {
  RecordedNumber n{ref.number, ref.as_tensor, ref.dtype, false};
  if (ref.input) {
    if (outer_) raise<NotImplemented>("[loop] an optimizer's numbers do not pass a captured loop; step it outside of the loop");
    FLAMBEAU_CHECK(!specialise && ref.number.category() == DType::F64, "a number that each replay is given is a double");
    n.input = ref.input;
    n.parameter = true;
    return n;
  }
  DType category = ref.number.category();
  if (category != DType::F64 && category != DType::S64) return n;  // of the others few are in use
  bool common = !ref.as_tensor && (ref.number.as_double() == 0 || std::abs(ref.number.as_double()) == 1);
  n.parameter = numbers_are_parameters_ && !specialise && !common;
  return n;
}

Recorded Trace::resolve(const CallArgument& argument, bool specialise) {
  return std::visit(Overloaded{
                        [&](const TensorRef& tensor) -> Recorded { return read(tensor); },
                        [&](const std::vector<std::optional<TensorRef>>& list) -> Recorded {
                          std::vector<std::optional<ValueView>> views;
                          views.reserve(list.size());
                          for (const auto& tensor : list)
                            views.push_back(tensor ? std::optional(read(*tensor)) : std::nullopt);
                          return views;
                        },
                        [&](const NumberRef& ref) -> Recorded { return number(ref, specialise); },
                        [](const auto& plain) -> Recorded { return plain; },
                    },
                    argument);
}

void set_site_source(SiteSource source) { g_site_source = source; }

// What was given, else where the thread is.
std::string Trace::site_or_here(std::string site) const {
  const SiteSource here = g_site_source.load(std::memory_order_relaxed);
  return site.empty() && here && kind_ == TraceKind::Capture ? here() : std::move(site);
}

std::vector<std::optional<ValueId>> Trace::append(const ops::Row& row, std::span<const CallArgument> arguments,
                                                  uint64_t random_distance, std::string site) {
  std::vector<Recorded> recorded;
  recorded.reserve(arguments.size());
  for (const CallArgument& argument : arguments) recorded.push_back(resolve(argument, row.specialise));
  return append_recorded(row, std::move(recorded), random_distance, std::move(site));
}

std::vector<std::optional<ValueId>> Trace::append_recorded(const ops::Row& row, std::vector<Recorded> arguments,
                                                           uint64_t random_distance, std::string site) {
  Call call;
  call.row = &row;
  call.key = signature(row, arguments, context_.mesh);
  std::vector<std::optional<Type>> types = result_types(call.key, row, arguments, context_.mesh);
  for (const Recorded& argument : arguments)
    if (auto* n = std::get_if<RecordedNumber>(&argument); n && n->parameter) numbers_.push_back(*n);
  call.arguments = std::move(arguments);
  call.random_distance = random_distance;
  call.site = site_or_here(std::move(site));
  for (std::optional<Type>& type : types)
    call.outputs.push_back(type ? std::optional(new_value(std::move(*type))) : std::nullopt);
  if (row.random) random_ = true;
  calls_.push_back(std::move(call));
  return calls_.back().outputs;
}

std::vector<std::optional<Type>> Trace::infer(const ops::Row& row, std::span<const CallArgument> arguments) {
  std::vector<Recorded> recorded;
  recorded.reserve(arguments.size());
  for (const CallArgument& argument : arguments) {
    if (auto* tensor = std::get_if<TensorRef>(&argument)) {
      recorded.push_back(ValueView{0, tensor->view, tensor->dtype, true});
    } else if (auto* list = std::get_if<std::vector<std::optional<TensorRef>>>(&argument)) {
      std::vector<std::optional<ValueView>> views;
      for (const auto& t : *list)
        views.push_back(t ? std::optional(ValueView{0, t->view, t->dtype, true}) : std::nullopt);
      recorded.push_back(std::move(views));
    } else {
      recorded.push_back(resolve(argument, row.specialise));
    }
  }
  return result_types(signature(row, recorded, context_.mesh), row, recorded, context_.mesh);
}

ValueId Trace::append_loop(std::unique_ptr<Loop> loop, std::string site, std::optional<uint64_t> random_distance) {
  Call call;
  call.site = site_or_here(std::move(site));
  loop->random_blocks = loop->body->drawn();
  call.random_distance =
      random_distance ? *random_distance : draw(loop->random_blocks * static_cast<uint64_t>(loop->trip_count));
  KeyHasher h;
  Key body = loop->body->key();
  h.add(body.high, body.low, loop->trip_count, loop->reverse, loop->random_blocks, loop->carry.size(), loop->stacked.size(), loop->rows_on_host,
        loop->stacked_on_host);
  for (const auto* views : {&loop->carry, &loop->stacked})
    for (const ValueView& v : *views) hash_type(h, {v.dtype, v.view.sizes});
  for (const auto* ids : {&loop->results, &loop->rows})
    for (ValueId id : *ids) h.add(id);
  for (const External& external : loop->body->externals()) h.add(external.outer ? int64_t{*external.outer} : -1);
  call.key = h.key();
  for (const ValueView& v : loop->carry) call.outputs.push_back(new_value({v.dtype, v.view.sizes}));
  for (ValueId id : loop->rows) {
    Type type = loop->body->type(id);
    type.dims.insert(type.dims.begin(), loop->trip_count);
    call.outputs.push_back(new_value(std::move(type)));
  }
  if (loop->body->random()) random_ = true;
  ValueId first = call.outputs.empty() ? 0 : *call.outputs.front();
  call.loop = std::move(loop);
  calls_.push_back(std::move(call));
  return first;
}

ValueId Trace::append_manual(std::shared_ptr<const Manual> manual, std::vector<ValueView> operands) {
  for (const External& external : manual->body->externals())
    if (external.outer)
      raise<InvalidArgument>("[manual] the body reads a tensor {} from outside; pass it as an input, with the axes that split it",
                             external.type.to_string());
  if (manual->body->random())
    raise<NotImplemented>("[manual] the body draws random numbers, which would be the same on every device; draw them outside");
  Call call;
  call.row = &kManual;
  call.site = site_or_here({});
  KeyHasher h;
  Key body = manual->body->key();
  h.add(body.high, body.low, operands.size(), manual->axes.size());
  for (const std::string& axis : manual->axes) h.add(std::string_view(axis));
  for (const auto* shardings : {&manual->in, &manual->out})
    for (const hlo::Sharding& sharding : *shardings) hash_sharding(h, sharding);
  for (ValueId id : manual->results) h.add(id);
  for (ValueView& operand : operands) {
    hash_type(h, {operand.dtype, operand.view.sizes});
    call.arguments.push_back(std::move(operand));
  }
  call.key = h.key();
  for (const Type& type : manual->result_types) call.outputs.push_back(new_value(type));
  ValueId first = call.outputs.empty() ? 0 : *call.outputs.front();
  call.manual = std::move(manual);
  calls_.push_back(std::move(call));
  return first;
}

// `ids` renames the values of the trace that `loop` stands in to those of `outer`.
std::unique_ptr<Loop> Trace::copy_of(const Loop& loop, Trace* outer, const std::unordered_map<ValueId, ValueId>& ids) {
  auto copy = std::make_unique<Loop>();
  copy->trip_count = loop.trip_count;
  copy->reverse = loop.reverse;
  copy->carry = loop.carry;
  copy->stacked = loop.stacked;
  copy->rows_on_host = loop.rows_on_host;
  copy->stacked_on_host = loop.stacked_on_host;
  for (auto* views : {&copy->carry, &copy->stacked})
    for (ValueView& v : *views) v.value = ids.at(v.value);
  copy->body = std::make_unique<Trace>(TraceKind::Capture, outer);
  std::unordered_map<ValueId, ValueId> inner;
  for (size_t i = 0; i < loop.body->externals().size(); ++i) {
    const External& external = loop.body->externals()[i];
    inner[loop.body->external_value(i)] =
        external.outer ? copy->body->value_of_outer(ids.at(*external.outer)) : copy->body->add_input(external.type, external.sharding);
  }
  for (const Call& call : loop.body->calls()) copy->body->append_copy(call, inner);
  copy->body->share_random(*loop.body);
  for (ValueId id : loop.results) copy->results.push_back(inner.at(id));
  for (ValueId id : loop.rows) copy->rows.push_back(inner.at(id));
  return copy;
}

void Trace::append_copy(const Call& call, std::unordered_map<ValueId, ValueId>& ids) {
  if (call.loop) {
    ValueId next = append_loop(copy_of(*call.loop, this, ids), call.site, call.random_distance);
    for (const auto& output : call.outputs) ids[*output] = next++;
    return;
  }
  std::vector<Recorded> arguments = call.arguments;
  for (Recorded& argument : arguments) {
    if (auto* v = std::get_if<ValueView>(&argument)) v->value = ids.at(v->value);
    if (auto* list = std::get_if<std::vector<std::optional<ValueView>>>(&argument))
      for (auto& v : *list)
        if (v) v->value = ids.at(v->value);
  }
  if (call.manual) {
    std::vector<ValueView> operands;
    for (Recorded& argument : arguments) operands.push_back(std::get<ValueView>(std::move(argument)));
    ValueId next = append_manual(call.manual, std::move(operands));
    for (const auto& output : call.outputs) ids[*output] = next++;
    return;
  }
  auto outputs = append_recorded(*call.row, std::move(arguments), call.random_distance, call.site);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i]) ids[*call.outputs[i]] = *outputs[i];
}

// `value` with the dimensions that the storage's value has: state keeps its type, also when it is replaced through a reshaped view.
ValueId Trace::in_shape_of(const Storage& storage, ValueId value) {
  Type before;
  if (auto it = bindings_.find(storage.id); it != bindings_.end()) {
    before = types_[it->second.value];
  } else {
    Held held = storage.held();
    if (!held.array) return value;
    check_mesh(held);
    before = std::move(held.type);
  }
  const Type& after = types_[value];
  if (before.dtype != after.dtype || before.elements() != after.elements() || before.dims == after.dims) return value;
  std::vector<Recorded> arguments{ValueView{value, View::contiguous(before.dims), after.dtype, false}, after.dtype};
  return *append_recorded(kIdentity, std::move(arguments), 0, {})[0];
}

void Trace::write(const TensorRef& tensor, ValueId value) {
  Storage& storage = *tensor.storage;
  bool born = born_here(storage);
  if (outer_ && !born)
    raise<InvalidArgument>("[loop] the body writes to a tensor from outside; carry it through the loop instead");
  if (types_[value].dims != tensor.view.sizes)
    raise<InvalidArgument>("output with shape [{}] doesn't match the broadcast shape [{}]", fmt::join(tensor.view.sizes, ", "),
                           fmt::join(types_[value].dims, ", "));
  auto bind = [&](ValueId id) {
    bindings_.insert_or_assign(storage.id, Binding{storage.weak_from_this(), id, !born, born});
  };
  bool covers = tensor.view.offset == 0 && tensor.view.elements() * byte_size(tensor.dtype) >= storage.nbytes();
  bool in_order = tensor.view.is_contiguous();
  if (std::optional<View> order = covers && !in_order ? memory_order(tensor.view) : std::nullopt; order || (covers && in_order)) {
    if (order || types_[value].dtype != tensor.dtype) {
      ValueView contents = whole_value(value, types_[value]);
      if (order) contents = {value, *std::move(order), types_[value].dtype, false};
      std::vector<Recorded> arguments{std::move(contents), tensor.dtype};
      value = *append_recorded(kIdentity, std::move(arguments), 0, {})[0];
    }
    bind(in_shape_of(storage, value));
    return;
  }
  if (overlaps_itself(tensor.view))
    raise<InvalidArgument>("unsupported operation: more than one element of the written-to tensor refers to a single memory "
                           "location. Please clone() the tensor before performing the operation.");
  if (tensor.view.elements() == 0) return;
  ValueId base = current_value(storage, tensor);
  std::vector<Recorded> arguments{whole_value(base, types_[base]), whole_value(value, types_[value]), tensor.view.sizes,
                                  tensor.view.strides, tensor.view.offset, tensor.dtype};
  bind(*append_recorded(kWrite, std::move(arguments), 0, {})[0]);
}

void Trace::bind_new(const std::shared_ptr<Storage>& storage, ValueId value) {
  bindings_.insert_or_assign(storage->id, Binding{storage, value, false, true});
}

std::vector<std::shared_ptr<Storage>> Trace::bind_new(ValueId first, size_t count) {
  std::vector<std::shared_ptr<Storage>> storages;
  for (ValueId id = first; id < first + count; ++id) {
    storages.push_back(Storage::create(type(id).bytes(), id_));
    bind_new(storages.back(), id);
  }
  return storages;
}

void Trace::bind_input(const std::shared_ptr<Storage>& storage, ValueId value) {
  bindings_.insert_or_assign(storage->id, Binding{storage, value, false, false});
}

Key Trace::key() const {
  KeyHasher h;
  h.add(static_cast<int>(kind_), externals_.size());
  for (size_t i = 0; i < externals_.size(); ++i) {
    hash_type(h, externals_[i].type);
    h.add(external_values_[i], externals_[i].outer ? int64_t{*externals_[i].outer} : -1);
    hash_sharding(h, externals_[i].sharding);
  }
  for (const Call& call : calls_) {
    h.add(call.key.high, call.key.low, call.random_distance);
    for (const Recorded& argument : call.arguments) hash_views(h, argument);
    if (call.loop)
      for (const auto* views : {&call.loop->carry, &call.loop->stacked})
        for (const ValueView& v : *views) hash_view(h, v);
    for (const auto& output : call.outputs) h.add(output.has_value());
  }
  return h.key();
}

}  // namespace flambeau::runtime
