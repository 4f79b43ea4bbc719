// Serialized modules for tests, field by field.
#pragma once

#include <string>
#include <vector>

#include "base/wire.h"

namespace flambeau::compiled::testing {

inline constexpr int kPred = 1, kS32 = 4, kF32 = 11, kTuple = 13, kBF16 = 16;

inline std::string shape(int type, std::vector<int64_t> dims = {}) {
  ProtoWriter message;
  message.integer(2, type);
  for (const int64_t dim : dims) message.integer(3, dim);  // not packed; packed() is
  return message.str();
}

inline std::string tuple(std::vector<std::string> parts) {
  ProtoWriter message;
  message.integer(2, kTuple);
  for (const std::string& part : parts) message.bytes(4, part);
  return message.str();
}

inline std::string packed(std::vector<int64_t> integers) {
  ProtoWriter bytes;
  for (const int64_t i : integers) bytes.varint(static_cast<uint64_t>(i));
  return bytes.str();
}

// A shape that lies in memory space `space`, row-major in `tile` where there is one.
inline std::string placed(int type, std::vector<int64_t> dims, int64_t space, std::vector<int64_t> tile = {}) {
  std::vector<int64_t> minor_to_major;
  for (size_t i = dims.size(); i-- > 0;) minor_to_major.push_back(static_cast<int64_t>(i));
  ProtoWriter layout;
  layout.bytes(1, packed(minor_to_major)).integer(8, space);
  if (!tile.empty()) layout.bytes(6, ProtoWriter().bytes(1, packed(std::move(tile))).str());
  return shape(type, std::move(dims)) + ProtoWriter().bytes(5, layout.str()).str();
}

// `more` are further fields, serialized.
inline std::string instruction(int64_t id, const std::string& opcode, const std::string& shape,
                               std::vector<int64_t> operands = {}, const std::string& more = {}) {
  ProtoWriter message;
  message.bytes(1, opcode + "." + std::to_string(id)).bytes(2, opcode).bytes(3, shape).integer(35, id);
  message.bytes(36, packed(std::move(operands)));
  return message.str() + more;
}

inline std::string calls(std::vector<int64_t> ids) { return ProtoWriter().bytes(38, packed(std::move(ids))).str(); }
inline std::string integer_field(int field, int64_t value) { return ProtoWriter().integer(field, value).str(); }

inline std::string constant(int64_t id, int64_t value) {
  const std::string literal = ProtoWriter().bytes(1, shape(kS32)).bytes(4, packed({value})).str();
  return instruction(id, "constant", shape(kS32), {}, ProtoWriter().bytes(8, literal).str());
}

inline std::string parameter(int64_t id, const std::string& shape, int64_t number = 0) {
  return instruction(id, "parameter", shape, {}, integer_field(9, number));
}

inline std::string element(int64_t id, int64_t of, int64_t index, const std::string& shape) {
  return instruction(id, "get-tuple-element", shape, {of}, integer_field(13, index));
}
inline std::string element(int64_t id, int64_t of, int64_t index, int type = kS32) {
  return element(id, of, index, shape(type));
}

inline std::string op_name(const std::string& name) {
  return ProtoWriter().bytes(7, ProtoWriter().bytes(2, name).str()).str();
}

inline std::string computation(int64_t id, std::vector<std::string> instructions, int64_t root,
                               const std::string& name = {}) {
  ProtoWriter message;
  message.bytes(1, name.empty() ? "c" + std::to_string(id) : name);
  for (const std::string& i : instructions) message.bytes(2, i);
  return message.integer(5, id).integer(6, root).str();
}

inline std::string module(std::vector<std::string> computations, int64_t entry) {
  ProtoWriter message;
  message.bytes(1, "m");
  for (const std::string& c : computations) message.bytes(3, c);
  return message.integer(6, entry).str();
}

}  // namespace flambeau::compiled::testing
