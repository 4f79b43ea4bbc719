// A handler in C++ that a compiled program calls.
#include <gmock/gmock.h>

#include "base/error.h"
#include "pjrt/test_util.h"
#include "xla/ffi/api/ffi.h"

namespace flambeau::pjrt {
namespace {

namespace ffi = xla::ffi;

// out = in * factor; refuses a factor of zero.
ffi::Error scale(ffi::Buffer<ffi::F32> in, ffi::ResultBuffer<ffi::F32> out, float factor) {
  if (factor == 0) return ffi::Error(ffi::ErrorCode::kInvalidArgument, "a factor of zero");
  for (size_t i = 0; i < in.element_count(); ++i) out->typed_data()[i] = in.typed_data()[i] * factor;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(scale_handler, scale,
                       ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>().Attr<float>("factor"));

std::string calling(const std::string& target, const std::string& factor) {
  return module(R"(
    func.func public @main(%a: tensor<2x3xf32>) -> tensor<2x3xf32> {
      %0 = "stablehlo.custom_call"(%a) {call_target_name = ")" +
                target + R"(", api_version = 4 : i32,
        backend_config = {factor = )" +
                factor + R"( : f32},
        operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>]
      } : (tensor<2x3xf32>) -> tensor<2x3xf32>
      return %0 : tensor<2x3xf32>
    })");
}

void* handler() { return reinterpret_cast<void*>(scale_handler); }

TEST(Ffi, CallsAHandler) {
  const Plugin& plugin = Plugin::load(find_plugin("cpu"));
  ASSERT_TRUE(register_ffi_handler(plugin, "flambeau_test_scale", "Host", handler()));
  const auto c = Client::create(plugin, {{"cpu_device_count", int64_t{1}}});
  const auto a = upload(*c, {1, 2, 3, 4, 5, 6}, {2, 3});
  const Buffer* arguments[] = {a.get()};
  const auto outputs = c->compile(calling("flambeau_test_scale", "2.5"))->execute(arguments);
  EXPECT_THAT(download(*outputs[0]), testing::ElementsAre(2.5, 5, 7.5, 10, 12.5, 15));

  const auto failing = c->compile(calling("flambeau_test_scale", "0.0"));
  EXPECT_THAT(message_of<PluginError>([&] { download(*failing->execute(arguments)[0]); }),
              testing::HasSubstr("a factor of zero"));
  message_of<PluginError>(
      [&] { c->compile(calling("flambeau_test_nobody", "1.0"))->execute(arguments)[0]->ready().await(); });
}

}  // namespace
}  // namespace flambeau::pjrt
