// The entry points of libFuzzer for every fuzz target: runs the target's own on the input, which
// may take memory in proportion to its size, and repeats parts of inputs. libFuzzer's own mutations
// do so seldom, and what an input refers to again and again, or nests, takes the most memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "convert/testing/memory_meter.h"

void FuzzOneInput(const std::string& input);

// libFuzzer's own; not there in tests, which run no mutation.
extern "C" __attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t* data, size_t size,
                                                         size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::ckpt::convert::MemoryMeter;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const MemoryMeter meter(tessera::ckpt::convert::AllowedBytes(size));
  FuzzOneInput(input);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  constexpr unsigned kRepetitions = 16;  // every so many mutations
  constexpr size_t kMaxPartBytes = 32;
  std::minstd_rand random(seed);
  if (random() % kRepetitions != 0 || size == 0 || size >= max_size) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const size_t begin = random() % size;
  const size_t bytes = 1 + random() % std::min(kMaxPartBytes, size - begin);
  const size_t added = std::min((max_size - size) / bytes, size_t{1} << random() % 20) * bytes;
  const size_t end = begin + bytes;
  std::memmove(data + end + added, data + end, size - end);
  for (size_t i = 0; i < added; ++i) data[end + i] = data[end + i - bytes];
  return size + added;
}
