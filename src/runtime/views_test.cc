// Views against plain index arithmetic: the forms of common views as a table, the values of random ones through a plugin.
#include "runtime/views.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/error.h"
#include "pjrt/pjrt.h"

namespace flambeau::runtime {
namespace {

using hlo::Builder;
using hlo::Dims;
using hlo::Value;

// ---- view operations as PyTorch defines them ----------------------------------------------------------------------------

View slice(View v, size_t dim, int64_t start, int64_t stop, int64_t step = 1) {
  v.offset += start * v.strides[dim];
  v.sizes[dim] = (stop - start + step - 1) / step;
  v.strides[dim] *= step;
  return v;
}

View select(View v, size_t dim, int64_t index) {
  v.offset += index * v.strides[dim];
  v.sizes.erase(v.sizes.begin() + static_cast<int64_t>(dim));
  v.strides.erase(v.strides.begin() + static_cast<int64_t>(dim));
  return v;
}

View transpose(View v, size_t i, size_t j) {
  std::swap(v.sizes[i], v.sizes[j]);
  std::swap(v.strides[i], v.strides[j]);
  return v;
}

View unsqueeze(View v, size_t dim, int64_t stride = 1) {
  v.sizes.insert(v.sizes.begin() + static_cast<int64_t>(dim), 1);
  v.strides.insert(v.strides.begin() + static_cast<int64_t>(dim), stride);
  return v;
}

View expand(View v, size_t dim, int64_t size) {  // of a size-1 dimension
  v.sizes[dim] = size;
  v.strides[dim] = 0;
  return v;
}

View split(View v, size_t dim, int64_t inner) {  // [n] -> [n / inner, inner]
  v = unsqueeze(v, dim, v.strides[dim] * inner);
  v.sizes[dim] = v.sizes[dim + 1] / inner;
  v.sizes[dim + 1] = inner;
  return v;
}

View merge(View v, size_t dim) {  // dim and the next, where view() would
  v.sizes[dim + 1] *= v.sizes[dim];
  v.sizes.erase(v.sizes.begin() + static_cast<int64_t>(dim));
  v.strides.erase(v.strides.begin() + static_cast<int64_t>(dim));
  return v;
}

View diagonal(View v, size_t i, size_t j) {
  View result = v;
  result.sizes.push_back(std::min(v.sizes[i], v.sizes[j]));
  result.strides.push_back(v.strides[i] + v.strides[j]);
  for (size_t dim : {std::max(i, j), std::min(i, j)}) {
    result.sizes.erase(result.sizes.begin() + static_cast<int64_t>(dim));
    result.strides.erase(result.strides.begin() + static_cast<int64_t>(dim));
  }
  return result;
}

View unfold(View v, size_t dim, int64_t size, int64_t step) {
  v.sizes.push_back(size);
  v.strides.push_back(v.strides[dim]);
  v.sizes[dim] = (v.sizes[dim] - size) / step + 1;
  v.strides[dim] *= step;
  return v;
}

// The base's index of each element, in the view's row-major order.
std::vector<int64_t> indices_of(const View& view) {
  std::vector<int64_t> result;
  Dims index(view.sizes.size(), 0);
  for (int64_t n = view.elements(); n > 0; --n) {
    result.push_back(std::inner_product(index.begin(), index.end(), view.strides.begin(), view.offset));
    for (size_t i = index.size(); i-- > 0 && ++index[i] == view.sizes[i];) index[i] = 0;
  }
  return result;
}

bool reference_overlap(const View& view) {
  std::vector<int64_t> indices = indices_of(view);
  return std::set<int64_t>(indices.begin(), indices.end()).size() != indices.size();
}

std::string text_of(const View& view) {
  return fmt::format("sizes {} strides {} offset {}", view.sizes, view.strides, view.offset);
}

int64_t product(const Dims& dims) { return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>()); }

// ---- running ---------------------------------------------------------------------------------------------------------------

struct Case {
  Dims base;
  View view;
  int64_t elements() const { return product(base); }
};

std::shared_ptr<const pjrt::Client> client() {
  static auto client = pjrt::Client::create(pjrt::Plugin::load(pjrt::find_plugin("cpu")));
  return client;
}

std::vector<int32_t> counting(int64_t count, int32_t first) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Parameter `flat`'s first elements in the shape `dims`.
Value leading(Builder& b, Value flat, const Dims& dims) { return b.reshape(b.slice(flat, {0}, {product(dims)}), dims); }

bool is_writable(const Case& c) { return !reference_overlap(c.view); }

// Reads every case and writes every one that can be, as outputs of one program: base element i holds i, contents -1 - i.
// Gives what differs from index arithmetic; empty when nothing does.
std::string run(std::span<const Case> cases) {
  int64_t largest = 1;
  for (const Case& c : cases) largest = std::max({largest, c.elements(), c.view.elements()});
  hlo::Graph graph;
  Value bases = graph.add_parameter({DType::S32, {largest}}), news = graph.add_parameter({DType::S32, {largest}});
  Builder b(graph);
  std::vector<Value> outputs;
  std::vector<std::pair<std::string, std::vector<int32_t>>> expected;
  for (const Case& c : cases) {
    Value base = leading(b, bases, c.base);
    Value read = read_view(b, base, c.view);
    if (read.dims() != c.view.sizes) return fmt::format("read of {} has shape {}", text_of(c.view), read.dims());
    std::vector<int64_t> indices = indices_of(c.view);
    if (!indices.empty()) {
      outputs.push_back(read);
      expected.emplace_back(fmt::format("read, base {}, {}", c.base, text_of(c.view)),
                            std::vector<int32_t>(indices.begin(), indices.end()));
    }
    if (!is_writable(c)) continue;
    Value written = write_view(b, base, c.view, leading(b, news, c.view.sizes));
    if (written.dims() != c.base) return fmt::format("write to {} has shape {}", text_of(c.view), written.dims());
    if (c.elements() == 0) continue;
    std::vector<int32_t> after = counting(c.elements(), 0);
    for (size_t i = 0; i < indices.size(); ++i) after[static_cast<size_t>(indices[i])] = -1 - static_cast<int32_t>(i);
    outputs.push_back(written);
    expected.emplace_back(fmt::format("write, base {}, {}", c.base, text_of(c.view)), std::move(after));
  }
  if (outputs.empty()) return {};
  graph.set_results(outputs);

  pjrt::CompileOptions fast;  // compiling is all that these tests' time goes into
  fast.overrides["xla_backend_optimization_level"] = int64_t{0};
  fast.overrides["xla_llvm_disable_expensive_passes"] = true;
  auto executable = client()->compile(hlo::print(graph), fast);
  const pjrt::Device& device = client()->addressable_devices()[0];
  std::vector<int32_t> base_data = counting(largest, 0), new_data(base_data.size());
  std::transform(base_data.begin(), base_data.end(), new_data.begin(), [](int32_t i) { return -1 - i; });
  Dims dims{largest};
  auto base = client()->upload({base_data.data(), DType::S32, dims}, device);
  auto contents = client()->upload({new_data.data(), DType::S32, dims}, device);
  const pjrt::Buffer* arguments[] = {base.get(), contents.get()};
  auto results = executable->execute(arguments);
  for (size_t i = 0; i < results.size(); ++i) {
    std::vector<int32_t> got(static_cast<size_t>(results[i]->element_count()));
    results[i]->to_host(got.data());
    if (got != expected[i].second) return fmt::format("{}: expected {}, got {}", expected[i].first, expected[i].second, got);
  }
  return {};
}

// ---- the forms of common views ---------------------------------------------------------------------------------------------

struct FormCase {
  const char* name;
  Dims base;
  View view;
  ViewForm read;
  std::optional<ViewForm> write = read;  // none: overlaps
};

std::vector<FormCase> form_cases() {
  using enum ViewForm;
  auto x = [](Dims dims) { return View::contiguous(std::move(dims)); };
  Dims matrix{6, 8}, batch{4, 6, 10}, packed{2, 5, 24};
  View qkv = split(split(x(packed), 2, 8), 3, 4);  // [2, 5, 3, 2, 4]
  return {
      {"x", matrix, x(matrix), Whole},
      {"scalar", {}, x({}), Whole},
      {"reshape", batch, x({24, 10}), Whole},
      {"unsqueeze, whatever its stride", matrix, unsqueeze(x(matrix), 1, 77), Whole},
      {"expand", matrix, expand(unsqueeze(x(matrix), 1), 1, 3), Reshape, {}},
      {"expand of a row", matrix, expand(slice(x(matrix), 0, 2, 3), 0, 6), Range, {}},
      {"x.t()", matrix, transpose(x(matrix), 0, 1), Transpose},
      {"x.transpose(1, 2)", batch, transpose(x(batch), 1, 2), Transpose},
      {"heads: view, transpose(1, 2)", batch, transpose(split(x(batch), 2, 5), 1, 2), Transpose},
      {"x[2:4]", matrix, slice(x(matrix), 0, 2, 4), Range},
      {"x[3]", matrix, select(x(matrix), 0, 3), Range},
      {"x[3, 4]", matrix, select(select(x(matrix), 0, 3), 0, 4), Range},
      {"empty slice", matrix, slice(x(matrix), 1, 3, 3), Range},
      {"x[:, 2:5]", matrix, slice(x(matrix), 1, 2, 5), Slice},
      {"x[:, 2:5, :]", batch, slice(x(batch), 1, 2, 5), Slice},
      {"chunk along the last dimension", batch, slice(x(batch), 2, 5, 10), Slice},
      {"x[..., 0]", batch, select(x(batch), 2, 0), Slice},
      {"x[..., ::2]", batch, slice(x(batch), 2, 0, 10, 2), Slice},
      {"x[..., 1::3]", batch, slice(x(batch), 2, 1, 10, 3), Slice},
      {"x[::2]", {7, 10}, slice(x({7, 10}), 0, 0, 7, 2), Slice},
      {"x[::2, ::3]", {7, 10}, slice(slice(x({7, 10}), 0, 0, 7, 2), 1, 1, 10, 3), Slice},
      {"x.t()[2:5]", matrix, slice(transpose(x(matrix), 0, 1), 0, 2, 5), Slice},
      {"packed q", packed, transpose(select(qkv, 2, 0), 1, 2), Slice},
      {"packed v", packed, transpose(select(qkv, 2, 2), 1, 2), Slice},
      {"keys repeated for a group of queries", packed, expand(unsqueeze(select(qkv, 2, 1), 3), 3, 4), Slice, {}},
      {"a matrix in a flat buffer, transposed", {50}, View{{5, 7}, {1, 5}, 13}, Slice},
      {"columns regrouped across the base's dimensions", {4, 10}, View{{4, 2, 3}, {10, 3, 1}, 3}, Slice},
      {"patches", {6, 8}, transpose(split(split(x(matrix), 0, 2), 2, 4), 1, 2), Transpose},
      {"diagonal", {6, 6}, diagonal(x({6, 6}), 0, 1), Slice},
      {"windows that touch", {12}, unfold(x({12}), 0, 3, 3), Whole},
      {"windows that overlap", {12}, unfold(x({12}), 0, 3, 2), General, {}},
      {"windows of a batch", {3, 12}, unfold(x({3, 12}), 1, 4, 1), General, {}},
      {"strides that do not divide each other", {20}, View{{2, 3}, {3, 2}, 1}, General},
      {"strides that do not, but do not cross", {20}, View{{2, 2}, {3, 2}, 1}, Slice},
      {"runs that do not divide each other", {40}, View{{3, 2, 2}, {11, 4, 1}, 2}, General},
  };
}

TEST(Views, CommonViewsTakeCheapForms) {
  for (const FormCase& c : form_cases()) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(read_form(c.view, product(c.base)), c.read);
    EXPECT_EQ(overlaps_itself(c.view), !c.write.has_value());
    if (c.write) {
      EXPECT_EQ(write_form(c.view, product(c.base)), *c.write);
    } else {
      EXPECT_THROW(write_form(c.view, product(c.base)), InvalidArgument);
    }
  }
}

TEST(Views, CommonViewsReadAndWriteWhatIndexArithmeticSays) {
  std::vector<Case> cases;
  for (const FormCase& c : form_cases()) cases.push_back({c.base, c.view});
  EXPECT_EQ(run(cases), "");
}

// What is built for a view, in order; constants aside.
std::vector<std::string> operations(const Dims& base, const View& view, bool write) {
  hlo::Graph graph;
  Value x = graph.add_parameter({DType::F32, base}), contents = graph.add_parameter({DType::F32, view.sizes});
  Builder b(graph);
  graph.set_results({write ? write_view(b, x, view, contents) : read_view(b, x, view)});
  std::vector<std::string> names;
  for (const auto& node : graph.body().nodes) {
    std::string name(hlo::op_name(node->op));
    if (!name.ends_with("constant")) names.push_back(name.substr(name.find('.') + 1));
  }
  return names;
}

TEST(Views, BaseDimensionsServeAsTheyAre) {
  using Names = std::vector<std::string>;
  Dims base{4, 6, 10};
  View x = View::contiguous(base);
  struct {
    const char* name;
    View view;
    Names read, write;
  } cases[] = {
      {"x", x, {}, {}},
      {"narrow", slice(x, 1, 2, 5), {"slice"}, {"dynamic_update_slice"}},
      {"narrow of the first", slice(x, 0, 1, 3), {"slice"}, {"dynamic_update_slice"}},
      {"steps", slice(x, 1, 1, 6, 4), {"slice"}, {"pad", "pad", "select"}},
      {"select", select(x, 1, 3), {"slice", "reshape"}, {"reshape", "dynamic_update_slice"}},
      {"transpose", transpose(x, 0, 2), {"transpose"}, {"transpose"}},
      {"view", View::contiguous({24, 10}), {"reshape"}, {"reshape"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(operations(base, c.view, false), c.read);
    EXPECT_EQ(operations(base, c.view, true), c.write);
  }
}

TEST(Views, MemoryOrderIsThatOfADenseBase) {
  const struct {
    View view;
    std::optional<View> order;
  } cases[] = {
      {View::contiguous({3, 4}), View{{3, 4}, {4, 1}}},
      {transpose(View::contiguous({3, 4}), 0, 1), View{{3, 4}, {1, 3}}},
      {View{{2, 3, 4, 5}, {60, 1, 15, 3}}, View{{2, 4, 5, 3}, {60, 5, 1, 20}}},  // channels_last
      {View{{4, 1, 2}, {1, 7, 4}}, View{{1, 2, 4}, {2, 1, 2}}},
      {View{{}, {}}, View{{}, {}}},
      {slice(View::contiguous({3, 4}), 1, 0, 4, 2), std::nullopt},
      {expand(View{{3, 1}, {1, 1}}, 1, 2), std::nullopt},
      {View{{2, 2}, {1, 1}}, std::nullopt},
      {View{{0, 2}, {1, 1}}, std::nullopt},
  };
  for (const auto& c : cases) EXPECT_EQ(memory_order(c.view), c.order) << fmt::format("{}", fmt::join(c.view.strides, ", "));
}

TEST(Views, Refusals) {
  hlo::Graph graph;
  Builder b(graph);
  Value base = graph.add_parameter({DType::F32, {2, 3}});
  auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing raised";
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const View& view : {View{{7}, {1}, 0}, View{{2, 3}, {3, 1}, 1}, View{{1}, {1}, -1}, View{{2}, {-1}, 1}, View{{-2}, {1}, 0},
                           View{{2}, {1, 1}, 0}, View{{kHuge, kHuge}, {kHuge, kHuge}, kHuge}, View{{1}, {1}, 6}}) {
    SCOPED_TRACE(text_of(view));
    EXPECT_NE(message([&] { read_view(b, base, view); }).find("within the storage's 6 elements"), std::string::npos);
    EXPECT_THROW(write_form(view, 6), InvalidArgument);
  }
  const std::string overlap =
      "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
      "Please clone() the tensor before performing the operation.";
  for (const View& view : {View{{2, 3}, {0, 1}, 0}, View{{3, 2}, {1, 1}, 0}, View{{2, 2, 2}, {2, 2, 1}, 0}}) {
    Value contents = graph.add_parameter({DType::F32, view.sizes});
    EXPECT_EQ(message([&] { write_view(b, base, view, contents); }), overlap) << text_of(view);
  }
  Value other = graph.add_parameter({DType::S32, {2}}), shorter = graph.add_parameter({DType::F32, {1}});
  const View two{{2}, {1}, 0};
  EXPECT_NE(message([&] { write_view(b, base, two, other); }).find("expected contents tensor<2xf32>"), std::string::npos);
  EXPECT_NE(message([&] { write_view(b, base, two, shorter); }).find("got tensor<1xf32>"), std::string::npos);
}

TEST(Views, OverlapIsExactUpToAMillionElements) {
  struct {
    View view;
    bool overlaps;
  } cases[] = {
      {{{1000, 1000}, {1000, 1}, 0}, false},
      {{{1000, 1000}, {999, 1}, 0}, true},
      {{{1000, 1000}, {1, 1001}, 5}, false},
      {{{999, 999}, {999, 998}, 0}, false},          // coprime strides that just miss each other
      {{{1000, 1000}, {999, 998}, 0}, true},         // 998 x 999 = 999 x 998
      {{{2, 2'000'000}, {1'000'000, 1}, 0}, false},  // does, but not surely by PyTorch's rule
      {{{2, 2'000'000}, {0, 1}, 0}, true},
      {{{1, 0, 5}, {0, 0, 0}, 0}, false},
      {{{1, 1}, {0, 0}, 0}, false},
  };
  for (const auto& c : cases) EXPECT_EQ(overlaps_itself(c.view), c.overlaps) << text_of(c.view);
}

// ---- random views ----------------------------------------------------------------------------------------------------------

// Draws from a list of numbers, so that RapidCheck can make a failing list smaller.
class Choices {
 public:
  explicit Choices(std::vector<uint32_t> numbers) : numbers_(std::move(numbers)) {}
  bool any_left() const { return next_ < numbers_.size(); }
  int64_t below(int64_t bound) { return any_left() ? static_cast<int64_t>(numbers_[next_++]) % bound : 0; }
  int64_t within(int64_t low, int64_t high) { return low + below(high - low + 1); }

 private:
  std::vector<uint32_t> numbers_;
  size_t next_ = 0;
};

auto random_numbers() {  // 5040: every small bound divides it
  return rc::gen::resize(rc::kNominalSize, rc::gen::container<std::vector<uint32_t>>(24, rc::gen::inRange<uint32_t>(0, 5040)));
}

View random_operation(View v, Choices& choose) {
  int64_t operation = choose.below(9);
  if (operation == 0) return unsqueeze(v, static_cast<size_t>(choose.below(std::ssize(v.sizes) + 1)), choose.below(20));
  if (v.sizes.empty()) return v;
  size_t rank = v.sizes.size(), i = static_cast<size_t>(choose.below(static_cast<int64_t>(rank)));
  size_t j = (i + 1) % rank;
  int64_t n = v.sizes[i];
  switch (operation) {
    case 1: return transpose(v, i, static_cast<size_t>(choose.below(static_cast<int64_t>(rank))));
    case 2: return n == 1 ? expand(v, i, choose.within(1, 3)) : v;
    case 3: return n > 0 ? select(v, i, choose.below(n)) : v;
    case 4: {
      int64_t start = choose.within(0, n);
      return slice(v, i, start, choose.within(start, n), choose.within(1, 3));
    }
    case 5: {
      int64_t inner = choose.within(1, 4);
      return n % inner == 0 ? split(v, i, inner) : v;
    }
    case 6: return j == i + 1 && v.strides[i] == v.strides[j] * v.sizes[j] ? merge(v, i) : v;
    case 7: return j != i ? diagonal(v, i, j) : v;
    default: {
      int64_t size = choose.within(1, 4);
      return size <= n ? unfold(v, i, size, choose.within(1, 3)) : v;
    }
  }
}

Case chain_of_operations(std::vector<uint32_t> numbers) {
  Choices choose(std::move(numbers));
  Case c;
  for (int64_t rank = choose.within(0, 4); rank > 0; --rank) c.base.push_back(choose.below(20) == 19 ? 0 : choose.within(1, 8));
  c.view = View::contiguous(c.base);
  while (choose.any_left()) {
    View next = random_operation(c.view, choose);
    if (next.elements() <= 4096) c.view = std::move(next);
  }
  return c;
}

Case raw_as_strided(std::vector<uint32_t> numbers) {
  Choices choose(std::move(numbers));
  Case c;
  for (int64_t rank = choose.within(0, 4); rank > 0; --rank) {
    c.view.sizes.push_back(choose.within(1, 4));
    c.view.strides.push_back(choose.below(2) == 0 ? choose.below(7) : choose.below(40));
  }
  c.view.offset = choose.below(12);
  c.base = {c.view.extent() + choose.below(12)};
  int64_t factor = choose.within(1, 6);  // the base's shape is not the view's business
  if (c.base[0] % factor == 0) c.base = {factor, c.base[0] / factor};
  return c;
}

// Property of `count` programs of 40 cases; the same each time unless RC_PARAMS says otherwise.
void expect_property(const char* name, int count, Case (*make)(std::vector<uint32_t>)) {
  rc::detail::TestParams params;
  params.seed = 20;
  params.maxSuccess = count;
  params.disableShrinking = true;  // the message names the one view that failed, and smaller programs take a second each
  if (std::getenv("RC_PARAMS") != nullptr) params = rc::detail::configuration().testParams;
  auto lists = rc::gen::container<std::vector<std::vector<uint32_t>>>(40, random_numbers());
  rc::detail::TestMetadata metadata{.id = name, .description = name};
  auto result = rc::detail::checkTestable(
      [&] {
        std::vector<Case> cases;
        for (auto& list : *lists) cases.push_back(make(std::move(list)));
        for (const Case& c : cases) RC_ASSERT(overlaps_itself(c.view) == reference_overlap(c.view));
        std::string difference = run(cases);
        if (!difference.empty()) RC_FAIL(difference);
      },
      metadata, params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  EXPECT_TRUE(result.is<rc::detail::SuccessResult>()) << text.str();
}

TEST(Views, RandomChainsOfOperations) { expect_property("chains of view operations", 6, chain_of_operations); }
TEST(Views, RandomAsStrided) { expect_property("as_strided", 4, raw_as_strided); }

// Most random views must not end in the general form, or the tests above would say little of the others.
TEST(Views, RandomCasesCoverEveryForm) {
  std::array<int, 6> seen{};
  rc::Random random(7);
  auto numbers = random_numbers();
  for (int i = 0; i < 1000; ++i) {
    Case c = (i % 2 ? raw_as_strided : chain_of_operations)(numbers(random.split()).value());
    ++seen[static_cast<size_t>(read_form(c.view, c.elements()))];
  }
  for (int count : seen) EXPECT_GE(count, 5) << fmt::format("{}", fmt::join(seen, " "));
}

}  // namespace
}  // namespace flambeau::runtime
