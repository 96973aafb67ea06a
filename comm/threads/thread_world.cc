#include "comm/threads/thread_world.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/no_memory.h"
#include "base/threads.h"

namespace tessera {

ThreadWorld::ThreadWorld(int size, CommOptions options)
    : size_(size), options_(std::move(options)), statuses_(size) {
  CHECK_GT(size, 0);
}

ThreadWorld::~ThreadWorld() = default;

absl::Status ThreadWorld::Run(const std::function<absl::Status(Communicator&)>& rank_main) {
  ThreadHub hub(size_);
  std::vector<absl::StatusCode> codes(size_);
  std::vector<std::string> messages(size_);
  // No rank starts before all threads exist: others would wait for a missing one.
  std::promise<bool> complete;
  const std::shared_future<bool> may_begin = complete.get_future().share();
  std::vector<std::thread> threads = StartThreads(size_, [&, may_begin](int rank) {
    if (!may_begin.get()) return;
    ThreadTransport transport(&hub, rank);
    Endpoint endpoint(&transport, options_);
    transport.Enter(&endpoint);
    {
      Communicator world(&endpoint);
      const absl::Status status = CatchExceptions("go on", [&] { return rank_main(world); });
      codes[rank] = status.code();
      messages[rank] = std::string(status.message());
      if (!status.ok()) world.Abort(status);
    }
    transport.Leave();
  });
  const int started = static_cast<int>(threads.size());
  complete.set_value(started == size_);
  for (std::thread& thread : threads) thread.join();
  if (started < size_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("only ", started, " of ", size_, " ranks could be started as threads"));
  }
  for (int rank = 0; rank < size_; ++rank) {
    statuses_[rank] = absl::Status(codes[rank], messages[rank]);
  }
  const ThreadTransport any(&hub, 0);
  if (!any.failed()) return absl::OkStatus();
  const Failure failure = any.failure();
  return absl::Status(failure.code, absl::StrCat("rank ", failure.rank, ": ", failure.message));
}

void ThreadHub::EndLocked(int rank, Transfer* transfer) {
  ranks_[rank].ended.push_back(transfer);
  ++ranks_[rank].events;
  ranks_[rank].changed.NotifyAll();
}

void ThreadTransport::Enter(Endpoint* endpoint) {
  const MutexLock lock(&hub_->mutex_);
  hub_->ranks_[rank_].endpoint = endpoint;
}

void ThreadTransport::Leave() {
  const MutexLock lock(&hub_->mutex_);
  hub_->ranks_[rank_].endpoint = nullptr;
  hub_->ranks_[rank_].returned = true;
}

void ThreadTransport::Post(Transfer* transfer) {
  const int source = transfer->is_send ? rank_ : transfer->peer;
  const int destination = transfer->is_send ? transfer->peer : rank_;
  MutexLock lock(&hub_->mutex_);
  const auto at = hub_->waiting_.try_emplace({source, destination, transfer->match}).first;
  std::deque<Transfer*>& others = transfer->is_send ? at->second.receives : at->second.sends;
  if (others.empty()) {
    (transfer->is_send ? at->second.sends : at->second.receives).push_back(transfer);
    return;
  }
  Transfer* const other = others.front();
  others.pop_front();
  if (others.empty()) hub_->waiting_.erase(at);
  Transfer* const send = transfer->is_send ? transfer : other;
  Transfer* const receive = transfer->is_send ? other : transfer;
  if (send->bytes != receive->bytes) {
    receive->error = absl::StrCat("rank ", source, " sent ", send->bytes, " bytes where rank ",
                                  destination, " expected ", receive->bytes);
    send->error = receive->error;
  } else if (send->bytes > 0) {
    hub_->copying_.insert(hub_->copying_.end(), {send, receive});
    lock.Unlock();
    std::memcpy(receive->data, send->data, send->bytes);
    lock.Lock();
    std::erase_if(hub_->copying_, [&](Transfer* t) { return t == send || t == receive; });
    hub_->copied_.NotifyAll();
  }
  hub_->EndLocked(source, send);
  hub_->EndLocked(destination, receive);
}

uint64_t ThreadTransport::Poll(std::vector<Transfer*>* ended) {
  const MutexLock lock(&hub_->mutex_);
  ThreadHub::Rank& me = hub_->ranks_[rank_];
  ended->insert(ended->end(), me.ended.begin(), me.ended.end());
  me.ended.clear();
  return me.events;
}

void ThreadTransport::Withdraw(Transfer* transfer) {
  MutexLock lock(&hub_->mutex_);
  // A copy in progress completes soon.
  while (std::find(hub_->copying_.begin(), hub_->copying_.end(), transfer) !=
         hub_->copying_.end()) {
    hub_->copied_.Wait(&hub_->mutex_);
  }
  std::erase(hub_->ranks_[rank_].ended, transfer);
  const int source = transfer->is_send ? rank_ : transfer->peer;
  const int destination = transfer->is_send ? transfer->peer : rank_;
  const auto at = hub_->waiting_.find({source, destination, transfer->match});
  if (at == hub_->waiting_.end()) return;
  std::erase(transfer->is_send ? at->second.sends : at->second.receives, transfer);
  if (at->second.sends.empty() && at->second.receives.empty()) hub_->waiting_.erase(at);
}

bool ThreadTransport::Idle(uint64_t seen, int64_t, absl::Duration longest) {
  MutexLock lock(&hub_->mutex_);
  ThreadHub::Rank& me = hub_->ranks_[rank_];
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(longest);
  while (me.events == seen && !hub_->failed_.load()) {
    if (!me.changed.WaitUntil(&hub_->mutex_, until)) break;
  }
  return true;
}

Failure ThreadTransport::failure() const {
  const MutexLock lock(&hub_->mutex_);
  return hub_->failure_;
}

void ThreadTransport::Fail(Failure failure) {
  const MutexLock lock(&hub_->mutex_);
  if (hub_->failed_.load()) return;
  hub_->failure_ = std::move(failure);
  hub_->failed_.store(true, std::memory_order_release);
  for (ThreadHub::Rank& rank : hub_->ranks_) rank.changed.NotifyAll();
}

std::vector<PeerState> ThreadTransport::Ask(std::span<const int> ranks) {
  std::vector<PeerState> states;
  const MutexLock lock(&hub_->mutex_);
  for (int rank : ranks) {
    const ThreadHub::Rank& peer = hub_->ranks_[rank];
    if (peer.endpoint != nullptr) {
      states.push_back(peer.endpoint->Activity());
    } else if (peer.returned) {
      states.push_back({PeerState::kGone, "has returned from its main function", {}});
    } else {
      states.push_back({PeerState::kAnswers, "has not started yet", {}});
    }
  }
  return states;
}

}  // namespace tessera
