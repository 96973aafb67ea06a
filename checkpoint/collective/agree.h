#ifndef TESSERA_CHECKPOINT_COLLECTIVE_AGREE_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_AGREE_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/process_group.h"

namespace tessera::ckpt {

// Returns parts[r] of rank 0 on rank r. `parts` is used on rank 0 only, where it has one entry per
// rank.
//
// Collective. A binomial tree: each part passes through at most log2(size) ranks, and rank 0 sends
// log2(size) messages. Memory: a rank holds the parts of its subtree once.
absl::StatusOr<std::string> Scatter(ProcessGroup& group, std::span<const std::string> parts,
                                    absl::Duration timeout);

// Combines the payloads of all ranks, on rank 0, into the answer that every rank receives.
using Combine = std::function<absl::StatusOr<std::string>(const std::vector<std::string>&)>;

// Makes one round of agreement: every rank contributes its own result, and rank 0 combines them.
// Every rank returns the same: the result of `combine` or, if any rank contributed an error, an
// error with the code of the first such rank and the messages of all, each naming its rank. So no
// rank keeps waiting for one that failed on its own.
//
// The error keeps the payloads (absl::Status::SetPayload()) that the errors of all failing ranks
// have: lines of text, each with the rank and a space in front. An error of `combine` is rank 0's.
// If any rank lacks space (IsNoSpace()), so does the agreed error: the next attempt would fail too.
//
// An error of the group itself abandons it: ProcessGroup::Abandon().
//
// Collective. Bytes on the wire: all payloads to rank 0, the combined one to every rank.
absl::StatusOr<std::string> Agree(ProcessGroup& group, const absl::StatusOr<std::string>& mine,
                                  const Combine& combine, absl::Duration timeout);

// Combine and Agree() with a separate answer for each rank, which is sent to that rank alone.
using CombineEach =
    std::function<absl::StatusOr<std::vector<std::string>>(const std::vector<std::string>&)>;
absl::StatusOr<std::string> AgreeEach(ProcessGroup& group, const absl::StatusOr<std::string>& mine,
                                      const CombineEach& combine, absl::Duration timeout);

// Abandons the group because of its error. Returns the error.
absl::Status AbandonGroup(ProcessGroup& group, const absl::Status& error);
// Abandons a group of several ranks, in which this one has run out of memory, or a function of the
// program has thrown. Returns the error.
absl::Status AbandonGroup(ProcessGroup& group, const std::exception& error, const char* action);

// Returns the message of type `Message` that a rank has sent; Internal, naming the rank, for other
// bytes.
absl::Status BadMessageFrom(size_t rank);
template <typename Message>
absl::StatusOr<Message> MessageFrom(size_t rank, const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return BadMessageFrom(rank);
  return message;
}

// Returns the message of type `Message` in an agreement's answer. Other bytes abandon the group, as
// the other ranks, whose answers may be whole, go on and wait for this one.
template <typename Message>
absl::StatusOr<Message> AnswerFrom(ProcessGroup& group, const std::string& bytes) {
  absl::StatusOr<Message> message = MessageFrom<Message>(0, bytes);
  if (!message.ok()) return AbandonGroup(group, message.status());
  return message;
}

// Returns "rank 3", "ranks 0, 4" or, of more than eight, the first eight "and 5 more".
std::string NameRanks(const std::vector<uint32_t>& ranks);

// Returns body(), an absl::Status or absl::StatusOr. If memory is missing between two agreements of
// the body, or another exception ends it, the group is abandoned, because the other ranks wait for
// this one.
template <typename Body>
auto CatchExceptionsIn(ProcessGroup& group, const char* action, const Body& body)
    -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    return AbandonGroup(group, error, action);
  }
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_AGREE_H_
