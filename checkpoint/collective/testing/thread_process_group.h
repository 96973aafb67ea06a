#ifndef TESSERA_CHECKPOINT_COLLECTIVE_TESTING_THREAD_PROCESS_GROUP_H_
#define TESSERA_CHECKPOINT_COLLECTIVE_TESTING_THREAD_PROCESS_GROUP_H_

// A process group whose ranks are threads of one process.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "checkpoint/include/process_group.h"

namespace tessera::ckpt {

// State shared by the ranks of one group.
class ThreadGroupHub {
 public:
  explicit ThreadGroupHub(int size) : size_(size) {}
  int size() const { return size_; }

  // Leaves a message for operation number `operation`, and returns the messages of these ranks when
  // they have left theirs.
  absl::StatusOr<std::vector<std::string>> Exchange(int64_t operation, int rank,
                                                    std::string_view message,
                                                    const std::vector<int>& awaited,
                                                    absl::Duration timeout) {
    MutexLock lock(&mutex_);
    Operation& state = operations_[operation];
    state.messages.try_emplace(rank, message);
    arrival_.NotifyAll();
    std::vector<int> missing;
    const auto complete = [&] {
      missing = awaited;
      std::erase_if(missing, [&](int r) { return state.messages.contains(r); });
      return missing.empty();
    };
    const auto until = Until(timeout);
    bool in_time = true;
    while (in_time && !complete()) in_time = arrival_.WaitUntil(&mutex_, until);
    if (!complete()) {
      return absl::DeadlineExceededError(
          absl::StrCat("missing ranks: ", absl::StrJoin(missing, ", ")));
    }
    std::vector<std::string> seen;
    for (const int r : awaited) seen.push_back(state.messages[r]);
    if (++state.left == size_) operations_.erase(operation);
    return seen;
  }

  // One side of a message. Nothing is transferred before both sides have arrived, like messages
  // that are too large for a library's own buffers.
  struct Side {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
    bool done = false;
    absl::Status status;
  };
  using Pair = std::pair<int, int>;  // source and destination

  void Start(Pair pair, const std::shared_ptr<Side>& side) {
    const MutexLock lock(&mutex_);
    Queue& queue = queues_[pair];
    (side->to == nullptr ? queue.sends : queue.receives).push_back(side);
    while (!queue.sends.empty() && !queue.receives.empty()) {
      Side& send = *queue.sends.front();
      Side& receive = *queue.receives.front();
      if (send.bytes == receive.bytes) {
        std::memcpy(receive.to, send.from, send.bytes);
      } else {
        send.status = receive.status = absl::InternalError(
            absl::StrCat("a message of ", send.bytes, " bytes for a receive of ", receive.bytes));
      }
      send.done = receive.done = true;
      queue.sends.pop_front();
      queue.receives.pop_front();
    }
    arrival_.NotifyAll();
  }

  absl::Status Wait(const Side& side, int peer, absl::Duration timeout) {
    MutexLock lock(&mutex_);
    const auto until = Until(timeout);
    bool in_time = true;
    while (in_time && !side.done) in_time = arrival_.WaitUntil(&mutex_, until);
    if (side.done) return side.status;
    return absl::DeadlineExceededError(absl::StrCat("missing ranks: ", peer));
  }

  void Withdraw(Pair pair, const std::shared_ptr<Side>& side) {
    const MutexLock lock(&mutex_);
    std::erase(queues_[pair].sends, side);
    std::erase(queues_[pair].receives, side);
  }

 private:
  struct Operation {
    std::map<int, std::string> messages;  // by rank
    int left = 0;                         // ranks that no longer need it
  };
  struct Queue {
    std::deque<std::shared_ptr<Side>> sends, receives;
  };

  static std::chrono::steady_clock::time_point Until(absl::Duration timeout) {
    return std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(timeout);
  }

  const int size_;
  Mutex mutex_;
  CondVar arrival_;
  std::map<int64_t, Operation> operations_ ABSL_GUARDED_BY(mutex_);
  std::map<Pair, Queue> queues_ ABSL_GUARDED_BY(mutex_);
};

class ThreadProcessGroup final : public ProcessGroup {
 public:
  ThreadProcessGroup(ThreadGroupHub& hub, int rank) : hub_(hub), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override {
    std::vector<int> awaited(rank_ == 0 ? size() : 0);
    std::iota(awaited.begin(), awaited.end(), 0);
    return hub_.Exchange(next_++, rank_, mine, awaited, timeout);
  }
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    TESSERA_ASSIGN_OR_RETURN(auto seen, hub_.Exchange(next_++, rank_, from_rank_0, {0}, timeout));
    return std::move(seen[0]);
  }
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    auto side = std::make_shared<ThreadGroupHub::Side>();
    side->from = data.data();
    side->bytes = data.size();
    return std::make_unique<ThreadMessage>(hub_, std::pair(rank_, destination), destination,
                                           std::move(side));
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    auto side = std::make_shared<ThreadGroupHub::Side>();
    side->to = data.data();
    side->bytes = data.size();
    return std::make_unique<ThreadMessage>(hub_, std::pair(source, rank_), source, std::move(side));
  }

 private:
  class ThreadMessage final : public PendingMessage {
   public:
    ThreadMessage(ThreadGroupHub& hub, ThreadGroupHub::Pair pair, int peer,
                  std::shared_ptr<ThreadGroupHub::Side> side)
        : hub_(hub), pair_(pair), peer_(peer), side_(std::move(side)) {
      hub_.Start(pair_, side_);
    }
    ~ThreadMessage() override { hub_.Withdraw(pair_, side_); }
    absl::Status Wait(absl::Duration timeout) override { return hub_.Wait(*side_, peer_, timeout); }

   private:
    ThreadGroupHub& hub_;
    const ThreadGroupHub::Pair pair_;
    const int peer_;
    const std::shared_ptr<ThreadGroupHub::Side> side_;
  };

  ThreadGroupHub& hub_;
  const int rank_;
  int64_t next_ = 0;
};

// Calls body(group) on `size` threads, one per rank, and waits for them.
inline void RunRanks(int size, const std::function<void(ProcessGroup&)>& body) {
  ThreadGroupHub hub(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&hub, &body, rank] {
      ThreadProcessGroup group(hub, rank);
      body(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_COLLECTIVE_TESTING_THREAD_PROCESS_GROUP_H_
