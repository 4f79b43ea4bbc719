#include "pjrt/compiled.h"

#include "base/wire.h"
#include "pjrt/call.h"

namespace flambeau::pjrt {

Compiled::~Compiled() {
  release<&PJRT_Api::PJRT_Executable_Destroy>(api_, [&](auto& a) { a.executable = handle_; });
}

size_t Compiled::num_outputs() const {
  return call<&PJRT_Api::PJRT_Executable_NumOutputs>(api_, "executable", [&](auto& a) { a.executable = handle_; })
      .num_outputs;
}

std::string Compiled::name() const {
  const auto args = call<&PJRT_Api::PJRT_Executable_Name>(api_, "executable", [&](auto& a) { a.executable = handle_; });
  return {args.executable_name, args.executable_name_size};
}

std::string Compiled::fingerprint() const {
  if (!offers<&PJRT_Api::PJRT_Executable_Fingerprint>(api_)) return {};
  const auto args =
      call<&PJRT_Api::PJRT_Executable_Fingerprint>(api_, "executable", [&](auto& a) { a.executable = handle_; });
  return {args.executable_fingerprint, args.executable_fingerprint_size};
}

MemoryStats Compiled::memory_stats() const {
  const auto s = call<&PJRT_Api::PJRT_Executable_GetCompiledMemoryStats>(api_, "memory_stats",
                                                                         [&](auto& a) { a.executable = handle_; });
  return {.argument = s.argument_size_in_bytes,
          .output = s.output_size_in_bytes,
          .alias = s.alias_size_in_bytes,
          .temporary = s.temp_size_in_bytes,
          .generated_code = s.generated_code_size_in_bytes,
          .peak = s.peak_memory_in_bytes,
          .total = s.total_allocation_bytes,
          .host = s.host_argument_size_in_bytes + s.host_output_size_in_bytes + s.host_temp_size_in_bytes -
                  s.host_alias_size_in_bytes};
}

std::string Compiled::optimized_hlo() const {
  if (!offers<&PJRT_Api::PJRT_Executable_OptimizedProgram>(api_)) return {};
  PJRT_Program program{};
  program.struct_size = sizeof(program);
  auto fill = [&](auto& a) {
    a.executable = handle_;
    a.program = &program;
  };
  call<&PJRT_Api::PJRT_Executable_OptimizedProgram>(api_, "optimized_hlo", fill);  // the size
  std::string code(program.code_size, '\0');
  program.code = code.data();
  call<&PJRT_Api::PJRT_Executable_OptimizedProgram>(api_, "optimized_hlo", fill);  // the program
  code.resize(program.code_size);
  const std::string_view format(program.format, program.format_size);
  if (format == "hlo") return code;
  if (format == "hlo_with_config") return std::string(proto_field(code, 1));  // HloModuleProtoWithConfig.hlo_module
  return {};
}

std::string Compiled::serialize() const {
  const auto args = call<&PJRT_Api::PJRT_Executable_Serialize>(api_, "serialize", [&](auto& a) { a.executable = handle_; });
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  return bytes;
}

}  // namespace flambeau::pjrt
