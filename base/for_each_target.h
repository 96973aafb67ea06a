#ifndef TESSERA_BASE_FOR_EACH_TARGET_H_
#define TESSERA_BASE_FOR_EACH_TARGET_H_

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdint>
#include <vector>

#include "base/cpu_level.h"

namespace tessera {

// Returns the targets that loops are compiled for and that the processor supports within
// TESSERA_CPU, the newest first.
template <int64_t compiled = HWY_TARGETS>
std::vector<int64_t> TargetsUnderTest() {
  std::vector<int64_t> targets;
  for (int64_t left = UsableTargets() & compiled; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

// Calls body(name) once for each of these; meanwhile TESSERA_CHOOSE uses that one, on all threads.
template <typename Body>
void ForEachTarget(Body body) {
  for (const int64_t target : TargetsUnderTest()) {
    SetUsableTargetsForTest(target);
    body(hwy::TargetName(target));
  }
  SetUsableTargetsForTest(0);
}

}  // namespace tessera

#endif  // TESSERA_BASE_FOR_EACH_TARGET_H_
