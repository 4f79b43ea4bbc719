#include "hlo_run.h"

#include <algorithm>

#include "base/error.h"

namespace flambeau::tests {

std::optional<std::filesystem::path> installed(const std::string& plugin) {
  try {
    return pjrt::find_plugin(plugin);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

std::vector<std::vector<std::string>> execute(const pjrt::Client& client, const Program& program, const std::string& text,
                                              int partitions) {
  pjrt::CompileOptions options;
  options.num_partitions = partitions;
  auto executable = client.compile(text, options);
  std::vector<std::vector<std::unique_ptr<pjrt::Buffer>>> buffers;
  std::vector<std::vector<const pjrt::Buffer*>> arguments;
  for (int id : executable->device_ids()) {
    const auto& devices = client.devices();
    const auto device = std::find_if(devices.begin(), devices.end(), [&](const pjrt::Device& d) { return d.id == id; });
    auto& mine = buffers.emplace_back();
    for (const hlo::Literal& input : program.inputs)
      mine.push_back(
          client.upload({.data = input.bytes.data(), .dtype = input.type.dtype, .dims = input.type.dims}, *device));
    auto& pointers = arguments.emplace_back();
    for (const auto& buffer : mine) pointers.push_back(buffer.get());
  }
  std::vector<std::vector<std::string>> results;
  for (auto& outputs : executable->execute(arguments)) {
    auto& mine = results.emplace_back();
    for (auto& output : outputs) {
      std::string bytes(static_cast<size_t>(output->byte_size()), '\0');
      output->to_host(bytes.data());
      mine.push_back(std::move(bytes));
    }
  }
  return results;
}

}  // namespace flambeau::tests
