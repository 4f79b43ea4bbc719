// The protocol buffers wire format, as much of it as XLA's messages need. Linking protocol buffers and XLA's message
// definitions would pin us to a version of both.
//
// Messages that are read may be hostile: every size is checked against what is left, nothing recurses.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace flambeau {

// Appends fields to a serialized message.
class ProtoWriter {
 public:
  ProtoWriter& integer(int field, int64_t value) {  // int32, int64, bool
    return varint(tag(field, 0)).varint(static_cast<uint64_t>(value));
  }
  ProtoWriter& real(int field, double value) {
    varint(tag(field, 1));
    auto bits = std::bit_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i, bits >>= 8) bytes_ += static_cast<char>(bits & 0xff);
    return *this;
  }
  ProtoWriter& bytes(int field, std::string_view value) {  // string, bytes, message, packed integers
    varint(tag(field, 2)).varint(value.size());
    bytes_.append(value);
    return *this;
  }
  ProtoWriter& varint(uint64_t value) {  // a bare one: an element of packed integers
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  static uint64_t tag(int field, int wire_type) {
    return static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type);
  }
  std::string bytes_;
};

// Goes through the fields of a serialized message; stops at its end or where it is broken, and broken() tells which.
//
//   for (ProtoReader reader(message); reader.next();) use(reader.field(), reader.bytes());
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view message) : rest_(message) {}
  bool next();
  bool broken() const { return broken_; }
  int field() const { return field_; }
  uint64_t integer() const { return integer_; }      // of an integer field, else 0
  std::string_view bytes() const { return bytes_; }  // of a string, message or packed field, else empty
  bool is_bytes() const { return wire_type_ == 2; }  // such a field, if an empty one
  static bool take_varint(std::string_view& from, uint64_t& value);

 private:
  bool take_field();

  std::string_view rest_;
  bool broken_ = false;
  int field_ = 0;
  int wire_type_ = 0;
  uint64_t integer_ = 0;
  std::string_view bytes_;
};

// The bytes of the first field `field` that has some; empty when there is none.
std::string_view proto_field(std::string_view message, int field);

}  // namespace flambeau
