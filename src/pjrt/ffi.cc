#include "xla/pjrt/c/pjrt_c_api_ffi_extension.h"

#include "pjrt/call.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {

bool register_ffi_handler(const Plugin& plugin, std::string_view target, std::string_view platform, void* handler) {
  const PJRT_Api* api = plugin.api();
  const auto* ffi = find_extension<PJRT_FFI_Extension>(api, PJRT_Extension_Type_FFI, PJRT_FFI_Extension_STRUCT_SIZE);
  if (ffi == nullptr || ffi->register_handler == nullptr) return false;
  PJRT_FFI_Register_Handler_Args args{};
  args.struct_size = sizeof(args);
  args.target_name = target.data();
  args.target_name_size = target.size();
  args.handler = handler;
  args.platform_name = platform.data();
  args.platform_name_size = platform.size();
  if (PJRT_Error* error = ffi->register_handler(&args)) raise_error(api, "ffi", error);
  return true;
}

}  // namespace flambeau::pjrt
