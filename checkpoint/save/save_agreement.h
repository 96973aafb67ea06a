#ifndef TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_
#define TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/plan/save_plan.h"

namespace tessera::ckpt {

// Keeps this rank's part of the last plan: a save of a state of the same structure (names, roles,
// dtypes, shapes, boxes) through the same cache is not planned anew. Use one cache for each
// sequence of saves of one group; saves through one cache must not overlap.
class PlanCache {
 private:
  friend class SaveAgreement;
  struct Entry;
  std::shared_ptr<const Entry> entry_;  // null: no plan yet
};

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
  std::map<std::string, std::string> merged;  // entries that differed between ranks
};

// Returns where to write. Called on rank 0.
using PrepareSave = std::function<absl::StatusOr<SaveTarget>(const PlannedManifest& planned)>;

// The arguments of AgreeOnSave(). What they refer to must outlive the call.
struct SaveProposal {
  ProcessGroup& group;
  int64_t step;            // the same on all ranks
  bool overwrite = false;  // the same on all ranks; see SaveOptions
  SavePlanOptions options = {};
  const Metadata& metadata;  // used only for its entries to merge
  PlanCache& cache;
  PrepareSave prepare;
  absl::Duration timeout;
  // Limit of the entries to merge that a rank sends: their names and bytes together.
  uint64_t max_entries_bytes = kMaxManifestBytes;
};

// Agrees on one plan for a save, or on the cached one, and merges entries of the metadata. `local`
// is this rank's description, or the reason why it has none.
//
// Collective; every rank returns OK or the same error: InvalidArgument (PlanSave's; another step,
// `overwrite`, checksum_chunk_bytes or max_file_bytes than rank 0's; an entry too large to be sent,
// by its name), and errors of merge
// functions, of prepare(), of other ranks and of the group. Bytes on the wire: some tens per rank
// for a cached plan. Otherwise all descriptions go to rank 0, and its part of the plan to each
// rank. In both cases ranks send the entries that differ from rank 0's.
absl::StatusOr<SaveTask> AgreeOnSave(const absl::StatusOr<RankState>& local,
                                     const SaveProposal& proposal);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_SAVE_AGREEMENT_H_
