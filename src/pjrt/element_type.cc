#include "pjrt/element_type.h"

#include <utility>

#include "base/error.h"

namespace flambeau::pjrt {
namespace {

constexpr std::pair<DType, PJRT_Buffer_Type> kTypes[] = {
    {DType::Pred, PJRT_Buffer_Type_PRED},    {DType::S8, PJRT_Buffer_Type_S8},
    {DType::S16, PJRT_Buffer_Type_S16},      {DType::S32, PJRT_Buffer_Type_S32},
    {DType::S64, PJRT_Buffer_Type_S64},      {DType::U8, PJRT_Buffer_Type_U8},
    {DType::U16, PJRT_Buffer_Type_U16},      {DType::U32, PJRT_Buffer_Type_U32},
    {DType::U64, PJRT_Buffer_Type_U64},      {DType::F16, PJRT_Buffer_Type_F16},
    {DType::BF16, PJRT_Buffer_Type_BF16},    {DType::F32, PJRT_Buffer_Type_F32},
    {DType::F64, PJRT_Buffer_Type_F64},      {DType::C64, PJRT_Buffer_Type_C64},
    {DType::C128, PJRT_Buffer_Type_C128},    {DType::F8E4M3FN, PJRT_Buffer_Type_F8E4M3FN},
    {DType::F8E5M2, PJRT_Buffer_Type_F8E5M2}};
static_assert(std::size(kTypes) == kDTypeCount);

}  // namespace

PJRT_Buffer_Type to_pjrt(DType dtype) {
  const auto& [name, type] = kTypes[static_cast<size_t>(dtype)];  // the table is in DType's order
  FLAMBEAU_CHECK(name == dtype, "kTypes is in the order of DType");
  return type;
}

DType from_pjrt(PJRT_Buffer_Type type) {
  for (const auto& [dtype, known] : kTypes) {
    if (known == type) return dtype;
  }
  raise<NotImplemented>(
      "[pjrt] the plugin has an array of element type {} (PJRT_Buffer_Type), which Flambeau has no name for",
      static_cast<int>(type));
}

}  // namespace flambeau::pjrt
