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

// `where(line)` is the origin of messages.
template <class Where>
std::vector<ParamGroup> read_groups(const toml::array& array, Where&& where) {
  std::vector<ParamGroup> groups;
  for (const toml::node& node : array) {
    const std::string origin = where(node.source().begin.line);
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      raise<InvalidArgument>("{}: optimizer.param_groups: expected tables, got another value; write [[optimizer.param_groups]], or "
                             "[{{pattern = \"norm\", weight_decay = 0.0}}]", origin);
    }
    ParamGroup& group = groups.emplace_back();
    for (const auto& [key, value] : *table) {
      const std::optional<Value> plain = scalar(value);
      if (!plain) {
        raise<InvalidArgument>("{}: optimizer.param_groups: expected one value for {}, got an array, a table or a date; write one value",
                               origin, key.str());
      }
      set_in_group(group, key.str(), *plain, origin);
    }
    if (group.pattern.empty()) {
      raise<InvalidArgument>("{}: optimizer.param_groups: expected a pattern in each group, got none; write pattern = \"norm\", for "
                             "example", origin);
    }
  }
  return groups;
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
    } else if (const auto* array = node.as_array(); array != nullptr && name == "optimizer.param_groups") {
      const auto where = [&](toml::source_index line) { return fmt::format("{}:{}", config.path.string(), line); };
      set_value(config, name, read_groups(*array, where), origin);
    } else {
      raise<InvalidArgument>("{}: {}: expected a number, a text, true or false, got an array or a date; write one value",
                             origin, name);
    }
  }
}

}  // namespace

std::vector<ParamGroup> parse_param_groups(std::string_view text, std::string_view origin) {
  const auto where = [&](toml::source_index) { return std::string(origin); };
  try {
    const toml::table table = toml::parse(fmt::format("groups = {}", text));
    const auto* array = table.size() == 1 ? table["groups"].as_array() : nullptr;
    if (array != nullptr) return read_groups(*array, where);
  } catch (const toml::parse_error&) {
    // The same remedy as for what is TOML but no array.
  }
  raise<InvalidArgument>("{}: expected an array of inline tables, got {}; write '[{{pattern = \"norm\", weight_decay = 0.0}}]'", origin, text);
}

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
