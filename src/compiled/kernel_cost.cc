#include "compiled/kernel_cost.h"

#include <charconv>
#include <cstdint>

namespace flambeau::compiled {
namespace {

double number_of(std::string_view object, std::string_view key) {
  for (const std::string_view part : {key, std::string_view(":")}) {
    const size_t at = object.find(part);
    if (at == std::string_view::npos) return 0;
    object.remove_prefix(at + part.size());
  }
  const size_t digit = object.find_first_not_of(" \"");
  if (digit == std::string_view::npos) return 0;
  int64_t number = 0;
  std::from_chars(object.data() + digit, object.data() + object.size(), number);
  return number > 0 ? static_cast<double>(number) : 0;
}

}  // namespace

KernelCost kernel_cost(std::string_view backend_config) {
  const size_t at = backend_config.find("\"cost_estimate\"");
  if (at == std::string_view::npos) return {};
  const std::string_view estimate = backend_config.substr(at, backend_config.find('}', at) - at);
  return {number_of(estimate, "\"flops\""), number_of(estimate, "\"bytes_accessed\"")};
}

}  // namespace flambeau::compiled
