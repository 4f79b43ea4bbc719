// Element types, shared by every layer. Names follow StableHLO and PJRT.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace flambeau {

enum class DType : uint8_t {
  Pred, S8, S16, S32, S64, U8, U16, U32, U64, F16, BF16, F32, F64, C64, C128, F8E4M3FN, F8E5M2,
};
inline constexpr int kDTypeCount = 17;

// Bytes of one element in a dense host buffer.
int64_t byte_size(DType dtype);

// StableHLO's spelling: i1, i32, ui8, bf16, f32, complex<f32>, f8E4M3FN.
std::string_view hlo_name(DType dtype);

// PyTorch's spelling: bool, int32, uint8, bfloat16, float32, complex64, float8_e4m3fn.
std::string_view torch_name(DType dtype);

// The inverse of torch_name.
std::optional<DType> parse_torch_name(std::string_view name);

constexpr bool is_float(DType t) {
  return t == DType::F16 || t == DType::BF16 || t == DType::F32 || t == DType::F64 || t == DType::F8E4M3FN ||
         t == DType::F8E5M2;
}
constexpr bool is_complex(DType t) { return t == DType::C64 || t == DType::C128; }
constexpr bool is_signed_integer(DType t) {
  return t == DType::S8 || t == DType::S16 || t == DType::S32 || t == DType::S64;
}
constexpr bool is_unsigned_integer(DType t) {
  return t == DType::U8 || t == DType::U16 || t == DType::U32 || t == DType::U64;
}
constexpr bool is_integer(DType t) { return is_signed_integer(t) || is_unsigned_integer(t); }

}  // namespace flambeau
