#include "base/dtype.h"

#include <array>

namespace flambeau {
namespace {

struct Names {
  int64_t bytes;
  std::string_view hlo;
  std::string_view torch;
};

constexpr std::array<Names, kDTypeCount> kNames = {{
    {1, "i1", "bool"},
    {1, "i8", "int8"},
    {2, "i16", "int16"},
    {4, "i32", "int32"},
    {8, "i64", "int64"},
    {1, "ui8", "uint8"},
    {2, "ui16", "uint16"},
    {4, "ui32", "uint32"},
    {8, "ui64", "uint64"},
    {2, "f16", "float16"},
    {2, "bf16", "bfloat16"},
    {4, "f32", "float32"},
    {8, "f64", "float64"},
    {8, "complex<f32>", "complex64"},
    {16, "complex<f64>", "complex128"},
    {1, "f8E4M3FN", "float8_e4m3fn"},
    {1, "f8E5M2", "float8_e5m2"},
}};

}  // namespace

int64_t byte_size(DType dtype) { return kNames[static_cast<size_t>(dtype)].bytes; }
std::string_view hlo_name(DType dtype) { return kNames[static_cast<size_t>(dtype)].hlo; }
std::string_view torch_name(DType dtype) { return kNames[static_cast<size_t>(dtype)].torch; }

std::optional<DType> parse_torch_name(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kNames[i].torch == name) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace flambeau
