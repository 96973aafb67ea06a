#include "compute/comm/threads/thread_world.h"

#include <glog/logging.h>

#include <future>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads.h"
#include "compute/comm/endpoint.h"
#include "compute/comm/threads/thread_transport.h"

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
      const absl::Status status = rank_main(world);
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

}  // namespace tessera
