#ifndef TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_
#define TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_

// How the ranks of a save come to one plan, and how they do without making it again.
//
// A plan depends on the structure of the state alone: what every rank describes (names, roles,
// dtypes, shapes, boxes), which rank of how many it is, and the options of the layout. Each rank
// keeps its part of the last plan with the bytes that it described itself with, which are compared
// whole: no hash that could collide. Rank 0 keeps the manifest as well.
//
// No rank can know by itself that all others still are what they were. It need not: before data is
// written, every rank waits for rank 0 to make the directory, so one small message each way is
// needed in any case. It carries what is known of plans:
//
//  1. Every rank tells rank 0 the step and, where its own structure is the cached one, the number
//     of its cached plan; otherwise its description.
//  2. Where all ranks name the plan that rank 0 has, they have the parts of one plan and nothing
//     has changed anywhere: rank 0 prepares the directory and answers with its name. Nothing was
//     planned, and no description travelled.
//  3. Where all sent a description, as in the first save, rank 0 plans and answers each rank with
//     its part of the plan.
//  4. Otherwise some rank has changed, and others must say again what they are: rank 0 answers so,
//     and all send their descriptions; then as 3.
//
// An error on any rank ends the save on all.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/collective/process_group.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/plan/save_plan.h"

namespace tessera::ckpt {

// What happened so far on this rank.
struct PlanCounters {
  int64_t saves = 0;           // agreements, failed ones included
  int64_t local_hits = 0;      // this rank's structure was the cached one
  int64_t hits = 0;            // every rank's was: no planning
  int64_t descriptions = 0;    // of this rank's state that travelled to rank 0
  int64_t plans_made = 0;      // by this process: on rank 0
  int64_t parts_received = 0;  // of a new plan
};

// This rank's part of the last plan. One for each sequence of saves of one group; saves through one
// cache never overlap.
class PlanCache {
 public:
  // Where the plan in here was made for exactly this: this rank's part of it, valid until the next
  // agreement. What a rank can count on before the others agree; AgreeOnSave() may still replace
  // it. Null otherwise.
  const RankPlan* Find(const ProcessGroup& group, const LocalPlan& local,
                       const SavePlanOptions& options) const;

  const PlanCounters& counters() const { return counters_; }

 private:
  friend class SaveAgreement;
  struct Entry {
    std::string key;
    uint64_t plan_id;
    RankPlan mine;
    Manifest manifest;  // on rank 0: tensors and files, without checksums and digests
  };
  std::optional<Entry> entry_;
  PlanCounters counters_;
};

// What a rank is told.
struct SaveTask {
  RankPlan plan;
  std::string directory;  // from rank 0's prepare()
  bool from_cache = false;
};

// On rank 0, once the plan is known and before anything is written: tensors and files of the
// manifest -> the directory to write to. `is_new` is false where the same manifest was prepared
// before.
using PrepareSave =
    std::function<absl::StatusOr<std::string>(const Manifest& planned, bool is_new)>;

// Collective; every rank returns OK or the same error. `local` is this rank's description or why
// there is none; the step must be the same on all ranks. Errors: InvalidArgument (PlanSave's, other
// steps), what prepare() and other ranks say, the group's. Bytes on the wire: some tens per rank
// for a cached plan; otherwise all descriptions to rank 0 and its part of the plan to each rank.
absl::StatusOr<SaveTask> AgreeOnSave(ProcessGroup& group, const absl::StatusOr<LocalPlan>& local,
                                     int64_t step, const SavePlanOptions& options, PlanCache& cache,
                                     const PrepareSave& prepare, absl::Duration deadline);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_
