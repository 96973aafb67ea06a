#ifndef TESSERA_TRAINER_COMM_THREADS_THREAD_TRANSPORT_H_
#define TESSERA_TRAINER_COMM_THREADS_THREAD_TRANSPORT_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "trainer/comm/endpoint.h"
#include "trainer/comm/transport.h"

namespace tessera {

// State shared by the threads of one world. Uses only std primitives, which ThreadSanitizer
// understands; no absl::Status crosses threads, because ThreadSanitizer does not see its reference
// counts.
class ThreadHub {
 public:
  explicit ThreadHub(int size) : ranks_(size) {}

 private:
  friend class ThreadTransport;

  struct Rank {
    std::condition_variable changed;
    uint64_t events = 0;
    std::vector<Transfer*> ended;
    Endpoint* endpoint = nullptr;  // null before the rank starts and after it has returned
    bool returned = false;
  };
  // Source, destination, match.
  using Route = std::tuple<int, int, uint32_t>;
  struct Waiting {
    std::deque<Transfer*> sends, receives;  // one of them is empty
  };

  void EndLocked(int rank, Transfer* transfer);

  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::map<Route, Waiting> waiting_;
  std::vector<Transfer*> copying_;  // both sides of copies in progress, outside the mutex
  std::condition_variable copied_;
  std::atomic<bool> failed_ = false;
  Failure failure_;
};

// One rank's side.
class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadHub* hub, int rank) : hub_(hub), rank_(rank) {}

  // Between these two calls, other ranks may query the activity of this one.
  void Enter(Endpoint* endpoint);
  void Leave();

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->ranks_.size()); }
  void Post(Transfer* transfer) override;
  uint64_t Poll(std::vector<Transfer*>* ended) override;
  void Withdraw(Transfer* transfer) override;
  bool Idle(uint64_t seen, int64_t idle_calls, absl::Duration longest) override;
  bool failed() const override { return hub_->failed_.load(std::memory_order_acquire); }
  Failure failure() const override;
  void Fail(Failure failure) override;
  std::vector<PeerState> Ask(std::span<const int> ranks) override;

 private:
  ThreadHub* const hub_;
  const int rank_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_COMM_THREADS_THREAD_TRANSPORT_H_
