#ifndef TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_H_
#define TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_H_

#include <atomic>
#include <cstdint>

#include "checkpoint/include/damage.h"

namespace tessera::ckpt {

// Counts of the costly parts of describing damage in this process, for tests: the cost of reporting
// extensive damage must not grow with its square.
struct DamageCounters {
  std::atomic<int64_t> maps = 0;     // FileMaps created: each visits all shards
  std::atomic<int64_t> located = 0;  // chunks searched for the damaged byte
};

inline DamageCounters& GetDamageCounters() {
  static DamageCounters counters;
  return counters;
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_H_
