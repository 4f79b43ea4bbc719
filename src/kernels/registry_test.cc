// The registry with a kernel of the test: a function of this process that the CPU plugin calls, beside its twin.
#include "kernels/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hlo/builder.h"
#include "ops/kernel_call.h"
#include "pjrt/test_util.h"
#include "xla/ffi/api/ffi.h"

namespace flambeau::kernels {
namespace {

namespace ffi = xla::ffi;
using nlohmann::json;
using targets::KernelForm;
using targets::Target;
using testing::HasSubstr;

// x * factor, which the twin computes as x + x.
ffi::Error scale(ffi::Buffer<ffi::F32> in, ffi::ResultBuffer<ffi::F32> out, double factor) {
  for (size_t i = 0; i < in.element_count(); ++i) out->typed_data()[i] = static_cast<float>(in.typed_data()[i] * factor);
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(scale_handler, scale,
                       ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>().Attr<double>("factor"));

int times_found = 0;

Answer find_double(const Request& request) {
  ++times_found;
  const hlo::Type& type = request.operands.at(0);
  if (type.dtype != DType::F32) return {nullptr, "the kernel is for float32"};
  hlo::Dims dims(type.dims.size());
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
  const json call{{"target", "flambeau.double"},
                  {"attributes", {{"factor", 2.0}}},
                  {"operands", {{{"input", "x"}, {"shape", type.dims}, {"type", "f32"}, {"dims", dims}}}},
                  {"results", {{{"shape", type.dims}, {"type", "f32"}, {"name", "y"}}}}};
  return {std::make_shared<const Calls>(Calls{{"double", call.dump()}}), {}};
}

const Entry kDouble{.name = "double", .form = KernelForm::Ffi, .twin = "aten::add.Tensor", .find = &find_double,
                    .handler = reinterpret_cast<void*>(scale_handler)};

// What a program computes of `in`: by the kernel's call where there is one, by its twin otherwise.
std::vector<float> run(const pjrt::Client& client, const Calls* calls, const std::vector<float>& in) {
  const hlo::Type type{DType::F32, {std::ssize(in)}};
  hlo::Graph graph;
  hlo::Builder b(graph);
  const hlo::Value x = graph.add_parameter(type);
  const hlo::Value y = calls ? ops::kernel_result(b, ops::call_kernel(b, calls->at("double"), {{"x", x}}), "y", type) : b.add(x, x);
  graph.set_results({y});
  const auto buffer = pjrt::upload(client, in, type.dims);
  const pjrt::Buffer* arguments[] = {buffer.get()};
  return pjrt::download(*client.compile(hlo::print(graph))->execute(arguments)[0]);
}

TEST(Registry, GivesAHandlerOfThisProcess) {
  add(kDouble);
  const pjrt::Plugin& plugin = pjrt::Plugin::load(pjrt::find_plugin("cpu"));
  const auto client = pjrt::Client::create(plugin, {{"cpu_device_count", int64_t{1}}});
  const Target target = Target::of(*client);
  ASSERT_EQ(target.kernels, KernelForm::Ffi);
  register_handlers(plugin, target);

  const Request request{.name = "double", .operands = {{DType::F32, {3}}}};
  const Answer answer = find(request, target);
  ASSERT_NE(answer.calls, nullptr) << answer.why_not;
  const std::vector<float> in{1, -2.5, 3};
  EXPECT_EQ(run(*client, answer.calls.get(), in), run(*client, nullptr, in));
  EXPECT_EQ(find(request, target).calls, answer.calls);
  EXPECT_EQ(times_found, 1);
}

TEST(Registry, SaysWhyThereIsNone) {
  const Target tpu = Target::ahead_of_time(targets::chip_of(targets::Generation::V5p), 4);
  const Target cpu{.platform = "cpu", .generation = "cpu", .kernels = KernelForm::Ffi}, old_cpu{.platform = "cpu", .generation = "cpu"};
  EXPECT_EQ(find({.name = "double", .operands = {{DType::F64, {3}}}}, cpu).why_not, "the kernel is for float32");
  EXPECT_EQ(find({.name = "double", .operands = {{DType::F32, {3}}}}, tpu).why_not, "there is no kernel double for tpu");
  EXPECT_EQ(find({.name = "flash_attention", .operands = {}}, old_cpu).why_not, "there is no kernel flash_attention for cpu");
}

TEST(Registry, HasATwinForEachKernel) {
  for (const Entry& entry : entries()) EXPECT_NE(ops::find_row(entry.twin), nullptr) << entry.name;
}

TEST(CallKernel, RefusesWhatDescribesNoKernel) {
  hlo::Graph graph;
  hlo::Builder b(graph);
  const ops::NamedValues inputs{{"x", graph.add_parameter({DType::F32, {3}})}};
  const json good = json::parse(find_double({.name = "double", .operands = {{DType::F32, {3}}}}).calls->at("double"));
  EXPECT_NO_THROW(ops::call_kernel(b, good.dump(), inputs));
  const struct {
    const char *path, *words;
    json value;
  } faults[] = {
      {"/target", "something else than a kernel", "Sharding"},
      {"/attributes/factor", "an attribute factor", json::array({1, 2})},
      {"/operands/0/input", "an operand that this pass does not have", "y"},
      {"/operands/0/type", "an operand", "bf16"},
      {"/results/0/type", "element type", "f9"},
      {"/results", "a text that is none", 7},
  };
  for (const auto& fault : faults) {
    json call = good;
    call[json::json_pointer(fault.path)] = fault.value;
    EXPECT_THAT([&] { ops::call_kernel(b, call.dump(), inputs); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr(fault.words))) << fault.path;
  }
}

}  // namespace
}  // namespace flambeau::kernels
