// Every row of the op table against torch CPU: shapes, dtypes, values, refusals. See op_case.h for the cases.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include "base/hash.h"
#include "evaluate.h"
#include "op_case.h"
#include "ops/op.h"

namespace flambeau::op_test {

namespace {

// ---- tensors ----------------------------------------------------------------------------------------------------------------

std::vector<double> draw(const TensorSpec& spec, at::ScalarType dtype, int64_t n, uint64_t seed) {
  std::mt19937_64 engine(seed);
  auto uniform = [&] { return static_cast<double>(engine() >> 11) * 0x1p-53; };
  bool floating = at::isFloatingType(dtype);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& v : values) {
    v = spec.low + (spec.high - spec.low) * uniform();
    if (floating) continue;
    v = std::floor(v);
    if (dtype == at::kByte) v = std::abs(v);
    if (dtype == at::kBool) v = static_cast<double>(engine() & 1);
    if (spec.is_nonzero && v == 0) v = 1;
  }
  if (spec.is_distinct) {
    std::iota(values.begin(), values.end(), floating || dtype == at::kByte ? 0.0 : std::floor(static_cast<double>(-n) / 2));
    std::shuffle(values.begin(), values.end(), engine);
  }
  if (spec.is_special && floating) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr double kSpecial[] = {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf, 0.0, -0.0};
    for (size_t i = 0; i < values.size(); ++i)
      if (engine() % 2 == 0) values[i] = kSpecial[engine() % std::size(kSpecial)];
  }
  return values;
}

// How a tensor lies in its storage.
enum class Layout { Contiguous, Transposed, Stepped, Offset };

// One way to run a case: the shapes of x, y, z where they are free, and the dtypes of x (and z) and y.
struct Variant {
  std::array<Shape, 3> shapes;
  at::ScalarType dtype, second;
  Layout layout = Layout::Contiguous;
  std::string to_string() const {
    constexpr std::string_view kLayouts[] = {"contiguous", "transposed", "stepped", "offset"};
    return fmt::format("{} {} [{}] [{}] [{}] {}", c10::toString(dtype), c10::toString(second), fmt::join(shapes[0], ","),
                       fmt::join(shapes[1], ","), fmt::join(shapes[2], ","), kLayouts[static_cast<size_t>(layout)]);
  }
};

at::Tensor laid_out(const at::Tensor& t, Layout layout) {
  if (!t.defined()) return t;
  if (layout == Layout::Transposed && t.dim() < 2) layout = Layout::Stepped;
  if (layout == Layout::Stepped && t.dim() == 0) layout = Layout::Offset;
  at::Tensor place;
  switch (layout) {
    case Layout::Contiguous: return t;
    case Layout::Transposed: place = at::zeros_like(t.transpose(0, -1), at::MemoryFormat::Contiguous).transpose(0, -1); break;
    case Layout::Stepped: {
      Shape sizes = t.sizes().vec();
      sizes.back() *= 2;
      place = at::zeros(sizes, t.options()).slice(-1, 0, std::nullopt, 2);
      break;
    }
    case Layout::Offset: place = at::zeros({t.numel() + 5}, t.options()).slice(0, 3, 3 + t.numel()).view(t.sizes()); break;
  }
  place.copy_(t);
  return place;
}

at::Tensor make_tensor(const TensorSpec& spec, const Variant& variant, uint64_t seed) {
  at::ScalarType dtype = spec.dtype.value_or(spec.role == 1 ? variant.second : variant.dtype);
  if (spec.make) return laid_out(spec.make(dtype), variant.layout);
  Shape shape = spec.dims.value_or(variant.shapes[static_cast<size_t>(spec.role)]);
  int64_t n = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  auto drawn = [&](at::ScalarType of, uint64_t with) {
    auto values = draw(spec, of, n, with);
    return at::from_blob(values.data(), shape, at::kDouble).clone();
  };
  at::Tensor t = at::isComplexType(dtype) ? at::complex(drawn(at::kDouble, seed), drawn(at::kDouble, ~seed)) : drawn(dtype, seed);
  return laid_out(t.to(dtype), variant.layout);
}

// ---- arguments ----------------------------------------------------------------------------------------------------------------

c10::IValue make_argument(const Arg& arg, const c10::Type& type, const Variant& variant, uint64_t seed);

c10::IValue make_list(const Arg& arg, const c10::TypePtr& element, const Variant& variant, uint64_t seed) {
  if (auto* ints = std::get_if<Shape>(&arg.value)) return *ints;
  if (auto* one = std::get_if<int64_t>(&arg.value)) return Shape{*one};
  c10::impl::GenericList list(element);
  for (const Arg& item : std::get<std::vector<Arg>>(arg.value)) list.push_back(make_argument(item, *element, variant, ++seed));
  return list;
}

c10::IValue make_argument(const Arg& arg, const c10::Type& type, const Variant& variant, uint64_t seed) {
  if (std::holds_alternative<None>(arg.value)) return {};
  switch (type.kind()) {
    case c10::TypeKind::OptionalType: return make_argument(arg, *type.containedType(0), variant, seed);
    case c10::TypeKind::ListType: return make_list(arg, type.containedType(0), variant, seed);
    case c10::TypeKind::TensorType: return make_tensor(std::get<TensorSpec>(arg.value), variant, seed);
    case c10::TypeKind::FloatType:
      if (auto* i = std::get_if<int64_t>(&arg.value)) return static_cast<double>(*i);
      return std::get<double>(arg.value);
    case c10::TypeKind::StringType: return std::get<std::string>(arg.value);
    case c10::TypeKind::NumberType:
      if (auto* d = std::get_if<double>(&arg.value)) return *d;
      if (auto* u = std::get_if<uint64_t>(&arg.value)) return c10::Scalar(*u);
      if (auto* z = std::get_if<std::complex<double>>(&arg.value)) return c10::complex<double>(*z);
      [[fallthrough]];
    default:
      if (auto* flag = std::get_if<bool>(&arg.value)) return *flag;
      if (auto* t = std::get_if<at::ScalarType>(&arg.value)) return static_cast<int64_t>(*t);
      return std::get<int64_t>(arg.value);
  }
}

Call make_call(const OpCase& c, const c10::OperatorHandle& op, const Variant& variant, bool numbers_known) {
  Call call{op, {}, numbers_known};
  size_t next = 0;
  for (const c10::Argument& argument : op.schema().arguments()) {
    uint64_t seed = Hasher().add(c.op).add(next).value();
    if (says_where(argument)) call.arguments.emplace_back();
    else if (next < c.args.size()) call.arguments.push_back(make_argument(c.args[next++], *argument.type(), variant, seed));
    else if (argument.default_value()) call.arguments.push_back(*argument.default_value());
    else throw std::invalid_argument(fmt::format("{}: argument {} is missing", c.op, argument.name()));
  }
  if (next != c.args.size()) throw std::invalid_argument(fmt::format("{}: too many arguments", c.op));
  return call;
}

// ---- variants -----------------------------------------------------------------------------------------------------------------

const std::array<Shape, 3> kPlain = {{{3, 5}, {3, 5}, {3, 5}}};
const std::array<Shape, 3> kZeroDimSecond = {{{3, 5}, {}, {5}}};
const std::vector<std::array<Shape, 3>> kFurther = {
    {{{}, {}, {}}}, {{{0, 4}, {0, 4}, {4}}}, {{{2, 1, 4}, {3, 1}, {1, 1}}}, {{{5}, {3, 5}, {}}}, {{{3, 4}, {3, 5}, {3, 5}}},
};

const DTypes kPaired = {at::kBool, at::kByte, at::kInt, at::kLong, at::kBFloat16, at::kFloat};

bool one_of(at::ScalarType t, const DTypes& few) { return std::find(few.begin(), few.end(), t) != few.end(); }

bool takes_free_shape(const Arg& arg) {
  if (auto* t = std::get_if<TensorSpec>(&arg.value)) return !t->dims && !t->make;
  if (auto* list = std::get_if<std::vector<Arg>>(&arg.value)) return std::any_of(list->begin(), list->end(), takes_free_shape);
  return false;
}

// Every dtype on the plain shapes; pairs of a few dtypes, also with a 0-dim second operand (promotion_test has the whole table);
// in an op's first case further shapes with three dtypes.
std::vector<Variant> variants(const OpCase& c, bool first) {
  std::vector<Variant> all;
  bool free = std::any_of(c.args.begin(), c.args.end(), takes_free_shape);
  for (at::ScalarType t : c.options.dtypes) {
    all.push_back({kPlain, t, t});
    if (c.options.pairs && one_of(t, kPaired))
      for (at::ScalarType u : c.options.dtypes) {
        if (u != t && one_of(u, kPaired)) all.push_back({kPlain, t, u});
        if (one_of(t, {at::kBool, at::kByte, at::kBFloat16}) && one_of(u, {at::kShort, at::kLong, at::kHalf, at::kDouble}))
          all.push_back({kZeroDimSecond, t, u});
      }
    if (first && free && one_of(t, {at::kLong, at::kBFloat16, at::kFloat}))
      for (const auto& shapes : kFurther) all.push_back({shapes, t, t});
  }
  return all;
}

// ---- comparison ------------------------------------------------------------------------------------------------------------------

struct Tolerance {
  double rtol, atol;
};

// Those of torch.testing.assert_close.
Tolerance tolerance(const OpCase& c, at::ScalarType dtype) {
  for (const auto& wider : c.options.tolerances)
    if (wider.dtype == dtype) return {wider.rtol, wider.atol};
  switch (dtype) {
    case at::kHalf: return {1e-3, 1e-5};
    case at::kBFloat16: return {1.6e-2, 1e-5};
    case at::kFloat:
    case at::kComplexFloat: return {1.3e-6, 1e-5};
    case at::kDouble:
    case at::kComplexDouble: return {1e-7, 1e-7};
    default: return {0, 0};
  }
}

// An explanation, or nothing when the tensors agree.
std::string difference(const OpCase& c, const at::Tensor& ours, const at::Tensor& theirs) {
  if (!ours.defined() || !theirs.defined())
    return (!ours.defined() || ours.numel() == 0) && (!theirs.defined() || theirs.numel() == 0) ? "" : "one output is not given";
  if (ours.scalar_type() != theirs.scalar_type())
    return fmt::format("dtype {}, torch has {}", c10::toString(ours.scalar_type()), c10::toString(theirs.scalar_type()));
  if (ours.sizes() != theirs.sizes())
    return fmt::format("shape [{}], torch has [{}]", fmt::join(ours.sizes(), ","), fmt::join(theirs.sizes(), ","));
  if (c.options.meta_only) return !at::isFloatingType(ours.scalar_type()) || ours.isfinite().all().item<bool>() ? "" : "a value is not finite";
  Tolerance t = tolerance(c, ours.scalar_type());
  if (at::isComplexType(ours.scalar_type()))
    return at::allclose(ours, theirs, t.rtol, t.atol, true) ? "" : "complex values differ";
  if (t.rtol == 0) {
    if (ours.equal(theirs)) return "";
  }
  at::Tensor a = ours.to(at::kDouble).contiguous().flatten(), e = theirs.to(at::kDouble).contiguous().flatten();
  for (int64_t i = 0; i < a.numel(); ++i) {
    double x = a.data_ptr<double>()[i], y = e.data_ptr<double>()[i];
    if ((std::isnan(x) && std::isnan(y)) || x == y) continue;
    if (!(std::abs(x - y) <= t.atol + t.rtol * std::abs(y)) || std::isinf(y))
      return fmt::format("element {} is {}, torch has {}", i, x, y);
  }
  return "";
}

Outcome reference(const OpCase& c, const Call& call, bool exactly = false) {
  return c.options.reference ? Outcome{.raised = false, .kind = {}, .error = {}, .outputs = c.options.reference(call.arguments)} : on_cpu(call, exactly);
}

constexpr std::string_view kNotImplemented = "NotImplementedError";

// A kernel that the CPU alone lacks.
bool is_cpu_gap(const Outcome& outcome) {
  return outcome.raised && (outcome.error.find("not implemented for 'Half'") != std::string::npos ||
                            outcome.error.find("not implemented for 'BFloat16'") != std::string::npos);
}

// The result of double precision, rounded to the dtypes of `like`: PyTorch's CPU kernels round float16 and bfloat16 in the midst of
// some ops, and where terms cancel or a function jumps, the better answer is another one.
Outcome rounded_once(const OpCase& c, const Call& call, const Outcome& like) {
  Outcome exact = reference(c, call, true);
  for (size_t i = 0; i < std::min(exact.outputs.size(), like.outputs.size()); ++i)
    if (exact.outputs[i].defined() && is_narrow(like.outputs[i])) exact.outputs[i] = exact.outputs[i].to(like.outputs[i].scalar_type());
  return exact;
}

// How our outcome differs from theirs; nothing where it does not. What the device does not have the CPU is asked for, which raises the same.
std::string compare(const OpCase& c, const Outcome& ours, const Outcome& theirs) {
  if (ours.raised && theirs.raised)
    return ours.kind == theirs.kind || ours.kind == kNotImplemented ? "" : fmt::format("raised {} ({}); torch raises {} ({})", ours.kind, ours.error, theirs.kind, theirs.error);
  if (ours.raised) return fmt::format("raised: {}", ours.error);
  if (theirs.raised) return fmt::format("did not raise; torch says: {}", theirs.error);
  if (ours.outputs.size() != theirs.outputs.size()) return fmt::format("{} outputs, torch has {}", ours.outputs.size(), theirs.outputs.size());
  for (size_t i = 0; i < ours.outputs.size(); ++i) {
    const auto& skipped = c.options.skip_outputs;
    if (std::find(skipped.begin(), skipped.end(), static_cast<int>(i)) != skipped.end()) continue;
    if (std::string text = difference(c, ours.outputs[i], theirs.outputs[i]); !text.empty())
      return ours.outputs.size() == 1 ? text : fmt::format("output {}: {}", i, text);
  }
  return "";
}

// A difference from PyTorch that is known and right, or PyTorch's own fault.
struct Excuse {
  std::string_view op;      // of the form that is called
  std::string_view ours;    // in our error; empty: nothing was raised
  std::string_view theirs;  // the same of PyTorch's
  std::string_view why;
};
constexpr std::string_view kUncastable = "can't be cast to the desired output type Bool", kNoKernel = "not implemented for 'Bool'";
constexpr Excuse kExcuses[] = {
    {"aten::cumsum_", kUncastable, kNoKernel, "refused by the rules of types here, by a missing kernel there"},
    {"aten::cumprod_", kUncastable, kNoKernel, "the same"},
    {"aten::cumsum_", kUncastable, "", "which is not asked for where there is nothing to compute"},
    {"aten::cumprod_", kUncastable, "", "the same"},
    {"aten::addbmm_", "doesn't match the broadcast shape", "", "gives its target another shape there"},
    {"aten::im2col", "Expected 3D or 4D", "Dimension out of range", "looks for a dimension there before it checks how many there are"},
    {"aten::_scaled_dot_product_fused_attention_overrideable_backward", "DotThunk::Execute: BF16 x BF16 = F32", "",
     "the CPU plugin has no such product for some layouts of its operands"},
};

bool says(const Outcome& outcome, std::string_view text) { return text.empty() ? !outcome.raised : outcome.raised && outcome.error.find(text) != std::string::npos; }

bool is_excused(const Call& call, const Outcome& ours, const Outcome& theirs) {
  const std::string op = c10::toString(call.op.operator_name());
  return std::ranges::any_of(kExcuses, [&](const Excuse& excuse) { return op == excuse.op && says(ours, excuse.ours) && says(theirs, excuse.theirs); });
}


// ---- plans ---------------------------------------------------------------------------------------------------------------------

// A call that will be compared.
struct Planned {
  const OpCase* origin;
  std::string what;
  Call call;
  Outcome theirs;
  bool at_once;  // as eager mode does it; otherwise in one program with the others
  Call functional = call;  // that `call` is a form of, or itself
  Outcome ours = {};
};

// How ours differs from theirs; nothing where it does not.
std::string judge(const Planned& p) {
  if (is_cpu_gap(p.theirs)) {
    const Outcome exact = rounded_once(*p.origin, p.functional, p.ours);
    return is_cpu_gap(exact) ? "" : compare(*p.origin, p.ours, exact);
  }
  std::string text = compare(*p.origin, p.ours, p.theirs);
  if (!text.empty() && !p.theirs.raised && std::ranges::any_of(p.theirs.outputs, is_narrow))
    return compare(*p.origin, p.ours, rounded_once(*p.origin, p.functional, p.theirs));
  return text;
}

// The same call of the op's in-place or out form. Out tensors have the results' shapes and lie as `layout` says; none: they are resized.
Call form_call(const Call& call, const c10::OperatorHandle& form, const Outcome& functional, std::optional<Layout> layout) {
  Call written{form, call.arguments, call.numbers_known, call.on_host};
  size_t output = 0;
  for (size_t i = call.arguments.size(); i < form.schema().arguments().size(); ++i) {
    auto out = [&](const at::Tensor& like) {
      if (!like.defined()) return at::empty({0});
      return layout ? laid_out(at::zeros_like(like), *layout) : at::empty({0}, like.options());
    };
    if (form.schema().arguments()[i].type()->kind() == c10::TypeKind::ListType) {
      c10::List<at::Tensor> list;
      while (output < functional.outputs.size()) list.push_back(out(functional.outputs[output++]));
      written.arguments.emplace_back(std::move(list));
    } else {
      written.arguments.emplace_back(out(output < functional.outputs.size() ? functional.outputs[output] : at::Tensor()));
      ++output;
    }
  }
  return written;
}

// The same with dense arguments. Values do not depend on strides; some of PyTorch's own kernels take strided tensors for dense ones
// (the indices of adaptive_max_pool3d_backward).
Call dense(Call call) {
  for (c10::IValue& value : call.arguments)
    if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().contiguous();
  return call;
}

// A form gives what the functional op gives. PyTorch is asked only whether it refuses to write in place: some of its own kernels write
// into strided or empty out tensors as if these were dense, and some of its out forms fail.
Outcome of_form(const Call& call, bool is_out_form, const Outcome& functional) {
  if (is_out_form) return functional;
  Outcome theirs = on_cpu(call);
  for (size_t i = 0; i < std::min(theirs.outputs.size(), functional.outputs.size()); ++i) {
    const at::Tensor& value = functional.outputs[i];
    if (theirs.outputs[i].defined() && value.defined() && theirs.outputs[i].scalar_type() == value.scalar_type()) theirs.outputs[i] = value;
  }
  return theirs;
}

// Arguments that are 0-dim tensors of role y.
std::vector<size_t> zero_dim_seconds(const OpCase& c, const Call& call) {
  std::vector<size_t> places;
  for (size_t i = 0; i < c.args.size(); ++i)
    if (auto* spec = std::get_if<TensorSpec>(&c.args[i].value); spec && spec->role == 1 && call.arguments[i].isTensor() && call.arguments[i].toTensor().dim() == 0)
      places.push_back(i);
  return places;
}

std::vector<Planned> plan(const std::string& name, const c10::OperatorHandle& op) {
  std::vector<Planned> planned;
  const std::vector<c10::OperatorHandle> forms = forms_of(op);
  size_t count = 0;
  bool first_of_op = true, form_ran = false;
  for (const OpCase& c : all_cases()) {
    if (c.op != name) continue;
    bool first_of_case = true;
    for (Variant variant : variants(c, std::exchange(first_of_op, false))) {
      variant.layout = static_cast<Layout>(count % 4);
      const Call plain = make_call(c, op, variant, count % 2 == 0);
      auto add = [&](const Call& call, std::string_view form, const Outcome* functional = nullptr) -> const Outcome& {
        const bool is_out_form = call.arguments.size() > op.schema().arguments().size();
        Outcome theirs = functional ? of_form(call, is_out_form, *functional) : reference(c, dense(call));
        std::string what = fmt::format("case {} {}{}{}", &c - all_cases().data(), variant.to_string(), call.numbers_known ? "" : " (numbers as parameters)", form);
        bool at_once = theirs.raised && !is_cpu_gap(theirs);
        return planned.emplace_back(Planned{&c, std::move(what), call, std::move(theirs), at_once, functional ? plain : call}).theirs;
      };
      const Outcome theirs = add(plain, "");
      if (count == 0) {
        planned.push_back(planned.back());
        planned.back().what += ", eagerly";
        planned.back().at_once = true;
      }
      if (c.options.pairs && variant.shapes[1].empty() && !theirs.raised) {
        Call mixed = plain;
        mixed.on_host = zero_dim_seconds(c, plain);
        add(mixed, ", 0-dim operand on the CPU");
      }
      if (!theirs.raised && !c.options.reference)
        for (size_t k = 0; k < forms.size(); ++k)
          if (first_of_case || count % (4 * forms.size()) == k)
            add(form_call(plain, forms[k], theirs, static_cast<Layout>((count + k) % 4)), fmt::format(" as {}", c10::toString(forms[k].operator_name())), &theirs);
      if (!forms.empty() && !theirs.raised && !std::exchange(form_ran, true)) {  // a form that is resized, where it is an out form
        add(form_call(plain, forms.back(), theirs, std::nullopt), fmt::format(" as {}, eagerly", c10::toString(forms.back().operator_name())), &theirs);
        planned.back().at_once = true;
      }
      first_of_case = false;
      ++count;
    }
  }
  return planned;
}

void run(std::vector<Planned>& planned) {
  std::vector<Call> together;
  for (const Planned& p : planned)
    if (!p.at_once) together.push_back(p.call);
  auto outcomes = on_device(together);
  size_t next = 0;
  for (Planned& p : planned) {
    p.ours = p.at_once ? on_device_at_once(p.call) : std::move(outcomes[next++]);
    if (p.ours.kind == kNotImplemented && p.origin->options.runs_on_cpu) p.ours = on_device_at_once(p.call, /*may_fall_back=*/true);
  }
}

// ---- the tests -------------------------------------------------------------------------------------------------------------------

std::vector<std::string> tested_ops() {
  std::set<std::string> names;
  for (const OpCase& c : all_cases()) names.insert(c.op);
  return {names.begin(), names.end()};
}

class OpTable : public testing::TestWithParam<std::string> {};

TEST_P(OpTable, AgreesWithTorch) {
  std::string name = GetParam(), overload;
  if (size_t dot = name.find('.'); dot != std::string::npos) {
    overload = name.substr(dot + 1);
    name = name.substr(0, dot);
  }
  ASSERT_NE(ops::find_row(GetParam()), nullptr) << GetParam() << " is not in the table";
  auto planned = plan(GetParam(), c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()));
  run(planned);
  int agreed = 0, failures = 0;
  for (const Planned& p : planned) {
    if (is_excused(p.call, p.ours, p.theirs)) continue;
    std::string text = judge(p);
    agreed += !p.theirs.raised && text.empty();
    if (!text.empty() && ++failures <= 12) ADD_FAILURE() << GetParam() << " " << p.what << ": " << text;
  }
  EXPECT_LE(failures, 12) << "further failures of " << GetParam() << " are not shown";
  EXPECT_GT(agreed, 0) << GetParam() << " was refused in every case: the case is wrong";
}

INSTANTIATE_TEST_SUITE_P(Rows, OpTable, testing::ValuesIn(tested_ops()), [](const auto& info) {
  std::string name = info.param.substr(info.param.find("::") + 2);
  std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

TEST(OpTableRows, HaveCasesAndSchemas) {
  std::set<std::string> tested;
  for (const OpCase& c : all_cases()) tested.insert(c.op);
  for (const ops::Row& row : ops::all_rows()) {
    EXPECT_TRUE(tested.contains(std::string(row.name))) << row.name << " has no case";
    std::string name(row.name.substr(0, row.name.find('.')));
    std::string overload(row.name.size() > name.size() ? row.name.substr(name.size() + 1) : "");
    EXPECT_TRUE(c10::Dispatcher::singleton().findSchema({name, overload}).has_value()) << row.name << " is not an op of PyTorch";
  }
}

}  // namespace

}  // namespace flambeau::op_test
