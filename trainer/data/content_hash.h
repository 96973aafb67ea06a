#ifndef TESSERA_TRAINER_DATA_CONTENT_HASH_H_
#define TESSERA_TRAINER_DATA_CONTENT_HASH_H_

#include <cstdint>
#include <span>

namespace tessera {

// Bytes in little-endian words, hashed in order: stable across machines. For telling contents
// apart, not against an adversary.
class ContentHash {
 public:
  void Add(uint64_t value);
  // Any way of cutting bytes into successive calls gives the same hash.
  void Add(std::span<const uint8_t> bytes);
  uint64_t Finish();

 private:
  uint64_t hash_ = 0;
  uint64_t pending_ = 0;
  int pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_CONTENT_HASH_H_
