#ifndef TESSERA_CONVERT_TESTING_MEMORY_METER_H_
#define TESSERA_CONVERT_TESTING_MEMORY_METER_H_

#include <cstddef>
#include <cstdint>

namespace tessera::ckpt::convert {

// Returns the memory that a parser may take for an input of this size.
constexpr int64_t AllowedBytes(size_t input_bytes) {
  return (int64_t{64} << 20) + 64 * static_cast<int64_t>(input_bytes);
}

// Counts the memory that is allocated and not freed during its lifetime, on all threads: by
// malloc() under AddressSanitizer, by operator new otherwise. An allocation beyond the limit ends
// the program at once, so that the stack shows the culprit. Only one meter may exist at a time.
class MemoryMeter {
 public:
  explicit MemoryMeter(int64_t limit_bytes);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t peak_bytes() const;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TESTING_MEMORY_METER_H_
