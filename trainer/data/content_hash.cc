#include "trainer/data/content_hash.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "compute/random/philox.h"

namespace tessera {

static_assert(std::endian::native == std::endian::little, "the hash is over little-endian words");

void ContentHash::Add(uint64_t value) {
  uint8_t bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  Add(bytes);
}

void ContentHash::Add(std::span<const uint8_t> bytes) {
  total_bytes_ += bytes.size();
  size_t i = 0;
  while (i < bytes.size()) {
    if (pending_bytes_ == 0 && bytes.size() - i >= 8) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      hash_ = MixCoordinates(hash_, word);
      i += 8;
      continue;
    }
    pending_ |= uint64_t{bytes[i++]} << (8 * pending_bytes_);
    if (++pending_bytes_ == 8) {
      hash_ = MixCoordinates(hash_, pending_);
      pending_ = 0;
      pending_bytes_ = 0;
    }
  }
}

uint64_t ContentHash::Finish() {
  return MixCoordinates(MixCoordinates(hash_, pending_), total_bytes_);
}

}  // namespace tessera
