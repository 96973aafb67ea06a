#ifndef TESSERA_CHECKPOINT_ENGINE_THREAD_PROCESS_GROUP_H_
#define TESSERA_CHECKPOINT_ENGINE_THREAD_PROCESS_GROUP_H_

// Ranks as threads of one process, for tests.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "checkpoint/engine/process_group.h"

namespace tessera::ckpt {

// What the ranks of one group share. The standard library's locks, which ThreadSanitizer understands; the system's Abseil is
// not built for it.
class ThreadGroupHub {
 public:
  explicit ThreadGroupHub(int size) : size_(size) {}
  int size() const { return size_; }

  // Leaves a message for operation number `operation`, and waits for those of all ranks or of rank 0 alone.
  absl::StatusOr<std::vector<std::string>> Exchange(int64_t operation, int rank,
                                                    std::string_view message, bool wait_for_all,
                                                    bool wait_for_rank_0, absl::Duration deadline) {
    std::unique_lock lock(mutex_);
    Operation& state = operations_[operation];
    state.messages.resize(size_);
    state.arrived.resize(size_);
    state.messages[rank] = std::string(message);
    state.arrived[rank] = true;
    arrival_.notify_all();
    const auto complete = [&] {
      if (wait_for_rank_0 && !state.arrived[0]) return false;
      for (int r = 0; wait_for_all && r < size_; ++r) {
        if (!state.arrived[r]) return false;
      }
      return true;
    };
    const auto until = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline);
    if (!arrival_.wait_until(lock, until, complete)) {
      std::string missing;
      for (int r = 0; r < size_; ++r) {
        if (!state.arrived[r]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", r);
      }
      return absl::DeadlineExceededError(absl::StrCat("missing ranks: ", missing));
    }
    return state.messages;
  }

 private:
  struct Operation {
    std::vector<std::string> messages;
    std::vector<bool> arrived;
  };
  const int size_;
  std::mutex mutex_;
  std::condition_variable arrival_;
  std::map<int64_t, Operation> operations_;  // under mutex_
};

class ThreadProcessGroup final : public ProcessGroup {
 public:
  ThreadProcessGroup(ThreadGroupHub& hub, int rank) : hub_(hub), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration deadline) override {
    auto all = hub_.Exchange(next_++, rank_, mine, rank_ == 0, false, deadline);
    if (all.ok() && rank_ != 0) all->clear();
    return all;
  }
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration deadline) override {
    const auto all = hub_.Exchange(next_++, rank_, from_rank_0, false, true, deadline);
    if (!all.ok()) return all.status();
    return (*all)[0];
  }
  absl::Status Barrier(absl::Duration deadline) override {
    return hub_.Exchange(next_++, rank_, "", true, false, deadline).status();
  }

 private:
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

#endif  // TESSERA_CHECKPOINT_ENGINE_THREAD_PROCESS_GROUP_H_
