#include "train/config.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <regex>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"
#include "targets/compile_options.h"

namespace flambeau::train {
namespace {

std::string_view leaf(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// The known key that is closest, by its whole name or by its last part (a right key in the wrong section).
std::string_view nearest(std::string_view name) {
  const auto distance = [&](const Key& key) {
    return std::min(edit_distance(name, key.name), edit_distance(leaf(name), leaf(key.name)) + 2);
  };
  return std::ranges::min_element(keys(), {}, distance)->name;
}

const Key& find(std::string_view name, std::string_view origin) {
  const auto found = std::ranges::find(keys(), name, &Key::name);
  if (found == keys().end()) {
    raise<InvalidArgument>("{}: unknown key {}; did you mean {}?", origin, name, nearest(name));
  }
  return *found;
}

std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) out += fmt::format("\\u{:04X}", static_cast<int>(c));
    else out += c;
  }
  return out + '"';
}

using ParamGroups = std::vector<ParamGroup>;

struct GroupKey {
  std::string_view name;  // of a number of [optimizer]
  std::optional<double> ParamGroup::*slot;
  bool sgd, adam;  // which optimizers look at it
};
constexpr GroupKey kGroupKeys[] = {
    {"lr", &ParamGroup::lr, true, true},           {"weight_decay", &ParamGroup::weight_decay, true, true},
    {"beta1", &ParamGroup::beta1, false, true},    {"beta2", &ParamGroup::beta2, false, true},
    {"eps", &ParamGroup::eps, false, true},        {"momentum", &ParamGroup::momentum, true, false},
    {"dampening", &ParamGroup::dampening, true, false},
};

std::string literal(const Value& value);

std::string literal(const ParamGroups& groups) {
  std::vector<std::string> tables;
  for (const ParamGroup& group : groups) {
    std::string text = "pattern = " + toml_text(group.pattern);
    if (group.name) text += ", name = " + toml_text(*group.name);
    for (const GroupKey& key : kGroupKeys) {
      if (const std::optional<double> number = group.*key.slot) text += fmt::format(", {} = {}", key.name, literal(Value(*number)));
    }
    tables.push_back("{" + text + "}");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

std::string literal(const Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* i = std::get_if<int64_t>(&value)) return fmt::format("{}", *i);
  if (const auto* s = std::get_if<std::string>(&value)) return toml_text(*s);
  if (const auto* groups = std::get_if<ParamGroups>(&value)) return literal(*groups);
  const double d = std::get<double>(value);
  const std::string text = fmt::format("{}", d);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

// nullopt: an optional key that is unset.
std::optional<Value> current(const Key& key, const Config& config) {
  return std::visit(
      [](auto* slot) -> std::optional<Value> {
        if constexpr (requires { slot->has_value(); }) {
          return slot->has_value() ? std::optional<Value>(**slot) : std::nullopt;
        } else {
          return *slot;
        }
      },
      key.slot(const_cast<Config&>(config)));  // only read
}

enum class Type { Bool, Integer, Number, Text, Groups };

Type type_of(const Key& key) {
  Config scratch;
  const Key::Slot slot = key.slot(scratch);
  if (std::holds_alternative<bool*>(slot)) return Type::Bool;
  if (std::holds_alternative<int64_t*>(slot) || std::holds_alternative<std::optional<int64_t>*>(slot)) return Type::Integer;
  if (std::holds_alternative<ParamGroups*>(slot)) return Type::Groups;
  return std::holds_alternative<std::string*>(slot) ? Type::Text : Type::Number;
}

std::string expectation(const Key& key) {
  if (!key.check.expected.empty()) return key.check.expected;
  switch (type_of(key)) {
    case Type::Bool: return "true or false";
    case Type::Integer: return "an integer";
    case Type::Number: return "a number";
    case Type::Text: return "a text";
    case Type::Groups: return "an array of tables";
  }
  return "";
}

[[noreturn]] void refuse(const Key& key, std::string_view got, std::string_view origin) {
  const std::optional<Value> usual = current(key, Config{});
  raise<InvalidArgument>("{}: {}: expected {}, got {}; {}", origin, key.name, expectation(key), got,
                         usual ? fmt::format("the default is {}", literal(*usual)) : "leave it out for the default");
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b, bool within) {
  std::vector<size_t> row(b.size() + 1, 0);
  if (!within) std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return within ? *std::ranges::min_element(row) : row.back();
}

void set_value(Config& config, std::string_view name, const Value& given, std::string_view origin) {
  const Key& key = find(name, origin);
  Value value = given;
  const Type type = type_of(key);
  if (type == Type::Number && std::holds_alternative<int64_t>(value)) value = static_cast<double>(std::get<int64_t>(value));
  const size_t wanted = static_cast<size_t>(type);  // the alternatives of Value stand in the same order
  const bool finite = !std::holds_alternative<double>(value) || std::isfinite(std::get<double>(value));
  if (value.index() != wanted || !finite || !key.check.holds(value, key.check)) refuse(key, literal(given), origin);
  if (const auto* integer = std::get_if<int64_t>(&value); integer != nullptr && *integer > key.check.most) {
    raise<InvalidArgument>("{}: {}: expected at most {}, got {}; lower it", origin, key.name, key.check.most, *integer);
  }
  std::visit(
      [&](auto* slot) {
        using T = std::remove_pointer_t<decltype(slot)>;
        if constexpr (std::is_same_v<T, std::optional<int64_t>>) *slot = std::get<int64_t>(value);
        else if constexpr (std::is_same_v<T, std::optional<double>>) *slot = std::get<double>(value);
        else *slot = std::get<T>(value);
      },
      key.slot(config));
  config.given.emplace(name);
}

void set_from_text(Config& config, std::string_view name, std::string_view text) {
  const Key& key = find(name, "command line");
  Value value = std::string(text);
  int64_t integer = 0;
  double real = 0;
  switch (type_of(key)) {
    case Type::Bool:
      if (text == "true" || text == "false") value = text == "true";
      break;
    case Type::Integer:
      if (parse_whole(text, integer)) value = integer;
      break;
    case Type::Number:
      if (parse_whole(text, real)) value = real;
      break;
    case Type::Text: break;
    case Type::Groups: value = parse_param_groups(text, fmt::format("command line: {}", name)); break;
  }
  set_value(config, name, value, "command line");
  config.from_command_line.emplace(name);
}

void set_in_group(ParamGroup& group, std::string_view name, const Value& value, std::string_view origin) {
  if (name == "pattern") {
    const auto* pattern = std::get_if<std::string>(&value);
    if (pattern == nullptr || pattern->empty()) {
      raise<InvalidArgument>("{}: optimizer.param_groups: expected pattern to be a regular expression, got {}; write one, for example "
                             "\"norm\"", origin, literal(value));
    }
    try {
      const std::regex compiles(*pattern);
    } catch (const std::regex_error& e) {
      raise<InvalidArgument>("{}: optimizer.param_groups: expected a regular expression, got pattern {}: {}; correct it (a dot that "
                             "is meant as one is written \\\\.)", origin, literal(value), e.what());
    }
    group.pattern = *pattern;
    return;
  }
  const std::string checked_as = fmt::format("optimizer.{}", name), checked_at = fmt::format("{}: optimizer.param_groups", origin);
  Config scratch;
  if (name == "name") {
    set_value(scratch, checked_as, value, checked_at);
    group.name = scratch.optimizer.name;
    return;
  }
  const auto key = std::ranges::find(kGroupKeys, name, &GroupKey::name);
  if (key == std::end(kGroupKeys)) {
    std::vector<std::string_view> known{"pattern", "name"};
    for (const GroupKey& k : kGroupKeys) known.push_back(k.name);
    raise<InvalidArgument>("{}: optimizer.param_groups: unknown key {}; a group has {}", origin, name, fmt::join(known, ", "));
  }
  set_value(scratch, checked_as, value, checked_at);
  group.*key->slot = std::get<double>(*current(find(checked_as, origin), scratch));
}

bool is_bool_key(std::string_view name) { return type_of(find(name, "command line")) == Type::Bool; }

bool is_list_key(std::string_view name) {
  return std::ranges::any_of(keys(), [&](const Key& key) { return key.name == name && key.check.list; });
}

void raise_in_config(const Config& config, std::string_view message) {
  raise<InvalidArgument>("{}: {}", config.path.string(), message);
}

Batching batching(const Config& config, int64_t data_parallel_degree) {
  const Config::Training& t = config.training;
  const int64_t context = t.max_context_length;
  // Tokens and sequences say the same thing twice: both may be given if they agree.
  const auto tokens = [&](int64_t in_tokens, int64_t in_sequences, std::string_view tokens_key, std::string_view rows_key) {
    if (in_sequences == 0) return in_tokens;
    int64_t product = 0;
    if (__builtin_mul_overflow(in_sequences, context, &product)) {
      raise_in_config(config, fmt::format("{}: expected a count whose tokens fit in 64 bits, got {}; lower it", rows_key, in_sequences));
    }
    if (config.given.contains(std::string(tokens_key)) && in_tokens != product) {
      raise_in_config(config, fmt::format("{}: expected {} x {} = {} to agree with {}, got {}; remove one of the two", tokens_key,
                                          in_sequences, context, product, rows_key, in_tokens));
    }
    return product;
  };
  const int64_t microbatch = tokens(t.num_tokens_per_microbatch_per_dp_rank, t.sequences_per_microbatch,
                                    "training.num_tokens_per_microbatch_per_dp_rank", "training.sequences_per_microbatch");
  int64_t step = tokens(t.num_tokens_per_train_step, t.sequences_per_train_step, "training.num_tokens_per_train_step",
                        "training.sequences_per_train_step");
  if (microbatch % context != 0) {
    raise_in_config(config, fmt::format("training.num_tokens_per_microbatch_per_dp_rank: expected a multiple of "
                                        "training.max_context_length = {}, got {}; choose for example {}",
                                        context, microbatch, std::max<int64_t>(1, microbatch / context) * context));
  }
  int64_t all_ranks = 0;
  if (__builtin_mul_overflow(microbatch, data_parallel_degree, &all_ranks)) {
    raise_in_config(config, fmt::format("training.num_tokens_per_microbatch_per_dp_rank: expected a count whose {}-fold fits in 64 bits, "
                                        "got {}; lower it", data_parallel_degree, microbatch));
  }
  if (step == -1) step = all_ranks;
  if (step % all_ranks != 0) {
    // In the words of the configuration.
    const bool in_sequences = t.sequences_per_train_step > 0;
    const int64_t unit = in_sequences ? context : 1;
    const int64_t nearest = std::max<int64_t>(1, (step + all_ranks / 2) / all_ranks) * all_ranks;
    const std::string ranks = data_parallel_degree > 1 ? fmt::format(" on each of {} data-parallel ranks", data_parallel_degree) : "";
    raise_in_config(config, fmt::format("training.{}: expected a multiple of {} (a microbatch of {} {}{}), got {}; choose for example {}",
                                        in_sequences ? "sequences_per_train_step" : "num_tokens_per_train_step", all_ranks / unit,
                                        microbatch / unit, in_sequences ? "sequences" : "tokens", ranks, step / unit, nearest / unit));
  }
  return {.context = context, .sequences = all_ranks / context, .accumulation = step / all_ranks};
}

namespace {

void check_optimizer(const Config& config) {
  const Config::Optimizer& o = config.optimizer;
  const auto refuse_with = [&](std::string_view key, std::string_view expected, const std::string& optimizer, std::string_view got,
                               std::string_view remedy) {
    raise_in_config(config, fmt::format("optimizer.{}: expected {} with {}, got {}; {}", key, expected, optimizer, got, remedy));
  };
  const auto check_nesterov = [&](const std::string& name, double momentum, double dampening) {
    if (name == "SGD" && o.nesterov && (momentum == 0 || dampening != 0)) {
      refuse_with("nesterov", "momentum above 0 and dampening 0", name, fmt::format("momentum {} and dampening {}", momentum, dampening),
                  "set for example optimizer.momentum = 0.9, or optimizer.nesterov = false");
    }
  };
  if (o.param_groups.empty()) check_nesterov(o.name, o.momentum, o.dampening);
  for (const ParamGroup& group : o.param_groups) {
    const std::string name = group.name.value_or(o.name);
    for (const GroupKey& key : kGroupKeys) {
      if ((group.*key.slot).has_value() && !(name == "SGD" ? key.sgd : key.adam)) {
        refuse_with("param_groups", fmt::format("no {}", key.name), name, fmt::format("one for pattern \"{}\"", group.pattern), "remove it");
      }
    }
    check_nesterov(name, group.momentum.value_or(o.momentum), group.dampening.value_or(o.dampening));
  }
}

}  // namespace

void check_config(const Config& config) {
  check_optimizer(config);
  frozen_patterns(config);
  batching(config);  // with more ranks there are more conditions
  if (config.device == "cpu" && config.debug.virtual_devices > 1) {
    raise_in_config(config, fmt::format("debug.virtual_devices: expected 1 while device = \"cpu\" (plain PyTorch), got {}; set device = "
                                        "\"tpu\"", config.debug.virtual_devices));
  }
  if (config.device == "cpu" && config.model.attention == "flash") {
    raise_in_config(config, "model.attention: expected auto, dense or chunked while device = \"cpu\" (plain PyTorch), got flash; set it to "
                            "\"chunked\"");
  }
  if (config.activation_checkpoint.mode != "none" && !config.model.scan) {
    raise_in_config(config, fmt::format("activation_checkpoint.mode: expected none while model.scan = false, got {}; set model.scan = true",
                                        config.activation_checkpoint.mode));
  }
  if (config.parallelism.fsdp_reshard_after_forward == "always" && !config.model.scan) {
    raise_in_config(config, "parallelism.fsdp_reshard_after_forward: expected default or never while model.scan = false (layers that are "
                            "written out keep what they gathered), got always; set model.scan = true");
  }
  if (config.parallelism.fsdp_reshard_after_forward == "never" && config.activation_checkpoint.mode == "offload") {
    raise_in_config(config, "parallelism.fsdp_reshard_after_forward: expected default or always while activation_checkpoint.mode = "
                            "\"offload\" (gathered weights would wait in host memory), got never; set it to default");
  }
  try {
    checkpoint_policy(config);
  } catch (const InvalidArgument& e) {
    raise_in_config(config, e.what());
  }
  if (!compile_options(config).empty() && config.device == "cpu") {
    raise_in_config(config, fmt::format("compile.options: expected none while device = \"cpu\" (plain PyTorch compiles nothing), got "
                                        "\"{}\"; remove them, or set device = \"tpu\"", config.compile.options));
  }
  if (config.validator.enable && config.data.held_out == 0) {
    raise_in_config(config, "data.held_out: expected more than 0 while validator.enable = true; set it to 0.05, for example");
  }
  if (config.data.bigram && config.data.held_out == 0) {
    raise_in_config(config, "data.held_out: expected more than 0 while data.bigram = true; set it to 0.05, for example");
  }
  if (config.checkpoint.initial_load_in_hf && config.checkpoint.initial_load_path.empty()) {
    raise_in_config(config, "checkpoint.initial_load_path: expected a Hugging Face folder, got \"\"; "
                            "set it, or checkpoint.initial_load_in_hf = false");
  }
}

std::vector<std::string> frozen_patterns(const Config& config) {
  std::vector<std::string> patterns;
  if (trimmed(config.model.freeze).empty()) return patterns;
  const auto refuse = [&](const std::string& pattern) {
    raise_in_config(config, fmt::format("model.freeze: expected regular expressions with commas between them, got \"{}\"; write for "
                                        "example \"tok_embeddings,norm\"", pattern));
  };
  for (const std::string& part : split(config.model.freeze, ',')) {
    const std::string& pattern = patterns.emplace_back(trimmed(part));
    if (pattern.empty()) refuse(pattern);  // it would match everything
    try {
      const std::regex compiles(pattern);
    } catch (const std::regex_error&) {
      refuse(pattern);
    }
  }
  return patterns;
}

nn::AttentionOptions attention_options(const Config& config) {
  const Config::Model& model = config.model;
  return {.kind = model.attention == "dense"     ? nn::AttentionKind::Dense
                  : model.attention == "chunked" ? nn::AttentionKind::Chunked
                  : model.attention == "flash"   ? nn::AttentionKind::Flash
                                                 : nn::AttentionKind::Auto,
          .blocks = {.q = model.attention_block_q, .kv = model.attention_block_kv}};
}

pjrt::CompileFlags compile_options(const Config& config) {
  try {
    return targets::parse_compile_options(config.compile.options);
  } catch (const InvalidArgument& e) {
    raise_in_config(config, fmt::format("compile.options: {}", e.what()));
  }
}

runtime::CheckpointPolicy checkpoint_policy(const Config& config) {
  using Kind = runtime::CheckpointPolicy::Kind;
  const Config::ActivationCheckpoint& options = config.activation_checkpoint;
  runtime::CheckpointPolicy policy;
  policy.kind = options.mode == "full"     ? Kind::Full
                : options.mode == "budget" ? Kind::Budget
                : options.mode == "none"   ? Kind::None
                                           : Kind::Selective;
  policy.ops = runtime::parse_kept_ops(options.selective_ops);
  policy.budget = options.memory_budget;
  policy.offload = options.mode == "offload";
  policy.keep_gathered = config.parallelism.fsdp_reshard_after_forward == "never";
  return policy;
}

std::string to_toml(const Config& given) {
  // Both ways to say the size of a step are printed, and must agree when they are read back.
  Config config = given;
  Config::Training& t = config.training;
  t.num_tokens_per_microbatch_per_dp_rank = batching(given).sequences * t.max_context_length;
  if (t.sequences_per_train_step > 0) t.num_tokens_per_train_step = t.sequences_per_train_step * t.max_context_length;
  std::string out, section;
  for (const Key& key : keys()) {
    const size_t dot = key.name.find('.');
    const std::string_view own = dot == std::string_view::npos ? "" : key.name.substr(0, dot);
    if (own != section) out += fmt::format("\n[{}]\n", section = own);
    const std::optional<Value> value = current(key, config);
    out += fmt::format("{:<60} # {}\n",
                       value ? fmt::format("{} = {}", leaf(key.name), literal(*value)) : fmt::format("# {} unset", leaf(key.name)),
                       key.doc);
  }
  return out;
}

std::string describe_keys() {
  std::string out;
  const Config usual;
  for (const Key& key : keys()) {
    const std::optional<Value> value = current(key, usual);
    out += fmt::format("  --{:<52} {} ({})\n", key.name, key.doc, value ? literal(*value) : "unset");
  }
  return out;
}

}  // namespace flambeau::train
