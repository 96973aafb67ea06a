#ifndef TESSERA_TESTS_PERF_ALLOCATED_MEMORY_H_
#define TESSERA_TESTS_PERF_ALLOCATED_MEMORY_H_

// Memory allocated by the program, which this library counts by replacing operator new and delete.
// Thread-safe.

#include <cstdint>

namespace tessera {

// Returns the bytes that are allocated now.
int64_t AllocatedBytes();

// Returns the most bytes that were allocated at once since ResetPeak().
int64_t PeakAllocatedBytes();
void ResetPeak();

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_ALLOCATED_MEMORY_H_
