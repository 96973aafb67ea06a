#ifndef TESSERA_COMM_THREADS_THREAD_WORLD_H_
#define TESSERA_COMM_THREADS_THREAD_WORLD_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "comm/communicator.h"
#include "comm/endpoint.h"
#include "comm/transport.h"

namespace tessera {

// A world whose ranks are threads of this process: for tests and small runs.
//   ThreadWorld world(4);
//   absl::Status status = world.Run([](Communicator& comm) { return comm.Barrier(); });
//
// Threads: Run() is called from one thread at a time. Cost: a message is one memcpy, made by
// whichever side arrives second; waiting ranks sleep.
class ThreadWorld {
 public:
  // Precondition: size > 0.
  explicit ThreadWorld(int size, CommOptions options = {});
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  // Calls `rank_main` on a thread for each rank and returns when all have returned. The first rank
  // that returns an error ends the waits of all others with it. Returns the error, with "rank 2: "
  // before its message, or OK if every rank returned OK. Each call is a new world.
  absl::Status Run(const std::function<absl::Status(Communicator&)>& rank_main);

  // Returns the status of each rank in the last Run().
  const std::vector<absl::Status>& statuses() const { return statuses_; }

 private:
  const int size_;
  const CommOptions options_;
  std::vector<absl::Status> statuses_;
};

// State shared by the threads of one world. No absl::Status crosses threads, because
// ThreadSanitizer does not see its reference counts.
class ThreadHub {
 public:
  explicit ThreadHub(int size) : size_(size), ranks_(size) {}

 private:
  friend class ThreadTransport;

  struct Rank {
    CondVar changed;
    uint64_t events = 0;
    std::vector<Transfer*> ended;
    Endpoint* endpoint = nullptr;  // null before the rank starts and after it has returned
    bool returned = false;
  };
  // The source, destination and match of a message.
  using Route = std::tuple<int, int, uint32_t>;
  struct Waiting {
    std::deque<Transfer*> sends, receives;  // one of them is empty
  };

  void EndLocked(int rank, Transfer* transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int size_;
  mutable Mutex mutex_;
  std::vector<Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  std::map<Route, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  // Both sides of copies in progress, which run without the mutex.
  std::vector<Transfer*> copying_ ABSL_GUARDED_BY(mutex_);
  CondVar copied_;
  std::atomic<bool> failed_ = false;
  Failure failure_ ABSL_GUARDED_BY(mutex_);
};

// The transport of one rank.
class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadHub* hub, int rank) : hub_(hub), rank_(rank) {}

  // Begin and end the time in which other ranks may query the activity of this one.
  void Enter(Endpoint* endpoint);
  void Leave();

  int rank() const override { return rank_; }
  int size() const override { return hub_->size_; }
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

#endif  // TESSERA_COMM_THREADS_THREAD_WORLD_H_
