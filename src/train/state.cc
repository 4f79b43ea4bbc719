#include "train/state.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "train/param_groups.h"
#include "train/same_optimizer.h"

namespace flambeau::train {
namespace {

namespace fs = std::filesystem;

std::string random_name(at::Device device) { return "rng." + c10::DeviceTypeName(device.type(), /*lower_case=*/true); }

std::string model_name(const Config& config) { return config.model.name + " " + config.model.flavor; }

class Lookup {
 public:
  Lookup(const checkpoint::NamedTensors& tensors, fs::path where) : where_(std::move(where)) {
    for (const auto& [name, tensor] : tensors) tensors_[name] = tensor;
  }
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  const at::Tensor& take(const std::string& name) const {
    taken_.insert(name);
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      raise<InvalidArgument>("{}: expected a tensor named {}, found none; use the model that the checkpoint was made with, or "
                             "another dump_folder", where_.string(), name);
    }
    return found->second;
  }
  const at::Tensor& take(const std::string& name, at::IntArrayRef shape) const {
    const at::Tensor& tensor = take(name);
    if (tensor.sizes() != shape) {
      raise<InvalidArgument>("{}: expected {} of shape [{}], got [{}]; use the model that the checkpoint was made with, or "
                             "another dump_folder", where_.string(), name, fmt::join(shape, ", "), fmt::join(tensor.sizes(), ", "));
    }
    return tensor;
  }
  // The first that nobody took; empty: all were taken.
  std::string left_over() const {
    for (const auto& [name, tensor] : tensors_)
      if (!taken_.contains(name)) return name;
    return "";
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
  mutable std::set<std::string> taken_;
  fs::path where_;
};

// The tensor named <parameter><suffix>, or the parameter's part of what older checkpoints have.
at::Tensor value_of(const Lookup& lookup, const nn::Parameters& parameters, const nn::Parameter& p, const std::string& suffix) {
  const nn::Stored& stored = parameters.stored()[p.stored];
  const std::string name = p.name + suffix, old = stored.draw_key() + suffix;
  if (!lookup.contains(name) && lookup.contains(old)) return parameters.part_of(lookup.take(old, stored.shape), p);
  return lookup.take(name, p.shape);
}

void restore_parameters(const checkpoint::NamedTensors& tensors, const fs::path& where, models::Model& model) {
  const Lookup lookup(tensors, where);
  const nn::Parameters& parameters = model.parameters();
  parameters.assign(parameters.tensors(), [&](size_t i) { return value_of(lookup, parameters, parameters.all()[i], ""); });
  if (const std::string other = lookup.left_over(); !other.empty()) {
    raise<InvalidArgument>("{}: unexpected tensor {}; use the model that the checkpoint was made with, or another dump_folder",
                           where.string(), other);
  }
}

models::NamedTensors read_hugging_face(const fs::path& folder) {
  std::vector<fs::path> files;
  if (fs::is_directory(folder)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
  }
  if (files.empty()) {
    raise<InvalidArgument>("expected a folder with *.safetensors, got \"{}\"; check the path",
                           folder.string());
  }
  std::ranges::sort(files);
  models::NamedTensors all;
  for (const fs::path& file : files) {
    for (auto& entry : checkpoint::SafetensorsReader(file).read_all()) all.push_back(std::move(entry));
  }
  return all;
}

}  // namespace

checkpoint::State collect_state(const Config& config, const models::Model& model, const Optimizer& optimizer, at::Device device) {
  checkpoint::State state;
  state.model = model_name(config);
  state.optimizer_kind = describe_states(config, model);
  const nn::Parameters& parameters = model.parameters();
  const std::vector<at::Tensor> values = parameters.rows_of(parameters.tensors());
  for (size_t i = 0; i < values.size(); ++i) state.parameters.emplace_back(parameters.all()[i].name, values[i]);
  const auto wanted = state_names_of(config, model);
  for (const Optimizer::State& s : optimizer.states()) {
    const std::vector<at::Tensor> rows = parameters.rows_of(s.tensors);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (std::ranges::count(wanted[i], s.name) > 0) state.optimizer.emplace_back(fmt::format("{}.{}", parameters.all()[i].name, s.name), rows[i]);
    }
  }
  state.optimizer.emplace_back(random_name(device), at::globalContext().defaultGenerator(device).get_state());
  return state;
}

void restore_state(const checkpoint::State& state, const fs::path& where, const Config& config, models::Model& model,
                   Optimizer& optimizer, at::Device device) {
  check_same_optimizer(state, config, model, where.string());
  restore_parameters(state.parameters, where / "model.safetensors", model);
  const Lookup lookup(state.optimizer, where / "optimizer.safetensors");
  const nn::Parameters& parameters = model.parameters();
  const auto wanted = state_names_of(config, model);
  for (const Optimizer::State& s : optimizer.states()) {
    parameters.assign(s.tensors, [&](size_t i) {
      if (std::ranges::count(wanted[i], s.name) == 0) return at::Tensor();
      return value_of(lookup, parameters, parameters.all()[i], "." + s.name);
    });
  }
  // A run that moves to another kind of device starts that device's generator from the seed.
  if (lookup.contains(random_name(device))) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    generator.set_state(lookup.take(random_name(device)));
  }
}

void load_parameters(const fs::path& step_folder, models::Model& model) {
  restore_parameters(checkpoint::load(step_folder).parameters, step_folder, model);
}

void load_initial(const Config& config, models::Model& model) {
  const fs::path path = config.checkpoint.initial_load_path;
  if (!config.checkpoint.initial_load_in_hf) return load_parameters(path, model);
  const std::vector<at::Tensor> tensors = model.from_hugging_face(read_hugging_face(path));
  model.parameters().assign(model.parameters().tensors(), [&](size_t i) { return tensors[i]; });
}

void export_hugging_face(const fs::path& folder, const models::Model& model) {
  // Two renames, so the old folder stays under one name or the other until the new one is on the disk.
  const fs::path temporary = folder.string() + ".tmp", old = folder.string() + ".old";
  if (!fs::exists(folder) && fs::exists(old)) fs::rename(old, folder);
  fs::remove_all(old);
  fs::remove_all(temporary);
  fs::create_directories(temporary);
  std::vector<at::Tensor> host;
  for (const at::Tensor& t : model.parameters().rows_of(model.parameters().tensors())) host.push_back(t.cpu());
  checkpoint::write_safetensors(temporary / "model.safetensors", model.to_hugging_face(host), {{"format", "pt"}});
  write_file_atomically(temporary / "config.json", model.hugging_face_config());
  sync_path(temporary);
  if (fs::exists(folder)) fs::rename(folder, old);
  fs::rename(temporary, folder);
  sync_path(fs::absolute(folder).parent_path());
  fs::remove_all(old);
}

uint64_t checksum_of(const checkpoint::NamedTensors& tensors) {
  std::map<std::string, uint64_t> sums;  // by name: files keep another order than models
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with("rng.")) sums[name] = checkpoint::tensor_checksum(tensor);
  }
  Hasher hasher;
  for (const auto& [name, sum] : sums) hasher.add(std::string_view(name)).add(sum);
  return hasher.value();
}

std::string state_checksums(const checkpoint::State& state) {
  return fmt::format("parameters {:016x}, optimizer {:016x}", checksum_of(state.parameters), checksum_of(state.optimizer));
}

}  // namespace flambeau::train
