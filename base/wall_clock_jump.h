#ifndef TESSERA_BASE_WALL_CLOCK_JUMP_H_
#define TESSERA_BASE_WALL_CLOCK_JUMP_H_

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace tessera {

// Seconds by which a test has set the clock of the whole program. The time of day (absl::Now(),
// std::chrono::system_clock) is that much off; steady clocks do not change.
inline std::atomic<int64_t> wall_clock_jump_s = 0;

// Seconds for which the machine counts as suspended: steady clocks stood still meanwhile.
inline std::atomic<int64_t> suspended_s = 0;

// Time after which absl::Now() shows a jump: it extrapolates the time that it read last for about
// two seconds.
inline constexpr absl::Duration kWallClockIsReadAgainAfter = absl::Milliseconds(2300);

}  // namespace tessera

// Replaces the C library's function; only one source of a program may include this header.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME) now->tv_sec += tessera::wall_clock_jump_s;
  if (clock == CLOCK_BOOTTIME) now->tv_sec += tessera::suspended_s;
  return result;
}

#endif  // TESSERA_BASE_WALL_CLOCK_JUMP_H_
