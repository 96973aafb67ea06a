#ifndef TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_COUNTERS_H_
#define TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace tessera::ckpt {

// How often the costly parts of describing damage ran in this process. For tests: what is damaged
// all over must not cost the square of the damage.
struct DamageCounters {
  std::atomic<int64_t> maps = 0;     // FileMaps made: each goes over all shards
  std::atomic<int64_t> located = 0;  // chunks searched for the damaged byte
};

inline DamageCounters& GetDamageCounters() {
  static DamageCounters counters;
  return counters;
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_DAMAGE_COUNTERS_H_
