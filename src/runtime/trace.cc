#include "runtime/trace.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include <fmt/ranges.h>

#include "base/error.h"
#include "runtime/engine.h"
#include "runtime/internal_ops.h"
#include "runtime/lower.h"

namespace flambeau::runtime {
namespace {

std::atomic<uint64_t> next_trace{1};
std::atomic<SiteSource> g_site_source{nullptr};

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

void hash_number(KeyHasher& h, const ops::Number& number) {
  h.add(number.value.index());
  std::visit(Overloaded{[&](std::complex<double> c) { h.add(c.real(), c.imag()); }, [&](auto v) { h.add(v); }},
             number.value);
}

void hash_type(KeyHasher& h, const Type& type) { h.add(type.dtype, std::span<const int64_t>(type.dims)); }

// What decides an op's result types: everything but which values the arguments are and how they lie in memory.
void hash_signature(KeyHasher& h, const Recorded& argument) {
  h.add(argument.index());
  std::visit(Overloaded{
                 [](std::monostate) {},
                 [&](const ValueView& v) { hash_type(h, {v.dtype, v.view.sizes}); },
                 [&](const std::vector<std::optional<ValueView>>& list) {
                   h.add(list.size());
                   for (const auto& v : list) {
                     h.add(v.has_value());
                     if (v) hash_type(h, {v->dtype, v->view.sizes});
                   }
                 },
                 [&](const RecordedNumber& n) {
                   h.add(n.as_tensor, n.dtype ? static_cast<int>(*n.dtype) : -1, n.parameter);
                   if (n.parameter)
                     h.add(n.number.value.index());
                   else
                     hash_number(h, n.number);
                 },
                 [&](const Dims& dims) { h.add(std::span<const int64_t>(dims)); },
                 [&](const std::string& text) { h.add(std::string_view(text)); },
                 [&](auto plain) { h.add(plain); },
             },
             argument);
}

Key signature(const ops::Row& row, std::span<const Recorded> arguments) {
  KeyHasher h;
  h.add(row.name, arguments.size(), Engine::mesh_hash());
  for (const Recorded& argument : arguments) hash_signature(h, argument);
  return h.key();
}

void hash_view(KeyHasher& h, const ValueView& v) {
  h.add(v.value, v.whole);
  if (!v.whole) h.add(std::span<const int64_t>(v.view.strides), v.view.offset);
}

void hash_views(KeyHasher& h, const Recorded& argument) {
  if (auto* v = std::get_if<ValueView>(&argument)) {
    hash_view(h, *v);
  } else if (auto* list = std::get_if<std::vector<std::optional<ValueView>>>(&argument)) {
    for (const auto& v : *list)
      if (v) hash_view(h, *v);
  }
}

void hash_sharding(KeyHasher& h, const hlo::Sharding& sharding) {
  h.add(sharding.dims.size());
  for (const hlo::Sharding::Dim& dim : sharding.dims) {
    h.add(dim.axes.size(), dim.open);
    for (const std::string& axis : dim.axes) h.add(std::string_view(axis));
  }
}

struct KeyHash {
  size_t operator()(const Key& key) const { return key.low; }
};

// Result types by signature, for the whole process: a warm call runs no lowering.
std::vector<std::optional<Type>> result_types(const Key& key, const ops::Row& row, std::span<const Recorded> arguments) {
  static std::mutex mutex;
  static auto* cache = new std::unordered_map<Key, std::vector<std::optional<Type>>, KeyHash>;
  {
    std::lock_guard lock(mutex);
    if (auto it = cache->find(key); it != cache->end()) return it->second;
  }
  std::vector<std::optional<Type>> types = lower_for_types(row, arguments, Engine::hlo_mesh());
  std::lock_guard lock(mutex);
  return cache->emplace(key, std::move(types)).first->second;
}

}  // namespace

ValueView whole_value(ValueId id, const Type& type) { return {id, View::contiguous(type.dims), type.dtype, true}; }

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

Trace::Trace(TraceKind kind, Trace* outer) : id_(next_trace++), kind_(kind), outer_(outer) {}
Trace::~Trace() = default;

void Trace::reset() {
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

// The value of a storage that this trace has not bound yet is what it held before, or zeros when it held nothing.
ValueId Trace::current_value(Storage& storage, const TensorRef& tensor) {
  if (auto it = bindings_.find(storage.id); it != bindings_.end()) return it->second.value;
  if (outer_ && storage.recording() != id_) return value_of_outer(outer_->current_value(storage, tensor));
  // State that was never written: given a value now, since a constant would hide what later steps write.
  if (kind_ == TraceKind::Capture) Engine::get().materialise(tensor);
  Held held = storage.held();
  if (held.failure) throw Error(*held.failure);
  const bool born = held.recording == id_;
  if (held.recording != 0 && !born)
    raise("[capture] this tensor was made while a step was recorded and was not returned by it, so it has no value outside; return "
          "it from the captured function, or make it before");
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
  DType category = ref.number.category();
  bool common = !ref.as_tensor && (ref.number.as_double() == 0 || std::abs(ref.number.as_double()) == 1);
  n.parameter = kind_ == TraceKind::Strict && !specialise && !common && (category == DType::F64 || category == DType::S64);
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
  call.key = signature(row, arguments);
  std::vector<std::optional<Type>> types = result_types(call.key, row, arguments);
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
  return result_types(signature(row, recorded), row, recorded);
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
  bool covers = tensor.view.offset == 0 && tensor.view.is_contiguous() &&
                tensor.view.elements() * byte_size(tensor.dtype) >= storage.nbytes();
  if (covers) {
    if (types_[value].dtype != tensor.dtype) {
      std::vector<Recorded> arguments{whole_value(value, types_[value]), tensor.dtype};
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

// ---- comparing recordings ---------------------------------------------------------------------------------------------------

std::string to_string(const ops::Number& number) {
  return std::visit(Overloaded{
                        [](bool v) { return std::string(v ? "true" : "false"); },
                        [](std::complex<double> v) { return fmt::format("{}+{}j", v.real(), v.imag()); },
                        [](auto v) { return fmt::format("{}", v); },
                    },
                    number.value);
}

namespace {

std::string to_string(const Recorded& argument) {
  return std::visit(Overloaded{
                        [](std::monostate) -> std::string { return "None"; },
                        [](const ValueView& v) { return fmt::format("a tensor [{}]", fmt::join(v.view.sizes, ", ")); },
                        [](const std::vector<std::optional<ValueView>>& list) { return fmt::format("{} tensors", list.size()); },
                        [](const RecordedNumber& n) { return runtime::to_string(n.number); },
                        [](const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); },
                        [](DType dtype) { return std::string(torch_name(dtype)); },
                        [](const std::string& text) {
                          bool plain = text.size() < 64 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 32 && c < 127; });
                          return plain ? text : fmt::format("{} bytes of data from the host", text.size());
                        },
                        [](auto plain) { return fmt::format("{}", plain); },
                    },
                    argument);
}

std::string name_of(const Call& call) {
  std::string name = call.row ? std::string(call.row->name) : "a loop";
  return call.site.empty() ? name : fmt::format("{} ({})", name, call.site);
}

bool same(const Recorded& a, const Recorded& b) {
  KeyHasher first, second;
  hash_signature(first, a), hash_signature(second, b);
  hash_views(first, a), hash_views(second, b);
  return first.key() == second.key();
}

std::optional<std::string> call_difference(const Call& a, const Call& b, size_t i) {
  if (a.row != b.row) return fmt::format("call {} was {} and became {}", i, name_of(a), name_of(b));
  if (a.loop && b.loop)
    if (auto inner = difference(*a.loop->body, *b.loop->body)) return "inside a loop, " + *inner;
  if (a.manual && b.manual)
    if (auto inner = difference(*a.manual->body, *b.manual->body)) return "inside a manual computation, " + *inner;
  for (size_t k = 0; k < std::min(a.arguments.size(), b.arguments.size()); ++k)
    if (!same(a.arguments[k], b.arguments[k]))
      return fmt::format("argument {} of {} was {} and became {}", k, name_of(a), to_string(a.arguments[k]),
                         to_string(b.arguments[k]));
  if (a.key != b.key || a.random_distance != b.random_distance) return fmt::format("call {}, {}, differs", i, name_of(a));
  return std::nullopt;
}

}  // namespace

std::optional<std::string> difference(const Trace& first, const Trace& second) {
  size_t count = std::min(first.calls().size(), second.calls().size());
  for (size_t i = 0; i < count; ++i)
    if (auto text = call_difference(first.calls()[i], second.calls()[i], i)) return text;
  if (first.calls().size() != second.calls().size()) {
    const Trace& longer = first.calls().size() > count ? first : second;
    return fmt::format("one recording has {} ops and the other {}; the first that only one has is {}", first.calls().size(),
                       second.calls().size(), name_of(longer.calls()[count]));
  }
  for (size_t i = 0; i < std::min(first.externals().size(), second.externals().size()); ++i)
    if (first.externals()[i].storage != second.externals()[i].storage)
      return fmt::format("the {}th tensor that is read from outside is another one, {} and {}", i,
                         first.externals()[i].type.to_string(), second.externals()[i].type.to_string());
  if (first.externals().size() != second.externals().size() || first.key() != second.key())
    return "the recordings read different tensors";
  return std::nullopt;
}

}  // namespace flambeau::runtime
