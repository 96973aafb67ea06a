#ifndef TESSERA_CHECKPOINT_SAVE_PLAN_CACHE_H_
#define TESSERA_CHECKPOINT_SAVE_PLAN_CACHE_H_

#include <cstdint>
#include <memory>

namespace tessera::ckpt {

// Counters of this rank.
struct PlanCounters {
  int64_t saves = 0;           // agreements, failed ones included
  int64_t local_hits = 0;      // this rank's structure was the cached one
  int64_t hits = 0;            // every rank's was: no planning
  int64_t descriptions = 0;    // sent to rank 0 by this rank
  int64_t plans_made = 0;      // by this process: on rank 0
  int64_t parts_received = 0;  // parts of new plans
};

// This rank's part of the last plan: a save of a state of the same structure (names, roles, dtypes,
// shapes, boxes) through the same cache is not planned anew. One for each sequence of saves of one
// group; saves through one cache never overlap.
class PlanCache {
 public:
  const PlanCounters& counters() const { return counters_; }

 private:
  friend class SaveAgreement;
  struct Entry;
  std::shared_ptr<const Entry> entry_;  // null: no plan yet
  PlanCounters counters_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_PLAN_CACHE_H_
