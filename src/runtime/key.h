// What programs and signatures are found by.
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace flambeau::runtime {

// A program's identity: two 64-bit hashes of its structure (texts enter both through one).
struct Key {
  uint64_t high = 0, low = 0;
  friend bool operator==(const Key&, const Key&) = default;
};
class KeyHasher {
 public:
  KeyHasher() { low_.add(0x5bd1e995); }
  template <class... T>
  KeyHasher& add(const T&... values) {
    (high_.add(values), ...);
    (low_.add(values), ...);
    return *this;
  }
  Key key() const { return {high_.value(), low_.value()}; }

 private:
  Hasher high_, low_;
};
struct KeyHash {
  size_t operator()(const Key& key) const { return key.low; }
};

}  // namespace flambeau::runtime
