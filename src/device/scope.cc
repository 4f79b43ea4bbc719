#include "device/scope.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>

#include "runtime/engine.h"

namespace flambeau::device {
namespace {

// Autograd numbers its nodes as they are made, so a node's number tells the scope that it was made in.
struct Change {
  uint64_t first_node;
  std::string path;
};

thread_local std::string t_path;
thread_local std::vector<Change> t_changes;  // by node
// Of one recording there are far fewer: what is older than so many has been differentiated.
constexpr size_t kRememberedChanges = 1 << 16;

void note_change() {
  if (!runtime::Engine::current()) return;
  const uint64_t next = at::sequence_number::peek();
  if (!t_changes.empty() && t_changes.back().first_node == next) t_changes.pop_back();
  if (t_changes.size() >= kRememberedChanges) t_changes.erase(t_changes.begin(), t_changes.begin() + kRememberedChanges / 2);
  t_changes.push_back({next, t_path});
}

}  // namespace

Scope::Scope(std::string_view name) : outer_(t_path.size()) {
  if (!t_path.empty()) t_path += '/';
  t_path += name;
  note_change();
}

Scope::~Scope() {
  t_path.resize(outer_);
  note_change();
}

std::string current_scope() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return t_path;
  const auto after = std::upper_bound(t_changes.begin(), t_changes.end(), node->sequence_nr(),
                                      [](uint64_t number, const Change& change) { return number < change.first_node; });
  if (after == t_changes.begin() || std::prev(after)->path.empty()) return "backward";
  return "backward/" + std::prev(after)->path;
}

}  // namespace flambeau::device
