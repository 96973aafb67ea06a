#ifndef TESSERA_BASE_STEADY_TIME_H_
#define TESSERA_BASE_STEADY_TIME_H_

#include <chrono>

#include "absl/time/time.h"

namespace tessera {

// The time since some moment before the process: differences are time that has passed, whatever the
// machine's clock is set to meanwhile. What is compared with times on disk, or is shown, is
// absl::Now() instead.
inline absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// The seconds since SteadyNow() has returned `start`.
inline double SecondsSince(absl::Duration start) {
  return absl::ToDoubleSeconds(SteadyNow() - start);
}

}  // namespace tessera

#endif  // TESSERA_BASE_STEADY_TIME_H_
