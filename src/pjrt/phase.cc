// Topology::first_phase, through the extension for compiling in phases.
#include <zstd.h>

#include "xla/pjrt/c/pjrt_c_api_phase_compile_extension.h"

#include "base/wire.h"
#include "pjrt/call.h"
#include "pjrt/known_options.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {
namespace {

constexpr std::string_view kPhase = "phase1_hlo_opts";
constexpr size_t kLargestModule = size_t{4} << 30;  // protocol buffers end at 2 GiB

const PJRT_PhaseCompile_Extension& phase_extension(const PJRT_Api* api) {
  const auto* extension = find_extension<PJRT_PhaseCompile_Extension>(api, PJRT_Extension_Type_PhaseCompile,
                                                                      PJRT_PhaseCompile_Extension_STRUCT_SIZE);
  if (extension == nullptr || extension->phase_compile_get_compiler == nullptr ||
      extension->phase_compile_destroy_compiler == nullptr || extension->phase_compile_run_phases == nullptr ||
      extension->phase_compile_c_buffers_destroy == nullptr) {
    raise<PluginError>(
        "[pjrt.first_phase] the plugin (PJRT {}.{}) does not compile in phases; use TPU's plugin, or compile the whole "
        "program",
        api->pjrt_api_version.major_version, api->pjrt_api_version.minor_version);
  }
  return *extension;
}

// Owns the plugin's phase compiler.
class PhaseCompiler {
 public:
  PhaseCompiler(const PJRT_Api* api, const PJRT_PhaseCompile_Extension& extension) : extension_(extension) {
    PJRT_PhaseCompile_Get_Compiler_Args args{};
    args.struct_size = sizeof(args);
    if (PJRT_Error* error = extension.phase_compile_get_compiler(&args)) raise_error(api, "first_phase", error);
    handle_ = args.phase_compiler;
  }
  ~PhaseCompiler() {
    PJRT_PhaseCompile_Destroy_Compiler_Args args{};
    args.struct_size = sizeof(args);
    args.phase_compiler = handle_;
    extension_.phase_compile_destroy_compiler(&args);
  }
  PhaseCompiler(const PhaseCompiler&) = delete;
  PhaseCompiler& operator=(const PhaseCompiler&) = delete;
  const PJRT_PhaseCompiler* handle() const { return handle_; }

 private:
  const PJRT_PhaseCompile_Extension& extension_;
  const PJRT_PhaseCompiler* handle_ = nullptr;
};

// An xla.PjRtPartialProgramProto of StableHLO text that the phase consumes.
std::string partial_program(std::string_view program) {
  ProtoWriter message;
  message.bytes(1, program).bytes(2, "mlir").bytes(3, "stablehlo").bytes(4, kPhase).bytes(5, "1.0");
  return message.str();
}

std::string decompress(std::string_view compressed) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  std::string bytes;
  ZSTD_inBuffer in{compressed.data(), compressed.size(), 0};
  for (size_t left = 1; left != 0;) {
    const size_t start = bytes.size(), consumed = in.pos;
    bytes.resize(std::max<size_t>(2 * start, size_t{1} << 16));
    ZSTD_outBuffer out{bytes.data() + start, bytes.size() - start, 0};
    left = ZSTD_decompressStream(stream.get(), &out, &in);
    bytes.resize(start + out.pos);
    const bool stuck = left != 0 && out.pos == 0 && in.pos == consumed;
    if (ZSTD_isError(left) || stuck || bytes.size() > kLargestModule) {
      raise<PluginError>("[pjrt.first_phase] expected a program compressed with zstd, got {} bytes that are not: {}",
                         compressed.size(), ZSTD_isError(left) ? ZSTD_getErrorName(left) : "they end early");
    }
  }
  return bytes;
}

}  // namespace

std::string Topology::first_phase(std::string_view program, const CompileOptions& options) const {
  const PJRT_Api* api = plugin_->api();
  const PJRT_PhaseCompile_Extension& extension = phase_extension(api);
  const PhaseCompiler compiler(api, extension);
  const std::string input = partial_program(program), phase(kPhase);
  const char* inputs[] = {input.data()};
  const char* phases[] = {phase.c_str()};
  const size_t input_size = input.size(), phase_size = phase.size();

  PJRT_PhaseCompile_Run_Phase_Args args{};
  args.struct_size = sizeof(args);
  args.phase_compiler = compiler.handle();
  args.input_programs = inputs;
  args.input_programs_sizes = &input_size;
  args.num_input_programs = 1;
  args.phases_to_run = phases;
  args.phases_to_run_sizes = &phase_size;
  args.num_phases_to_run = 1;
  args.topology = handle_;
  with_known_options(placed(options), [&](const std::string& serialized) {
    args.compile_options = serialized.data();
    args.compile_options_size = serialized.size();
    if (PJRT_Error* error = extension.phase_compile_run_phases(&args)) raise_error(api, "first_phase", error);
  });

  std::string output;
  if (args.num_output_programs > 0) output.assign(args.output_programs[0], args.output_programs_sizes[0]);
  PJRT_PhaseCompile_C_Buffers_Destroy_Args buffers{};
  buffers.struct_size = sizeof(buffers);
  buffers.char_buffers = args.output_programs;
  buffers.char_buffer_sizes = args.output_programs_sizes;
  buffers.num_char_buffers = args.num_output_programs;
  extension.phase_compile_c_buffers_destroy(&buffers);

  const std::string module_with_config = decompress(proto_field(output, 1));
  std::string module(proto_field(module_with_config, 1));  // HloModuleProtoWithConfig.hlo_module
  if (module.empty()) raise<PluginError>("[pjrt.first_phase] the plugin gave a phase's output without a module");
  return module;
}

}  // namespace flambeau::pjrt
