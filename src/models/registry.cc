#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"
#include "models/llama3/llama3.h"
#include "models/model.h"
#include "models/qwen3/qwen3.h"

namespace flambeau::models {
namespace {

struct Family {
  const char* name;
  std::vector<std::string> (*flavors)();
  std::unique_ptr<Model> (*make)(const std::string& flavor, const Overrides& overrides);
};

template <class M>
Family family(const char* name) {
  return {name, &M::flavors, [](const std::string& flavor, const Overrides& overrides) -> std::unique_ptr<Model> {
            return std::make_unique<M>(flavor, overrides);
          }};
}

const Family kFamilies[] = {
    family<Llama3>("llama3"),
    family<Qwen3>("qwen3"),
};

}  // namespace

std::string known_models() {
  std::vector<std::string> lines;
  for (const Family& f : kFamilies) lines.push_back(fmt::format("{}: {}", f.name, fmt::join(f.flavors(), ", ")));
  return fmt::format("{}", fmt::join(lines, "; "));
}

std::unique_ptr<Model> make_model(const std::string& name, const std::string& flavor, const Overrides& overrides) {
  const auto found = std::ranges::find_if(kFamilies, [&](const Family& f) { return f.name == name; });
  if (found == std::end(kFamilies)) {
    raise<InvalidArgument>("[model.name] expected a known model, got \"{}\"; choose from {}", name, known_models());
  }
  return found->make(flavor, overrides);
}

}  // namespace flambeau::models
