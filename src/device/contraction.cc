#include "device/contraction.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "device/device.h"

namespace flambeau::device {

at::Tensor dot_general(const at::Tensor& x, const at::Tensor& y, at::IntArrayRef x_dims, at::IntArrayRef y_dims,
                       std::optional<at::ScalarType> dtype) {
  if (!is_tpu(x)) {
    const at::ScalarType type = dtype.value_or(x.scalar_type());
    return at::tensordot(x.to(type), y.to(type), x_dims, y_dims);
  }
  static const ops::Row* row = ops::find_row("flambeau::dot_general");
  FLAMBEAU_CHECK(row, "the table has dot_general");
  const runtime::CallArgument arguments[] = {ref_of(x), ref_of(y), x_dims.vec(), y_dims.vec(),
                                             dtype ? runtime::CallArgument(dtype_of(*dtype)) : std::monostate{}};
  return call(*row, arguments);
}

}  // namespace flambeau::device
