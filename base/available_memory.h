#ifndef TESSERA_BASE_AVAILABLE_MEMORY_H_
#define TESSERA_BASE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string_view>

namespace tessera {

// What this process could still allocate without anybody being killed or swapped out: the least of
// what the machine has (MemAvailable) and what the process's control group is short of its limit.
// UINT64_MAX where nothing says.
uint64_t AvailableMemoryBytes();

// Bytes of the "MemAvailable: N kB" line of /proc/meminfo's text; UINT64_MAX without one.
uint64_t ParseMemAvailable(std::string_view meminfo);

// limit - (usage - reclaimable) of the texts of memory.max, memory.current and memory.stat (control
// groups, version 2); UINT64_MAX where there is no limit or a text makes no sense.
uint64_t ParseControlGroupRoom(std::string_view max, std::string_view current,
                               std::string_view stat);

}  // namespace tessera

#endif  // TESSERA_BASE_AVAILABLE_MEMORY_H_
