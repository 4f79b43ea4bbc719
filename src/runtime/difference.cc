#include "runtime/difference.h"

#include <algorithm>

namespace flambeau::runtime {
namespace {

std::string name_of(const Call& call) {
  std::string name = call.row ? std::string(call.row->name) : "a loop";
  return call.site.empty() ? name : fmt::format("{} ({})", name, call.site);
}

bool same(const Recorded& a, const Recorded& b) {
  KeyHasher first, second;
  hash_signature(first, a), hash_signature(second, b);
  hash_views(first, a), hash_views(second, b);
  return first.key() == second.key();
}

std::optional<std::string> call_difference(const Call& a, const Call& b, size_t i) {
  if (a.row != b.row) return fmt::format("call {} was {} and became {}", i, name_of(a), name_of(b));
  if (a.loop && b.loop)
    if (auto inner = difference(*a.loop->body, *b.loop->body)) return "inside a loop, " + *inner;
  if (a.manual && b.manual)
    if (auto inner = difference(*a.manual->body, *b.manual->body)) return "inside a manual computation, " + *inner;
  for (size_t k = 0; k < std::min(a.arguments.size(), b.arguments.size()); ++k)
    if (!same(a.arguments[k], b.arguments[k]))
      return fmt::format("argument {} of {} was {} and became {}", k, name_of(a), to_string(a.arguments[k]),
                         to_string(b.arguments[k]));
  if (a.key != b.key || a.random_distance != b.random_distance) return fmt::format("call {}, {}, differs", i, name_of(a));
  return std::nullopt;
}

}  // namespace

std::optional<std::string> difference(const Trace& first, const Trace& second) {
  size_t count = std::min(first.calls().size(), second.calls().size());
  for (size_t i = 0; i < count; ++i)
    if (auto text = call_difference(first.calls()[i], second.calls()[i], i)) return text;
  if (first.calls().size() != second.calls().size()) {
    const Trace& longer = first.calls().size() > count ? first : second;
    return fmt::format("one recording has {} ops and the other {}; the first that only one has is {}", first.calls().size(),
                       second.calls().size(), name_of(longer.calls()[count]));
  }
  for (size_t i = 0; i < std::min(first.externals().size(), second.externals().size()); ++i)
    if (first.externals()[i].storage != second.externals()[i].storage)
      return fmt::format("the {}th tensor that is read from outside is another one, {} and {}", i,
                         first.externals()[i].type.to_string(), second.externals()[i].type.to_string());
  if (first.externals().size() != second.externals().size() || first.key() != second.key())
    return "the recordings read different tensors";
  return std::nullopt;
}

}  // namespace flambeau::runtime
