#ifndef TESSERA_CHECKPOINT_COLLECTIVE_AGREE_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_AGREE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/collective/process_group.h"

namespace tessera::ckpt {

// Runs on rank 0: the payloads of all ranks -> what every rank is told.
using Combine = std::function<absl::StatusOr<std::string>(const std::vector<std::string>&)>;

// One round of agreement: every rank brings its own result, rank 0 combines, and every rank returns
// the same: what `combine` made of all payloads or, if any rank brought an error, an error with the
// code of the first such rank and the messages of all, each naming its rank. Nobody is left waiting
// for a rank that failed on its own.
//
// `everyone_reported` (may be null) is set on rank 0 once all ranks have brought theirs.
//
// Collective. Bytes on the wire: all payloads to rank 0, the combined one to everybody.
absl::StatusOr<std::string> Agree(ProcessGroup& group, const absl::StatusOr<std::string>& mine,
                                  const Combine& combine, absl::Duration deadline,
                                  bool* everyone_reported = nullptr);

// The same with an answer for each rank, which travels to that rank alone.
using CombineEach =
    std::function<absl::StatusOr<std::vector<std::string>>(const std::vector<std::string>&)>;
absl::StatusOr<std::string> AgreeEach(ProcessGroup& group, const absl::StatusOr<std::string>& mine,
                                      const CombineEach& combine, absl::Duration deadline);

// The same where there is nothing to tell.
absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, absl::Duration deadline);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_AGREE_H_
