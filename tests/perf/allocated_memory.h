#ifndef TESSERA_TESTS_PERF_ALLOCATED_MEMORY_H_
#define TESSERA_TESTS_PERF_ALLOCATED_MEMORY_H_

// The memory of a program that is linked with this: it replaces operator new and delete with ones
// that count. Thread-safe.

#include <cstdint>

namespace tessera {

// What is allocated now.
int64_t AllocatedBytes();

// The most that was allocated at once since ResetPeak().
int64_t PeakAllocatedBytes();
void ResetPeak();

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_ALLOCATED_MEMORY_H_
