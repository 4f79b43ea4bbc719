#include "pjrt/named_values.h"

#include <type_traits>

#include "pjrt/call.h"

namespace flambeau::pjrt {

std::vector<PJRT_NamedValue> to_named_values(const Attributes& attributes) {
  std::vector<PJRT_NamedValue> values;
  values.reserve(attributes.size());
  for (const auto& [name, attribute] : attributes) {
    PJRT_NamedValue value{};
    value.struct_size = sizeof(value);
    value.name = name.data();
    value.name_size = name.size();
    value.value_size = 1;
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, bool>) {
            value.type = PJRT_NamedValue_kBool;
            value.bool_value = v;
          } else if constexpr (std::is_same_v<T, int64_t>) {
            value.type = PJRT_NamedValue_kInt64;
            value.int64_value = v;
          } else if constexpr (std::is_same_v<T, double>) {
            value.type = PJRT_NamedValue_kFloat;
            value.float_value = static_cast<float>(v);
          } else if constexpr (std::is_same_v<T, std::string>) {
            value.type = PJRT_NamedValue_kString;
            value.string_value = v.data();
            value.value_size = v.size();
          } else {
            value.type = PJRT_NamedValue_kInt64List;
            value.int64_array_value = v.data();
            value.value_size = v.size();
          }
        },
        attribute);
    values.push_back(value);
  }
  return values;
}

Attributes from_named_values(const PJRT_NamedValue* values, size_t count) {
  Attributes attributes;
  for (const PJRT_NamedValue& value : std::span(values, count)) {
    Attribute& attribute = attributes[std::string(value.name, value.name_size)];
    switch (value.type) {
      case PJRT_NamedValue_kString: attribute = std::string(value.string_value, value.value_size); break;
      case PJRT_NamedValue_kInt64: attribute = value.int64_value; break;
      case PJRT_NamedValue_kInt64List:
        attribute = std::vector<int64_t>(value.int64_array_value, value.int64_array_value + value.value_size);
        break;
      case PJRT_NamedValue_kFloat: attribute = static_cast<double>(value.float_value); break;
      case PJRT_NamedValue_kBool: attribute = value.bool_value; break;
    }
  }
  return attributes;
}

Device describe(const PJRT_Api* api, PJRT_DeviceDescription* description) {
  auto about = [&](auto& a) { a.device_description = description; };
  Device device;
  device.id = call<&PJRT_Api::PJRT_DeviceDescription_Id>(api, "device", about).id;
  device.process_index = call<&PJRT_Api::PJRT_DeviceDescription_ProcessIndex>(api, "device", about).process_index;
  const auto kind = call<&PJRT_Api::PJRT_DeviceDescription_Kind>(api, "device", about);
  device.kind.assign(kind.device_kind, kind.device_kind_size);
  const auto debug = call<&PJRT_Api::PJRT_DeviceDescription_DebugString>(api, "device", about);
  device.debug_string.assign(debug.debug_string, debug.debug_string_size);
  const auto attributes = call<&PJRT_Api::PJRT_DeviceDescription_Attributes>(api, "device", about);
  device.attributes = from_named_values(attributes.attributes, attributes.num_attributes);
  return device;
}

}  // namespace flambeau::pjrt
