#ifndef TESSERA_TRAINER_COMM_TRANSPORT_H_
#define TESSERA_TRAINER_COMM_TRANSPORT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera {

class Task;

// One message on its way between two ranks of a world. Whoever posts it keeps it, where it is,
// until it is done or withdrawn.
struct Transfer {
  bool is_send = false;
  int peer = 0;          // world rank
  uint32_t match = 0;    // a message meets the receive with the same one; below kMatchLimit
  void* data = nullptr;  // read only, when it is sent
  int64_t bytes = 0;
  Task* task = nullptr;

  bool done = false;
  std::string error;  // why it is done without its data
  int64_t parts = 0;  // for the transport: pieces still on their way
};
inline constexpr uint32_t kMatchLimit = uint32_t{1} << 27;

// Why a world is of no more use.
struct Failure {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  int rank = 0;  // who found it
  // An error of that rank's own, as opposed to having missed others: what it says is the reason.
  bool is_cause = true;
};

// What a rank says about itself when others miss it.
struct PeerState {
  enum Kind { kAnswers, kSilent, kGone } kind = kAnswers;
  std::string text;              // "computing for 3 s after all-reduce #7 of 'dp'"
  std::vector<int> waiting_for;  // world ranks, when it waits itself
};

// How one rank's bytes reach other ranks, and how it learns of their fate. Calls of Post, Poll and
// Withdraw never overlap; the others may be called at any time from any thread.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Starts a transfer. Messages between two ranks with one `match` keep their order.
  virtual void Post(Transfer* transfer) = 0;
  // Moves transfers on and appends those that have ended since the last call. Returns a number that
  // grows whenever there may be something new.
  virtual uint64_t Poll(std::vector<Transfer*>* ended) = 0;
  // Gives up a transfer that is not done: its memory is not touched after this call.
  virtual void Withdraw(Transfer* transfer) = 0;
  // Nothing to do since Poll() returned `seen`, for the `idle_calls`-th time in a row: leaves the
  // processor to others, for `longest` at most, or less when something happens. True if it slept.
  virtual bool Idle(uint64_t seen, int64_t idle_calls, absl::Duration longest) = 0;

  // True once a failure is known, here or elsewhere. Cheap.
  virtual bool failed() const = 0;
  virtual Failure failure() const = 0;
  // Sets this world's failure and tells every rank. The first one counts.
  virtual void Fail(Failure failure) = 0;

  // What other ranks say of themselves, or others of them. Bounded time.
  virtual std::vector<PeerState> Ask(std::span<const int> ranks) = 0;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_COMM_TRANSPORT_H_
