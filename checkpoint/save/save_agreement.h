#ifndef TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_
#define TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_

// The agreement of the ranks of a save on one plan, and its reuse.
//
// A plan depends only on the structure of the state: every rank's description (names, roles,
// dtypes, shapes, boxes), its rank and the number of ranks, and the layout options. Each rank keeps
// its part of the last plan together with its own serialized description, which is compared
// completely, since a hash could collide. Rank 0 also keeps the manifest.
//
// No rank needs to know whether the others are unchanged: before data is written, every rank waits
// for rank 0 to create the directory, so one small message in each direction is needed in any case.
// These messages carry the state of the cache:
//
// 1. Every rank sends rank 0 the step and, if its own structure is the cached one, the number of
//    its cached plan; otherwise its description.
// 2. If all ranks name the plan that rank 0 has, they have parts of the same plan and nothing has
//    changed on any rank: rank 0 prepares the directory and answers with its name. No planning
//    happened, and no description was sent.
// 3. If all ranks sent a description, as in the first save, rank 0 makes a plan and sends each rank
//    its part.
// 4. Otherwise some ranks have changed and the descriptions of the others are needed again: rank 0
//    asks for them, all ranks send their descriptions, and 3 follows.
//
// The first message has a digest of the entries that are united (Metadata::unite), too. Ranks whose
// digest is not rank 0's are asked for those entries, in the same message as in 4.
//
// An error on any rank ends the save on all ranks.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/save/save_hooks.h"

namespace tessera::ckpt {

// The place where a save writes.
struct SaveTarget {
  std::string directory;  // within the storage
  std::string attempt;    // in the names of its files
};

// One rank's task in a save.
struct SaveTask {
  RankPlan plan;  // with the names that the files have in this save
  std::string directory;
  bool from_cache = false;
};

// What rank 0 knows of a save before anything of it is written.
struct PlannedManifest {
  const Manifest& layout;                     // tensors and files alone
  bool is_new;                                // false if the same layout was prepared before
  std::map<std::string, std::string> united;  // entries, as far as ranks have had different ones
};

// Returns where to write. Called on rank 0.
using PrepareSave = std::function<absl::StatusOr<SaveTarget>(const PlannedManifest& planned)>;

// Agrees on a save. `local` is this rank's description, or the reason why it has none; the step and
// `overwrite` must be the same on all ranks. The function unites entries of the metadata, and uses
// nothing else of it. Collective; every rank returns OK or the same error. Errors: InvalidArgument
// (PlanSave's, different steps or `overwrite`), those of unite functions and of prepare(), of other
// ranks and of the group. Bytes on the wire: some tens per rank for a cached plan; otherwise all
// descriptions to rank 0 and its part of the plan to each rank; the entries of ranks that differ
// from rank 0.
absl::StatusOr<SaveTask> AgreeOnSave(ProcessGroup& group, const absl::StatusOr<RankState>& local,
                                     int64_t step, bool overwrite, const Metadata& metadata,
                                     const SavePlanOptions& options, PlanCache& cache,
                                     const PrepareSave& prepare, absl::Duration timeout);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_
