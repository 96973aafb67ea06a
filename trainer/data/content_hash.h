#ifndef TESSERA_TRAINER_DATA_CONTENT_HASH_H_
#define TESSERA_TRAINER_DATA_CONTENT_HASH_H_

#include <cstdint>
#include <span>

namespace tessera {

// Hashes bytes in order, as little-endian words: the same on every machine. Distinguishes contents,
// but does not resist an adversary.
class ContentHash {
 public:
  void Add(uint64_t value);
  // The hash does not depend on how the bytes are split over successive calls.
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
