#include "base/hash.h"

#include <bit>

#include <xxhash.h>

namespace flambeau {

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) { return XXH3_64bits_withSeed(data, size, seed); }

Hasher& Hasher::add(double value) { return add(std::bit_cast<uint64_t>(value)); }

Checksum::Checksum() : state_(XXH3_createState()) { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }
Checksum::~Checksum() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
void Checksum::update(const void* data, size_t size) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), data, size);
}
uint64_t Checksum::digest() const { return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_)); }

}  // namespace flambeau
