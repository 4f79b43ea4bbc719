#include "base/wire.h"

namespace flambeau {

bool ProtoReader::take_varint(std::string_view& from, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !from.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(from.front());
    from.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool ProtoReader::next() {
  if (broken_ || rest_.empty()) return false;
  broken_ = !take_field();
  return !broken_;
}

bool ProtoReader::take_field() {
  uint64_t tag = 0;
  integer_ = 0;
  bytes_ = {};
  // Field numbers end at 2^29 - 1.
  if (!take_varint(rest_, tag) || tag >> 3 == 0 || tag >> 32 != 0) return false;
  field_ = static_cast<int>(tag >> 3);
  wire_type_ = static_cast<int>(tag & 7);
  switch (wire_type_) {
    case 0: return take_varint(rest_, integer_);
    case 2: {
      uint64_t size = 0;
      if (!take_varint(rest_, size) || size > rest_.size()) return false;
      bytes_ = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return true;
    }
    case 1:
    case 5: {
      const size_t size = wire_type_ == 1 ? 8 : 4;
      if (size > rest_.size()) return false;
      rest_.remove_prefix(size);
      return true;
    }
    default: return false;
  }
}

std::string_view proto_field(std::string_view message, int field) {
  for (ProtoReader reader(message); reader.next();) {
    if (reader.field() == field && !reader.bytes().empty()) return reader.bytes();
  }
  return {};
}

}  // namespace flambeau
