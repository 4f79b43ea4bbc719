// 64-bit hashing of plain values (XXH3). Not for anything that an attacker may choose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace flambeau {

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0);
inline uint64_t hash_string(std::string_view text, uint64_t seed = 0) {
  return hash_bytes(text.data(), text.size(), seed);
}

// An order-dependent running hash. Lengths are mixed in, so that {1,2},{3} and {1},{2,3} differ.
class Hasher {
 public:
  template <class T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  Hasher& add(T value) {
    state_ = mix(state_ ^ static_cast<uint64_t>(value));
    return *this;
  }
  Hasher& add(double value);
  Hasher& add(std::string_view text) { return add(text.size()).add(hash_string(text)); }
  template <class T>
    requires(std::is_integral_v<T>)
  Hasher& add(std::span<const T> values) {
    add(values.size());
    for (T v : values) add(v);
    return *this;
  }
  uint64_t value() const { return mix(state_); }

 private:
  static constexpr uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  uint64_t state_ = 0;
};

// A streaming checksum of bytes (XXH3-64), for files.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void update(const void* data, size_t size);
  uint64_t digest() const;

 private:
  void* state_;
};

}  // namespace flambeau
