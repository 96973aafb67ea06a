#ifndef TESSERA_BASE_FOR_EACH_TARGET_H_
#define TESSERA_BASE_FOR_EACH_TARGET_H_

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdint>

#include "base/cpu_level.h"

namespace tessera {

// Calls body(name) once for each instruction set that loops are compiled for and that the processor
// supports within TESSERA_CPU, the newest first; meanwhile TESSERA_DISPATCH uses that one, on all
// threads. For tests.
template <typename Body>
void ForEachTarget(Body body) {
  ApplyCpuLevelLimit();
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace tessera

#endif  // TESSERA_BASE_FOR_EACH_TARGET_H_
