// Reading a configuration from TOML; apart because toml++ is costly to compile.
#include <toml++/toml.h>

#include "base/error.h"
#include "base/files.h"
#include "train/config.h"

namespace flambeau::train {
namespace {

std::optional<Value> scalar(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  return std::nullopt;
}

// ["a", "b"] as "a,b".
std::optional<Value> names(const toml::node& node) {
  const auto* array = node.as_array();
  if (!array) return std::nullopt;
  std::string text;
  for (const toml::node& element : *array) {
    const auto* name = element.as_string();
    if (!name) return std::nullopt;
    text += (text.empty() ? "" : ",") + name->get();
  }
  return text;
}

void read_table(Config& config, const toml::table& table, const std::string& prefix) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    const std::string origin = fmt::format("{}:{}", config.path.string(), key.source().begin.line);
    if (const auto* inner = node.as_table()) {
      read_table(config, *inner, name + ".");
    } else if (const std::optional<Value> value = scalar(node)) {
      set_value(config, name, *value, origin);
    } else if (const std::optional<Value> list = is_list_key(name) ? names(node) : std::nullopt) {
      set_value(config, name, *list, origin);
    } else {
      raise<InvalidArgument>("{}: {}: expected a number, a text, true or false, got an array or a date; write one value",
                             origin, name);
    }
  }
}

}  // namespace

Config load_config(const std::filesystem::path& path) {
  Config config;
  config.path = path;
  if (!std::filesystem::exists(path)) {
    raise<IoError>("{}: no such file; give the path of a configuration, for example configs/llama3/debug.toml", path.string());
  }
  const std::string text = read_file(path, 1 << 16);
  try {
    read_table(config, toml::parse(text, path.string()), "");
  } catch (const toml::parse_error& e) {
    raise<InvalidArgument>("{}:{}:{}: not TOML: {}; correct this line", path.string(), e.source().begin.line,
                           e.source().begin.column, e.description());
  }
  return config;
}

}  // namespace flambeau::train
