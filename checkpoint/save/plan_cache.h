#ifndef TESSERA_CHECKPOINT_SAVE_PLAN_CACHE_H_
#define TESSERA_CHECKPOINT_SAVE_PLAN_CACHE_H_

#include <memory>

namespace tessera::ckpt {

struct PlanCounters;  // checkpoint/save/save_agreement.h

// Keeps this rank's part of the last plan: a save of a state of the same structure (names, roles,
// dtypes, shapes, boxes) through the same cache is not planned anew. Use one cache for each
// sequence of saves of one group; saves through one cache must not overlap. Copies share their
// counters.
class PlanCache {
 private:
  friend class SaveAgreement;
  friend PlanCounters CountersOf(const PlanCache& cache);
  struct Entry;
  std::shared_ptr<const Entry> entry_;      // null: no plan yet
  std::shared_ptr<PlanCounters> counters_;  // null: no save yet
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_PLAN_CACHE_H_
