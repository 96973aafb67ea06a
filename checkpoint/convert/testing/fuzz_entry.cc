// The entry point of libFuzzer for every fuzz target: runs the target's own on the input, which may
// take memory in proportion to its size.

#include <cstddef>
#include <cstdint>

#include "checkpoint/convert/testing/memory_meter.h"

extern "C" int FuzzOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::ckpt::convert::MemoryMeter;
  const MemoryMeter meter(tessera::ckpt::convert::AllowedBytes(size));
  return FuzzOneInput(data, size);
}
