#include <fmt/ranges.h>

#include "base/error.h"
#include "models/llama3/llama3.h"
#include "models/model.h"

namespace flambeau::models {

std::string known_models() { return fmt::format("llama3: {}", fmt::join(llama3_flavors(), ", ")); }

std::unique_ptr<Model> make_model(const std::string& name, const std::string& flavor, const Overrides& overrides) {
  if (name == "llama3") return std::make_unique<Llama3>(llama3_config(flavor, overrides));
  raise<InvalidArgument>("[model.name] expected a known model, got \"{}\"; choose from {}", name, known_models());
}

}  // namespace flambeau::models
