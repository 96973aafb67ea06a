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
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/collective/process_group.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/save/plan_cache.h"

namespace tessera::ckpt {

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
