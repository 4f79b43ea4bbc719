// Batch norm with running statistics that are written in place: functional rows of the table, with two of their results put
// into these tensors. A row cannot stand for them, since the schema of native_batch_norm does not say that it writes.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "base/error.h"
#include "device/device.h"
#include "device/edge.h"
#include "device/register.h"

namespace flambeau::device {
namespace {

using MaybeTensor = const std::optional<at::Tensor>&;
using runtime::CallArgument;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The first `returned` results of a row; those behind them are written into `running`, where it is defined.
std::vector<at::Tensor> call_and_write(std::string_view name, std::span<const CallArgument> arguments, size_t returned,
                                       std::initializer_list<at::Tensor> running) {
  const ops::Row* row = ops::find_row(name);
  FLAMBEAU_CHECK(row, "the table has batch norm");
  std::vector<std::optional<runtime::TensorRef>> into(returned);
  for (const at::Tensor& tensor : running) into.push_back(tensor.defined() ? std::optional(ref_of(tensor)) : std::nullopt);
  auto outputs = runtime::Engine::get().call(*row, arguments, into);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < returned; ++i) results.push_back(make_tensor(outputs[i].storage, *outputs[i].type));
  return results;
}

Three normalise(const at::Tensor& input, MaybeTensor weight, MaybeTensor bias, MaybeTensor running_mean,
                        MaybeTensor running_var, bool training, double momentum, double eps) {
  std::vector<CallArgument> arguments{ref_of(input), ref_or_none(weight), ref_or_none(bias), ref_or_none(running_mean),
                                      ref_or_none(running_var)};
  if (training) arguments.emplace_back(training);
  arguments.emplace_back(runtime::NumberRef{{momentum}, false, {}});
  arguments.emplace_back(eps);
  auto r = training ? call_and_write("aten::_native_batch_norm_legit_functional", arguments, 3,
                                     {running_mean.value_or(at::Tensor()), running_var.value_or(at::Tensor())})
                    : call_and_write("aten::_native_batch_norm_legit_no_training", arguments, 3, {});
  return {r[0], r[1], r[2]};
}

Three normalise_legit(const at::Tensor& input, MaybeTensor weight, MaybeTensor bias, at::Tensor& running_mean,
                              at::Tensor& running_var, bool training, double momentum, double eps) {
  return normalise(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

Four normalise_and_update(const at::Tensor& input, MaybeTensor weight, MaybeTensor bias, at::Tensor& running_mean,
                            at::Tensor& running_var, double momentum, double eps) {
  const CallArgument arguments[] = {ref_of(input),
                                    ref_or_none(weight),
                                    ref_or_none(bias),
                                    ref_of(running_mean),
                                    ref_of(running_var),
                                    runtime::NumberRef{{momentum}, false, {}},
                                    eps};
  auto r = call_and_write("aten::_batch_norm_with_update_functional", arguments, 4, {running_mean, running_var});
  return {r[0], r[1], r[2], r[3]};
}

}  // namespace

void register_batch_norm() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  serve<"native_batch_norm", &normalise>(*library);
  serve<"_native_batch_norm_legit", &normalise_legit>(*library);
  serve<"_batch_norm_with_update", &normalise_and_update>(*library);
}

}  // namespace flambeau::device
