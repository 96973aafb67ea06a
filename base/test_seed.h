#ifndef TESSERA_BASE_TEST_SEED_H_
#define TESSERA_BASE_TEST_SEED_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace tessera {

// Seed of a property test: a new one for each run, which is printed, or the one in
// TESSERA_TEST_SEED to repeat a run.
inline uint64_t TestSeed() {
  const char* fixed = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed =
      fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : std::random_device()();
  std::printf("TESSERA_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace tessera

#endif  // TESSERA_BASE_TEST_SEED_H_
