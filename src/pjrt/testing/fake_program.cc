#include "pjrt/testing/fake_program.h"

#include <charconv>

#include "base/error.h"
#include "base/wire.h"

namespace flambeau::pjrt::fake {
namespace {

// `text` starts with a parenthesis: what is in it, which is then taken off `text`. Strings may hold anything.
std::string_view take_parenthesised(std::string_view& text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' && (i == 0 || text[i - 1] != '\\')) quoted = !quoted;
    if (quoted) continue;
    if (c == '(') ++depth;
    if (c == ')' && --depth == 0) {
      const auto inside = text.substr(1, i - 1);
      text.remove_prefix(i + 1);
      return inside;
    }
  }
  raise<InvalidArgument>("the parentheses of @main do not match");
}

// Splits at commas outside of brackets and strings.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  int depth = 0;
  bool quoted = false;
  size_t start = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '(' || c == '[' || c == '{' || c == '<')) ++depth;
    if (!quoted && (c == ')' || c == ']' || c == '}' || (c == '>' && list[i - 1] != '-'))) --depth;
    if (!quoted && depth == 0 && c == ',') {
      const auto part = list.substr(start, i - start);
      if (part.find_first_not_of(" \n\t") != std::string_view::npos) parts.push_back(part);
      start = i + 1;
    }
  }
  return parts;
}

// The first tensor<...> in `text`.
FakeType parse_type(std::string_view text) {
  const size_t open = text.find("tensor<");
  if (open == std::string_view::npos) raise<InvalidArgument>("expected a tensor type, got '{}'", text);
  std::string_view rest = text.substr(open + 7);
  FakeType type;
  while (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') {
    int64_t dimension = 0;
    const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), dimension).ptr;
    type.dims.push_back(dimension);
    rest.remove_prefix(std::min(rest.size(), static_cast<size_t>(end - rest.data()) + 1));  // and the x
  }
  for (int i = 0; i < kDTypeCount; ++i) {
    const std::string_view name = hlo_name(static_cast<DType>(i));
    if (rest.starts_with(name) && (rest.substr(name.size()).starts_with(">") || rest.substr(name.size()).starts_with(","))) {
      type.dtype = static_cast<DType>(i);
      return type;
    }
  }
  raise<InvalidArgument>("unknown element type in '{}'", text);
}

}  // namespace

int64_t FakeType::byte_size() const {
  int64_t size = flambeau::byte_size(dtype);
  for (const int64_t d : dims) size *= d;
  return size;
}

FakeProgram parse_program(std::string_view text) {
  FakeProgram program;
  if (const size_t at = text.find("module @"); at != std::string_view::npos) {
    const auto name = text.substr(at + 8);
    program.name = name.substr(0, name.find_first_of(" {\n"));
  }
  const size_t main = text.find("@main(");
  if (main == std::string_view::npos) raise<InvalidArgument>("the program has no function @main");
  std::string_view rest = text.substr(main + 5);
  const auto arguments = split(take_parenthesised(rest));
  for (size_t i = 0; i < arguments.size(); ++i) {
    program.arguments.push_back(parse_type(arguments[i]));
    if (arguments[i].find("tf.aliasing_output") != std::string_view::npos ||
        arguments[i].find("jax.buffer_donor") != std::string_view::npos) {
      program.donated.push_back(static_cast<int64_t>(i));
    }
  }
  const size_t arrow = rest.find_first_not_of(" \n");
  if (arrow == std::string_view::npos || !rest.substr(arrow).starts_with("->")) return program;  // no results
  rest.remove_prefix(arrow + 2);
  rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(" \n")));
  if (rest.starts_with("(")) {
    for (const auto result : split(take_parenthesised(rest))) program.results.push_back(parse_type(result));
  } else {
    program.results.push_back(parse_type(rest));
  }
  return program;
}

FakeCompileOptions parse_compile_options(std::string_view serialized) {
  FakeCompileOptions options;
  std::vector<std::vector<int64_t>> by_partition;
  for (ProtoReader message(serialized); message.next();) {
    if (message.field() == 4) options.portable = message.integer() != 0;
    if (message.field() != 3) continue;
    for (ProtoReader build(message.bytes()); build.next();) {
      if (build.field() == 4) options.num_replicas = static_cast<int64_t>(build.integer());
      if (build.field() == 5) options.num_partitions = static_cast<int64_t>(build.integer());
      if (build.field() != 9) continue;
      for (ProtoReader assignment(build.bytes()); assignment.next();) {
        if (assignment.field() != 3) continue;
        auto& ids = by_partition.emplace_back();
        std::string_view packed = proto_field(assignment.bytes(), 1);
        for (uint64_t id = 0; !packed.empty() && ProtoReader::take_varint(packed, id);)
          ids.push_back(static_cast<int64_t>(id));
      }
    }
  }
  for (size_t replica = 0; !by_partition.empty() && replica < by_partition[0].size(); ++replica) {
    for (const auto& ids : by_partition) options.device_ids.push_back(ids.at(replica));
  }
  return options;
}

}  // namespace flambeau::pjrt::fake
