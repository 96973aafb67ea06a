#ifndef TESSERA_COMM_TRANSPORT_H_
#define TESSERA_COMM_TRANSPORT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tessera {

class Task;

// One message between two ranks of a world. The caller that posts a transfer keeps it at the same
// address until it is done or withdrawn.
struct Transfer {
  bool is_send = false;
  int peer = 0;          // world rank
  uint32_t match = 0;    // equal on both sides of a message; below kMatchLimit
  void* data = nullptr;  // read only, when it is sent
  int64_t bytes = 0;
  Task* task = nullptr;

  bool done = false;
  std::string error;  // set if it completed without its data
  int64_t parts = 0;  // used by the transport: parts in transit
};
inline constexpr uint32_t kMatchLimit = uint32_t{1} << 27;

// The reason why a world is unusable.
struct Failure {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  int rank = 0;  // the rank that reported it
  // True for a rank's own error, which is the reason of the failure; false if the rank only noticed
  // that others are missing.
  bool is_cause = true;
};

// The state of a rank, for the diagnostics of ranks that wait for it.
struct PeerState {
  enum Kind { kAnswers, kSilent, kGone } kind = kAnswers;
  std::string text;              // "computing for 3 s after all-reduce #7 of 'dp'"
  std::vector<int> waiting_for;  // world ranks, if it waits itself
};

// Carries one rank's messages to other ranks, and reports their failures. Calls of Post(), Poll()
// and Withdraw() never overlap; the other methods are thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Starts a message. Messages between two ranks with one `match` keep their order.
  virtual void Post(Transfer* transfer) = 0;
  // Makes progress and appends the messages that have completed since the last call. Returns a
  // number that grows whenever there may be something new.
  virtual uint64_t Poll(std::vector<Transfer*>* ended) = 0;
  // Gives up a message that is not done: its memory is not touched after this call.
  virtual void Withdraw(Transfer* transfer) = 0;
  // Called when nothing has happened since Poll() returned `seen`, for the `idle_calls`-th time in
  // a row. Yields the processor for at most `longest`, or less if something happens. True if it
  // slept.
  virtual bool Idle(uint64_t seen, int64_t idle_calls, absl::Duration longest) = 0;

  // Returns whether a failure of this rank or another is known. Cheap.
  virtual bool failed() const = 0;
  virtual Failure failure() const = 0;
  // Sets this world's failure and sends it to every rank. The first failure wins.
  virtual void Fail(Failure failure) = 0;

  // Returns the states of other ranks, from themselves or from ranks that they reported to, in
  // bounded time.
  virtual std::vector<PeerState> Ask(std::span<const int> ranks) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMM_TRANSPORT_H_
