#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hlo/builder.h"
#include "hlo/elements.h"
#include "hlo/regions.h"

namespace flambeau::hlo {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

std::vector<Type> element_types(std::span<const Value> values) {
  std::vector<Type> types;
  for (Value v : values) types.push_back({v.dtype(), {}});
  return types;
}

// One [low, high] row a dimension.
Literal padding_literal(const Window& window) {
  Dims pairs;
  for (size_t i = 0; i < window.padding_low.size(); ++i)
    pairs.insert(pairs.end(), {window.padding_low[i], window.padding_high[i]});
  return {{DType::S64, {static_cast<int64_t>(window.padding_low.size()), 2}},
          {reinterpret_cast<const char*>(pairs.data()), pairs.size() * sizeof(int64_t)}};
}

// The extent of `size` points that are `dilation` apart.
int64_t dilated(int64_t size, int64_t dilation) { return size == 0 ? 0 : (size - 1) * dilation + 1; }

}  // namespace

// -- what reductions combine with -----------------------------------------------------------------------------------------

void Builder::check_reduction(Op op, Reduction kind, DType dtype) const {
  const bool logical = kind == Reduction::And || kind == Reduction::Or;
  const bool ordered = kind == Reduction::Max || kind == Reduction::Min;
  if (logical && dtype != DType::Pred && !is_integer(dtype))
    fail(op, fmt::format("expected i1 or integer elements to combine by and / or, got {}", hlo_name(dtype)));
  if (ordered && is_complex(dtype))
    fail(op, fmt::format("expected elements with an order to combine by max / min, got {}", hlo_name(dtype)));
}

Value Builder::combine(Reduction kind, Value x, Value y) {
  switch (kind) {
    case Reduction::Sum: return add(x, y);
    case Reduction::Product: return multiply(x, y);
    case Reduction::Max: return maximum(x, y);
    case Reduction::Min: return minimum(x, y);
    case Reduction::And: return logical_and(x, y);
    case Reduction::Or: break;
  }
  return logical_or(x, y);
}

Builder::Body Builder::combine_body(Reduction kind) const {
  return [kind](Builder& b, std::span<const Value> p) { return std::vector{b.combine(kind, p[0], p[1])}; };
}

Value Builder::neutral(Op op, Reduction kind, DType dtype) {
  check_reduction(op, kind, dtype);
  switch (kind) {
    case Reduction::Sum:
    case Reduction::Or: return constant(dtype, 0);
    case Reduction::Product: return constant(dtype, 1);
    case Reduction::Max: return lowest(dtype);
    case Reduction::Min: return highest(dtype);
    case Reduction::And: break;
  }
  return emit_constant(splat({dtype, {}}, encode_integer(dtype, ~uint64_t{0})));
}

// -- sort and reduce
// --------------------------------------------------------------------------------------------------------

std::vector<Value> Builder::sort(std::span<const Value> xs, int64_t dimension, bool stable, const Body& before) {
  constexpr Op op = Op::Sort;
  check_operands(op, xs);
  if (xs.empty()) fail(op, "expected at least one operand, got none");
  check_axis(op, "a dimension", dimension, xs[0].rank());
  std::vector<Type> parameters;
  for (Value x : xs) {
    if (x.dims() != xs[0].dims())
      fail(op, fmt::format("expected operands of equal dimensions, got {} and {}", xs[0].type().to_string(),
                           x.type().to_string()));
    parameters.insert(parameters.end(), 2, Type{x.dtype(), {}});
  }
  Regions regions(*this);
  regions.expect(op, "the order", regions.add(op, parameters, before), std::array{Type{DType::Pred, {}}});
  return emit(op, {xs.begin(), xs.end()}, types_of(xs), {{"dimension", dimension}, {"is_stable", stable}},
              regions.release());
}

Value Builder::reduce(Value x, Dims dimensions, Reduction kind) {
  constexpr Op op = Op::Reduce;
  check_operands(op, {x});
  check_axes(op, "dimensions", dimensions, x.rank());
  check_reduction(op, kind, x.dtype());
  if (dimensions.empty()) return x;
  const Value init = neutral(op, kind, x.dtype());
  return reduce(std::array{x}, std::array{init}, std::move(dimensions), combine_body(kind)).front();
}

std::vector<Value> Builder::reduce(std::span<const Value> xs, std::span<const Value> init, Dims dimensions,
                                   const Body& body) {
  constexpr Op op = Op::Reduce;
  check_operands(op, xs);
  check_operands(op, init);
  if (xs.empty() || xs.size() != init.size())
    fail(op, fmt::format("expected one initial value an operand and at least one, got {} for {}", init.size(), xs.size()));
  check_axes(op, "dimensions", dimensions, xs[0].rank());
  std::sort(dimensions.begin(), dimensions.end());
  std::vector<Type> results;
  for (size_t i = 0; i < xs.size(); ++i) {
    if (xs[i].dims() != xs[0].dims())
      fail(op, fmt::format("expected operands of equal dimensions, got {} and {}", xs[0].type().to_string(),
                           xs[i].type().to_string()));
    if (init[i].type() != Type{xs[i].dtype(), {}})
      fail(op, fmt::format("expected an initial value of type {}, got {}", Type{xs[i].dtype(), {}}.to_string(),
                           init[i].type().to_string()));
    Type& type = results.emplace_back(Type{xs[i].dtype(), {}});
    for (int64_t d = 0; d < xs[i].rank(); ++d)
      if (!std::binary_search(dimensions.begin(), dimensions.end(), d)) type.dims.push_back(xs[i].dim(d));
  }
  std::vector<Type> parameters = element_types(xs);
  const std::vector<Type> elements = parameters;
  parameters.insert(parameters.end(), elements.begin(), elements.end());
  Regions regions(*this);
  regions.expect(op, "the body", regions.add(op, parameters, body), elements);
  std::vector<Value> operands(xs.begin(), xs.end());
  operands.insert(operands.end(), init.begin(), init.end());
  return emit(op, std::move(operands), std::move(results), {{"dimensions", std::move(dimensions)}}, regions.release());
}

// -- windows
// ----------------------------------------------------------------------------------------------------------------

Window Builder::complete(Op op, Window window, size_t rank) const {
  auto fill = [&](auto& entries, auto value, std::string_view what) {
    if (entries.empty()) entries.assign(rank, value);
    if (entries.size() != rank)
      fail(op, fmt::format("expected {} {} of the window, one a dimension, got {}", rank, what, entries.size()));
  };
  fill(window.size, int64_t{1}, "sizes");
  fill(window.strides, int64_t{1}, "strides");
  fill(window.base_dilations, int64_t{1}, "base dilations");
  fill(window.window_dilations, int64_t{1}, "window dilations");
  fill(window.padding_low, int64_t{0}, "low paddings");
  fill(window.padding_high, int64_t{0}, "high paddings");
  fill(window.reversal, false, "reversal flags");
  for (const Dims* entries : {&window.size, &window.strides, &window.base_dilations, &window.window_dilations})
    for (int64_t entry : *entries)
      if (entry < 1)
        fail(op, fmt::format("expected sizes, strides and dilations of at least 1, got [{}]", fmt::join(*entries, ", ")));
  return window;
}

Dims Builder::window_result(Op op, const Dims& input, const Window& window) const {
  Dims result;
  for (size_t i = 0; i < input.size(); ++i) {
    const int64_t padded = dilated(input[i], window.base_dilations[i]) + window.padding_low[i] + window.padding_high[i];
    const int64_t extent = dilated(window.size[i], window.window_dilations[i]);
    if (padded < 0)
      fail(op, fmt::format("expected padding that leaves at least 0 in dimension {}, got {} + {} + {}", i,
                           window.padding_low[i], input[i], window.padding_high[i]));
    result.push_back(padded < extent ? 0 : (padded - extent) / window.strides[i] + 1);
  }
  return result;
}

std::vector<Value> Builder::reduce_window(std::span<const Value> xs, std::span<const Value> init, const Window& given,
                                          const Body& body) {
  constexpr Op op = Op::ReduceWindow;
  check_operands(op, xs);
  check_operands(op, init);
  if (xs.empty() || xs.size() != init.size())
    fail(op, fmt::format("expected one initial value an operand and at least one, got {} for {}", init.size(), xs.size()));
  const Window window = complete(op, given, at(xs[0].rank()));
  if (std::count(window.reversal.begin(), window.reversal.end(), true)) fail(op, "expected a window that is not reversed");
  const Dims dims = window_result(op, xs[0].dims(), window);
  std::vector<Type> results;
  for (size_t i = 0; i < xs.size(); ++i) {
    if (xs[i].dims() != xs[0].dims())
      fail(op, fmt::format("expected operands of equal dimensions, got {} and {}", xs[0].type().to_string(),
                           xs[i].type().to_string()));
    if (init[i].type() != Type{xs[i].dtype(), {}})
      fail(op, fmt::format("expected an initial value of type {}, got {}", Type{xs[i].dtype(), {}}.to_string(),
                           init[i].type().to_string()));
    results.push_back({xs[i].dtype(), dims});
  }
  std::vector<Type> parameters = element_types(xs);
  const std::vector<Type> elements = parameters;
  parameters.insert(parameters.end(), elements.begin(), elements.end());
  Regions regions(*this);
  regions.expect(op, "the body", regions.add(op, parameters, body), elements);
  std::vector<Value> operands(xs.begin(), xs.end());
  operands.insert(operands.end(), init.begin(), init.end());
  return emit(op, std::move(operands), std::move(results),
              {{"window_dimensions", window.size},
               {"window_strides", window.strides},
               {"base_dilations", window.base_dilations},
               {"window_dilations", window.window_dilations},
               {"padding", padding_literal(window)}},
              regions.release());
}

Value Builder::reduce_window(Value x, const Window& window, Reduction kind) {
  check_operands(Op::ReduceWindow, {x});
  const Value init = neutral(Op::ReduceWindow, kind, x.dtype());
  return reduce_window(std::array{x}, std::array{init}, window, combine_body(kind)).front();
}

Value Builder::select_and_scatter(Value x, Value source, Value init, const Window& given, Comparison select) {
  constexpr Op op = Op::SelectAndScatter;
  check_operands(op, {x, source, init});
  const Window window = complete(op, given, at(x.rank()));
  auto is_one = [](int64_t d) { return d == 1; };
  if (!std::all_of(window.base_dilations.begin(), window.base_dilations.end(), is_one) ||
      !std::all_of(window.window_dilations.begin(), window.window_dilations.end(), is_one) ||
      std::count(window.reversal.begin(), window.reversal.end(), true))
    fail(op, "expected a window without dilation and reversal");
  const Type expected{x.dtype(), window_result(op, x.dims(), window)};
  if (source.type() != expected)
    fail(op, fmt::format("expected a source of type {}, one element a window, got {}", expected.to_string(),
                         source.type().to_string()));
  const Type element{x.dtype(), {}};
  if (init.type() != element)
    fail(op, fmt::format("expected an initial value of type {}, got {}", element.to_string(), init.type().to_string()));
  check_reduction(op, Reduction::Max, x.dtype());
  Regions regions(*this);
  const std::array parameters{element, element};
  regions.add(op, parameters,
              [&](Builder& b, std::span<const Value> p) { return std::vector{b.compare(p[0], p[1], select)}; });
  regions.add(op, parameters, combine_body(Reduction::Sum));
  return emit(op, {x, source, init}, std::vector{x.type()},
              {{"window_dimensions", window.size}, {"window_strides", window.strides}, {"padding", padding_literal(window)}},
              regions.release())
      .front();
}

// -- control
// ----------------------------------------------------------------------------------------------------------------

std::vector<Value> Builder::while_loop(std::span<const Value> init, const Body& condition, const Body& body) {
  constexpr Op op = Op::While;
  check_operands(op, init);
  if (init.empty()) fail(op, "expected at least one carried value, got none");
  const std::vector<Type> carry = types_of(init);
  Regions regions(*this);
  regions.expect(op, "the condition", regions.add(op, carry, condition), std::array{Type{DType::Pred, {}}});
  regions.expect(op, "the body", regions.add(op, carry, body), carry);
  return emit(op, {init.begin(), init.end()}, carry, {}, regions.release());
}

std::vector<Value> Builder::for_loop(int64_t trip_count, std::span<const Value> init, const Body& body) {
  if (trip_count < 0 || !integer_fits(DType::S32, trip_count))
    fail(Op::While, fmt::format("expected a trip count in [0, 2^31), got {}", trip_count));
  check_operands(Op::While, init);
  std::vector<Value> carry{constant(DType::S32, 0)};
  carry.insert(carry.end(), init.begin(), init.end());
  std::vector<Value> results = while_loop(
      carry,
      [&](Builder& b, std::span<const Value> p) {
        return std::vector{b.compare(p[0], b.constant(DType::S32, trip_count), Comparison::LT)};
      },
      [&](Builder& b, std::span<const Value> p) {
        std::vector<Value> next = body(b, p);
        next.insert(next.begin(), b.add(p[0], b.constant(DType::S32, 1)));
        return next;
      });
  results.erase(results.begin());
  return results;
}

std::vector<Value> Builder::if_else(Value condition, const Thunk& on_true, const Thunk& on_false) {
  constexpr Op op = Op::If;
  check_operands(op, {condition});
  if (condition.type() != Type{DType::Pred, {}})
    fail(op, fmt::format("expected a condition of type tensor<i1>, got {}", condition.type().to_string()));
  Regions regions(*this);
  std::vector<Type> results;
  for (const Thunk* branch : {&on_true, &on_false}) {
    const Block& block = regions.add(op, {}, [&](Builder& b, std::span<const Value>) { return (*branch)(b); });
    if (branch == &on_true) results = types_of(block.results);
    regions.expect(op, "both branches", block, results);
  }
  return emit(op, {condition}, std::move(results), {}, regions.release());
}

std::vector<Value> Builder::switch_case(Value index, std::span<const Thunk> branches) {
  constexpr Op op = Op::Case;
  check_operands(op, {index});
  if (index.type() != Type{DType::S32, {}})
    fail(op, fmt::format("expected an index of type tensor<i32>, got {}", index.type().to_string()));
  if (branches.empty()) fail(op, "expected at least one branch, got none");
  Regions regions(*this);
  std::vector<Type> results;
  for (const Thunk& branch : branches) {
    const Block& block = regions.add(op, {}, [&](Builder& b, std::span<const Value>) { return branch(b); });
    if (&branch == branches.data()) results = types_of(block.results);
    regions.expect(op, "all branches", block, results);
  }
  return emit(op, {index}, std::move(results), {}, regions.release());
}

}  // namespace flambeau::hlo
