#ifndef TESSERA_COMPUTE_RANDOM_PHILOX_H_
#define TESSERA_COMPUTE_RANDOM_PHILOX_H_

// Counter-based random numbers: a pure function of (key, counter), so that no change of topology,
// batch or thread count can split or shift a stream. Philox4x32-10: Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011).

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// The purpose of a random number, a part of the key, so that no two uses share numbers.
enum class RandomUse : uint32_t { kInit = 1, kDropout = 2, kDataOrder = 3, kSampling = 4 };

// A stream of random numbers, addressed by element index: `stream` holds the use's own coordinates
// (a tensor's name hash, or step, site and sample), `seed` the run's seed.
struct RandomStream {
  uint64_t seed = 0;
  RandomUse use = RandomUse::kInit;
  uint64_t stream = 0;
};

// Mixes 64-bit coordinates into one stream number (splitmix64 steps).
uint64_t MixCoordinates(uint64_t a, uint64_t b);
// Returns a stable hash of a name (FNV-1a, then mixed): the same on every machine, and never to be
// changed.
uint64_t HashName(std::string_view name);

// Returns the four random words of elements [4 * block, 4 * block + 4) of the stream.
PhiloxBlock RandomBlock(const RandomStream& stream, uint64_t block);
// Returns the random word of one element: word (element % 4) of block (element / 4).
uint32_t RandomWord(const RandomStream& stream, uint64_t element);
// Returns a number uniform in [0, 1), with 24 bits.
float RandomUniform(const RandomStream& stream, uint64_t element);
// Sets out[i] to the standard normal number of element first_element + i (Box-Muller over the words
// of one block), which depends on the stream and the element alone.
void FillRandomNormal(const RandomStream& stream, uint64_t first_element, std::span<float> out);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_RANDOM_PHILOX_H_
