#ifndef TESSERA_BASE_SYSTEM_MEMORY_H_
#define TESSERA_BASE_SYSTEM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

// Returns the memory that this process can still allocate without causing swapping or a kill. This
// is the minimum of what the machine has (MemAvailable) and what the process's control group has
// left; UINT64_MAX if neither is known.
uint64_t AvailableMemoryBytes();

// Returns the bytes of the line "MemAvailable: N kB" in the text of /proc/meminfo; UINT64_MAX
// without such a line.
uint64_t ParseMemAvailable(std::string_view meminfo);

// Returns limit - (usage - reclaimable), from the texts of memory.max, memory.current and
// memory.stat (control groups, version 2); UINT64_MAX without a limit or if a text cannot be
// parsed.
uint64_t ParseControlGroupRoom(std::string_view max, std::string_view current,
                               std::string_view stat);

// The size of a huge page.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Maps zeroed memory that begins at the boundary of a huge page, and asks for huge pages. A part of
// a page counts as a whole one, as in munmap(data, size_bytes), by which the caller unmaps it.
// `flags` are passed to mmap() in addition. Returns MAP_FAILED, with errno, if the system has no
// memory.
void* MapOnHugePages(size_t size_bytes, int flags = 0);

}  // namespace tessera

#endif  // TESSERA_BASE_SYSTEM_MEMORY_H_
