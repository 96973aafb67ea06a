#ifndef TESSERA_BASE_STEADY_TIME_H_
#define TESSERA_BASE_STEADY_TIME_H_

#include <chrono>

#include "absl/time/time.h"

namespace tessera {

// Returns the time since some moment before the process. Differences are the time that has passed,
// even if the machine's clock is set meanwhile. Use absl::Now() for times that are shown or
// compared with times on disk.
inline absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// Returns the seconds since SteadyNow() returned `start`.
inline double SecondsSince(absl::Duration start) {
  return absl::ToDoubleSeconds(SteadyNow() - start);
}

}  // namespace tessera

#endif  // TESSERA_BASE_STEADY_TIME_H_
