// Ops whose results are as long as the data says.
//
// Programs have fixed shapes. These ops compute how many elements there will be, wait for the host to read that one number, and go on
// with programs of that shape; such a wait is counted (Counters::host_waits). A captured step cannot wait, so it refuses them and names
// what to use instead. Everything here is made of ops with kernels of their own; what PyTorch differentiates it differentiates as on the
// CPU.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <algorithm>

#include "base/error.h"
#include "device/device.h"
#include "device/edge.h"
#include "device/fallback.h"
#include "device/register.h"

namespace flambeau::device {
namespace {

using runtime::Engine;

// The numbers in `counts` (int64), for which the host waits.
std::vector<int64_t> wait_for(const at::Tensor& counts, std::string_view op, std::string_view instead) {
  if (Engine::current())
    raise<InvalidArgument>("[capture] aten::{} gives as many elements as the data says, and a captured step has fixed shapes; use {}", op, instead);
  Engine::get().counters().host_waits.fetch_add(1, std::memory_order_relaxed);
  at::Tensor host = counts.cpu();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

constexpr std::string_view kOfMasks = "torch.where, or torch.nonzero_static with a size";

int64_t true_count(const at::Tensor& mask, std::string_view op) { return wait_for(mask.count_nonzero(), op, kOfMasks)[0]; }

// ---- masks -------------------------------------------------------------------------------------------------------------------

at::Tensor true_places(const at::Tensor& self) { return at::nonzero_static(self, true_count(self, "nonzero"), 0); }

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  if (out.scalar_type() != at::kLong)
    raise<InvalidArgument>("nonzero: Expected out tensor to have scalar type Long but got scalar type{}", c10::toString(out.scalar_type()));
  at::Tensor result = true_places(self);
  return out.resize_(result.sizes()).copy_(result);
}

at::Tensor selected(const at::Tensor& self, const at::Tensor& mask) {
  if (mask.scalar_type() != at::kBool) raise<InvalidArgument>("masked_select: expected BoolTensor for mask");
  std::vector<int64_t> sizes = at::infer_size(self.sizes(), mask.sizes());
  at::Tensor flat = mask.expand(sizes).reshape({-1});
  at::Tensor places = at::nonzero_static(flat, true_count(flat, "masked_select")).squeeze(1);
  return self.expand(sizes).reshape({-1}).index_select(0, places);
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  if (self.scalar_type() != out.scalar_type())
    raise<InvalidArgument>("masked_select(): self and result must have the same scalar type");
  at::Tensor result = selected(self, mask);
  return out.resize_(result.sizes()).copy_(result);
}

// ---- counting and repeating ------------------------------------------------------------------------------------------------------

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t minlength) {
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false))
    raise<NotImplemented>("\"bincount_cpu\" not implemented for '{}'", c10::toString(self.scalar_type()));
  if (minlength < 0) raise<InvalidArgument>("minlength should be >= 0");
  const bool weighted = weights && weights->defined();
  if (self.dim() == 1 && self.numel() == 0) return at::zeros({minlength}, self.options().dtype(at::kLong));
  const auto refuse = [] { raise<InvalidArgument>("bincount only supports 1-d non-negative integral inputs."); };
  if (self.dim() != 1) refuse();
  if (weighted && (weights->dim() != 1 || weights->numel() != self.numel()))
    raise<InvalidArgument>("weights should be 1-d and have the same length as input");
  at::Tensor bins = self.to(at::kLong);
  auto ends = wait_for(at::stack({bins.min(), bins.max()}), "bincount", "torch.zeros(n).index_add_(0, x, ones)");
  if (ends[0] < 0) refuse();
  const int64_t size = std::max(ends[1] + 1, minlength);
  at::Tensor added = weighted ? weights->to(weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble) : at::ones_like(bins);
  return at::zeros({size}, added.options()).index_add_(0, bins, added);
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  if (repeats.dim() != 1) raise<InvalidArgument>("repeat_interleave only accept 1D vector as repeat");
  if (repeats.scalar_type() != at::kLong && repeats.scalar_type() != at::kInt)
    raise<NotImplemented>("\"repeat_interleave_cpu\" not implemented for '{}'", c10::toString(repeats.scalar_type()));
  if (repeats.numel() == 0) return at::empty_like(repeats);
  at::Tensor ends = repeats.to(at::kLong).cumsum(0);
  int64_t size = 0;
  if (output_size) {
    size = *output_size;
  } else {
    auto known = wait_for(at::stack({ends[-1], repeats.min().to(at::kLong)}), "repeat_interleave", "its output_size");
    if (known[1] < 0) raise<InvalidArgument>("repeats can not be negative");
    size = known[0];
  }
  // One is added where the next element begins; the last end lies behind the result.
  at::Tensor begins = at::zeros({size + 1}, ends.options()).scatter_add_(0, ends, at::ones_like(ends));
  return begins.slice(0, 0, size).cumsum(0).to(repeats.scalar_type());
}

// ---- distinct values ---------------------------------------------------------------------------------------------------------------

struct Distinct {
  at::Tensor values, ids, counts;  // of runs of equal neighbours; the run of each element
};

Distinct runs_of(const at::Tensor& row, bool counted, std::string_view op) {
  const int64_t n = row.numel();
  at::Tensor first = at::ones({n}, row.options().dtype(at::kBool));
  first.slice(0, 1).copy_(row.slice(0, 1).ne(row.slice(0, 0, n - 1)));
  at::Tensor ids = first.cumsum(0).sub_(1);
  const int64_t count = wait_for(ids[-1], op, "a mask of first occurrences")[0] + 1;
  at::Tensor begins = at::nonzero_static(first, count).squeeze(1);
  at::Tensor counts = at::empty({0}, ids.options());
  if (counted) counts = at::cat({begins, at::full({1}, n, begins.options())}).diff();
  return {row.index_select(0, begins), ids, counts};
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three of_nothing(const at::Tensor& self, bool inverse) {
  auto longs = self.options().dtype(at::kLong);
  return {at::empty({0}, self.options()), inverse ? at::empty(self.sizes(), longs) : at::empty({0}, longs), at::empty({0}, longs)};
}

Three unique2(const at::Tensor& self, bool /*sorted*/, bool return_inverse, bool return_counts) {
  if (self.numel() == 0) return of_nothing(self, return_inverse);
  auto [row, order] = self.reshape({-1}).sort();
  Distinct distinct = runs_of(row, return_counts, "unique");
  at::Tensor inverse = at::empty({0}, distinct.ids.options());
  if (return_inverse) inverse = at::empty_like(order).scatter_(0, order, distinct.ids).view(self.sizes());
  return {distinct.values, inverse, distinct.counts};
}

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted, bool return_inverse) {
  auto [values, inverse, counts] = unique2(self, sorted, return_inverse, false);
  return {values, inverse};
}

void of_slices_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_cpu(op, stack, "along a dimension of a matrix it is not implemented for the tpu device yet");
}

Three unique_consecutive(const at::Tensor& self, bool return_inverse, bool return_counts, std::optional<int64_t> dim) {
  if (dim && self.dim() > 1)
    return at::native::call_fallback_fn<&of_slices_on_cpu, at::_ops::unique_consecutive>::call(self, return_inverse, return_counts, dim);
  if (self.numel() == 0) return of_nothing(self, return_inverse);
  Distinct distinct = runs_of(self.reshape({-1}), return_counts, "unique_consecutive");
  return {distinct.values, return_inverse ? distinct.ids.view(self.sizes()) : at::empty({0}, distinct.ids.options()), distinct.counts};
}

}  // namespace

void register_data_dependent() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  torch::Library& m = *library;
  serve<"nonzero", &true_places>(m);
  serve<"nonzero.out", &nonzero_out>(m);
  serve<"masked_select", &selected>(m);
  serve<"masked_select.out", &masked_select_out>(m);
  serve<"bincount", &bincount>(m);
  serve<"repeat_interleave.Tensor", &repeat_interleave>(m);
  serve<"_unique2", &unique2>(m);
  serve<"_unique", &unique>(m);
  serve<"unique_consecutive", &unique_consecutive>(m);
}

}  // namespace flambeau::device
