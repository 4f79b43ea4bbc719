// The report as JSON. Keys are the members' names; figures are bytes, seconds and operations, as the report holds them.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "plan/report/facts.h"
#include "plan/report/report.h"

namespace flambeau::plan {
namespace {

using nlohmann::ordered_json;

// A key of a JSON object: "optimizer_states".
std::string key_of(MemoryKind kind) {
  std::string key(name_of(kind));
  std::ranges::replace(key, ' ', '_');
  return key;
}

ordered_json buffer_json(const Buffer& b) {
  return {{"name", b.name},   {"kind", key_of(b.kind)}, {"shape", b.shape},
          {"bytes", b.bytes}, {"padding", b.padding},   {"at_peak", b.at_peak}};
}

ordered_json memory_json(const Memory& memory) {
  ordered_json by_kind = ordered_json::object(), largest = ordered_json::array(), over_step = ordered_json::array();
  for (const auto& [kind, bytes] : memory.by_kind) by_kind[key_of(kind)] = by_kind.value(key_of(kind), int64_t{0}) + bytes;
  for (const Buffer& buffer : memory.largest) largest.push_back(buffer_json(buffer));
  for (const auto& [at, bytes] : memory.over_step) over_step.push_back(ordered_json::array({at, bytes}));
  return {{"total", memory.total}, {"limit", memory.limit}, {"host", memory.host},
          {"by_kind", by_kind},    {"largest", largest},    {"over_step", over_step}};
}

ordered_json collective_json(const CollectiveGroup& g) {
  return {{"kind", g.kind},   {"axes", g.axes},   {"group_size", g.group_size}, {"type", g.type},
          {"place", g.place}, {"count", g.count}, {"bytes", g.bytes},           {"overlapped", g.overlapped}};
}

ordered_json estimate_json(const Estimate& e) {
  return {{"compute_s", e.compute_s}, {"hbm_s", e.hbm_s},   {"communication_s", e.communication_s},
          {"exposed_s", e.exposed_s}, {"host_s", e.host_s}, {"step_s", e.step_s},
          {"assumptions", e.assumptions}};
}

ordered_json change_json(const Change& change) {
  ordered_json keys = ordered_json::object();
  for (const auto& [key, value] : change.keys) keys[key] = value;
  return {{"keys", keys}, {"total", change.total}, {"step_s", change.step_s}, {"fits", change.fits}, {"failure", change.failure}};
}

template <class T, class ToJson>
ordered_json array_of(const std::vector<T>& values, ToJson to_json) {
  ordered_json array = ordered_json::array();
  for (const T& value : values) array.push_back(to_json(value));
  return array;
}

// The members that say what was planned.
ordered_json planned_json(const Report& report) {
  ordered_json mesh = ordered_json::object();
  for (const auto& [axis, degree] : report.mesh) mesh[axis] = degree;
  return {{"config", report.config},
          {"model", report.model},
          {"pod", report.pod},
          {"device_kind", report.device_kind},
          {"source", report.source},
          {"devices", report.devices},
          {"chips", report.chips},
          {"slices", report.slices},
          {"mesh", mesh},
          {"parameters", report.parameters},
          {"tokens_per_step", report.tokens_per_step},
          {"sequences_per_device", report.sequences_per_device},
          {"context", report.context},
          {"accumulation", report.accumulation},
          {"activation_checkpoint", report.activation_checkpoint},
          {"attention", report.attention}};
}

// What the report derives; null where it is not known or was not asked for.
ordered_json derived_json(const Report& report) {
  ordered_json derived = {
      {"fits", nullptr}, {"mfu", nullptr}, {"mfu_causal", nullptr}, {"tokens_per_second_per_chip", nullptr}, {"days", nullptr}, {"price", nullptr}};
  if (report.memory.limit > 0) derived["fits"] = report.memory.fits();
  if (!is_known(report.estimate.step_s)) return derived;
  if (is_known(report.peak_flops)) derived["mfu"] = report.mfu(), derived["mfu_causal"] = report.mfu_causal();
  if (report.chips > 0) derived["tokens_per_second_per_chip"] = report.tokens_per_second_per_chip();
  if (!is_known(report.training_tokens) || report.tokens_per_step <= 0) return derived;
  derived["days"] = report.days();
  if (report.price_per_chip_hour) derived["price"] = report.price();
  return derived;
}

}  // namespace

std::string to_json(const Report& report) {
  ordered_json json = derived_json(report);
  json.update(planned_json(report));
  json.update({{"memory", memory_json(report.memory)},
               {"collectives", array_of(report.collectives, collective_json)},
               {"work",
                {{"flops", report.work.flops},
                 {"hbm_bytes", report.work.hbm_bytes},
                 {"collective_bytes", report.work.collective_bytes}}},
               {"model_flops", report.model_flops},
               {"model_flops_causal", report.model_flops_causal},
               {"peak_flops", report.peak_flops},
               {"exact", report.exact},
               {"estimate", estimate_json(report.estimate)},
               {"changes", array_of(report.changes, change_json)},
               {"warnings", report.warnings},
               {"planned_s", report.planned_s},
               {"price_per_chip_hour", nullptr},
               {"training_tokens", report.training_tokens}});
  if (report.price_per_chip_hour) json["price_per_chip_hour"] = *report.price_per_chip_hour;
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace flambeau::plan
