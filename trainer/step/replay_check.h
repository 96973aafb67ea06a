#ifndef TESSERA_TRAINER_STEP_REPLAY_CHECK_H_
#define TESSERA_TRAINER_STEP_REPLAY_CHECK_H_

// Detection of silent corruption: a processor, an accelerator or its memory that computes wrongly
// now and then, without an error. A check repeats the gradient of one micro-batch of each
// data-parallel replica on another replica, compares the bits, and finds out which rank was wrong.
//
// Equal bits. Data-parallel replicas at the same position of the tensor and pipeline axes hold the
// same weights: ZeRO shards only gradients and optimizer state. A micro-batch's samples, dropout
// and scale depend on its global index alone. So its loss and its gradients have the same bits on
// every replica whose kernels compute the same bits. In EXACT numerics all do, since other ranks
// are refused. In FAST they do if fixed examples have the same results on all of them; otherwise
// each rank repeats its own micro-batch.
//
// Steps of a check, after the backward pass of a step and before its update:
//
//   1. During the normal pass, each rank digests what leaves the pass of one of its micro-batches
//      (PassTrace): the gradient that is used, not a second one.
//   2. Replica p repeats that micro-batch of replica (p + shift) % R, its tensor and pipeline
//      ranks together, with gradients in memory of their own. So every rank is checked, and checks,
//      at the same time, which takes as long as a single repetition.
//   3. All ranks get one digest of each pass from each rank of the world. If all are equal, the
//      step continues. From here on all ranks decide by these same digests, so they stay together.
//   4. Otherwise there are further repetitions: by the original, by the repeater, and, with three
//      replicas, by a third (JudgeRepetitions). A replica whose result varies is at fault; else
//      the majority is right. Two replicas that each repeat their own result cannot be told apart.
//   5. The check names the rank at fault: the one in that replica whose digest is the first to
//      differ, in the order of computation. If a sum over tensor ranks is wrong, the digests of all
//      its ranks differ, and all are named.
//
// Shift and micro-batch rotate: after (R - 1) * M checks, with M micro-batches of each replica,
// every ordered pair of replicas has been compared over every micro-batch. In FAST numerics with
// ZeRO 0 or 1, where further micro-batches are added to the first one's gradient as they are
// computed, M is 1: the first alone.
//
// With one replica, a rank repeats its own micro-batch, which finds faults that do not recur. No
// check finds a fault that all replicas share, a fault outside of the checked micro-batch, or a
// fault in the reduction over replicas or in the update (for these,
// --check-weight-hash-across-dp-replicas-interval compares the weights).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/parallel/mesh.h"
#include "trainer/step/pass_trace.h"

namespace tessera {

// The micro-batch that a check repeats, and where.
struct ReplayTurn {
  int shift = 0;            // replica p repeats replica (p + shift) % replicas; 0: its own
  int64_t micro_batch = 0;  // by its index on its replica

  bool operator==(const ReplayTurn&) const = default;
};

// Returns the turn after `completed_steps`; nullopt at steps without a check. `replicas` is the
// number of replicas that compute the same bits, `micro_batches` the number of each replica's that
// can be checked.
std::optional<ReplayTurn> ReplayTurnAfter(int64_t completed_steps, int64_t interval, int replicas,
                                          int64_t micro_batches);

// Results of one micro-batch; equal numbers are equal bits in all digests of all ranks of a
// replica. Precondition: original != repeated.
struct Repetitions {
  std::vector<int64_t> original, repeated;              // by one replica, by another
  std::vector<int64_t> original_again, repeated_again;  // by each once more
  std::vector<int64_t> third;                           // by a third replica, or empty
};

struct ReplayVerdict {
  bool original_is_wrong = false;
  bool repeater_is_wrong = false;  // both: at least one of them
  std::string why;                 // a clause
};

ReplayVerdict JudgeRepetitions(const Repetitions& results);
// Judges a replica that has repeated its own micro-batch.
ReplayVerdict JudgeOwnRepetitions(const Repetitions& results);

// Computes a micro-batch of replica (this rank's + shift) % replicas. Collective over the ranks of
// the replica.
using ReplayPass = std::function<absl::StatusOr<PassTrace>(int shift)>;

// Makes a check. Returns a message about its findings, the same on all ranks; empty if there is
// nothing wrong. `used` is the trace of this rank's own micro-batch in the step,
// `global_micro_batch` is by replica. Collective over the world of the mesh. Bytes on the wire: 16
// from each rank to each other; after a difference, 8 for each event of a trace and replica, and
// some more.
absl::StatusOr<std::string> CheckReplay(const ReplayTurn& turn, const PassTrace& used,
                                        const std::vector<int64_t>& global_micro_batch,
                                        const Mesh& mesh, const ReplayPass& pass);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_REPLAY_CHECK_H_
