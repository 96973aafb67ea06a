#include "comm/nccl/nccl_world.h"

#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "comm/endpoint.h"
#include "comm/nccl/nccl_communicator.h"

namespace tessera {
namespace {

// How long the watchdog may take to notice a failure of the host world.
constexpr std::chrono::milliseconds kWatchInterval(50);

// Returns rank 0's id on every rank.
absl::StatusOr<NcclApi::UniqueId> SpreadId(Communicator& host, NcclRank& shared) {
  absl::StatusOr<NcclApi::UniqueId> id = NcclApi::UniqueId{};
  if (host.rank() == 0) {
    id = shared.NewId();
    if (!id.ok()) {
      host.Abort(id.status());
      return id;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes,
                           host.BroadcastBytes(std::string_view(id->bytes, sizeof(id->bytes)), 0,
                                               {.timeout = std::nullopt, .what = "NCCL's id"}));
  if (bytes.size() != sizeof(id->bytes)) return absl::InternalError("NCCL's id was cut short");
  std::memcpy(id->bytes, bytes.data(), sizeof(id->bytes));
  return id;
}

}  // namespace

class NcclWorld::Impl {
 public:
  Impl(NcclApi& api, Stream& compute, DeviceReducer& reducer) : rank_(api, compute, reducer) {}

  ~Impl() {
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
      stop_.NotifyAll();
    }
    if (watchdog_.joinable()) watchdog_.join();
    world_.reset();  // waits for followed operations
    rank_.compute().context().SetProgress(nullptr);
  }

  absl::Status Connect(Communicator& host) {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<NcclLane> lane, NcclLane::Create(rank_));
    if (host.size() > 1) {
      TESSERA_ASSIGN_OR_RETURN(const NcclApi::UniqueId id, SpreadId(host, rank_));
      TESSERA_RETURN_IF_ERROR(lane->Connect(host.size(), id, host.rank()));
    }
    TESSERA_ASSIGN_OR_RETURN(CommGroup group, host.Agree(0, host.rank(), host.name(), {}));
    Endpoint* const endpoint = host.endpoint();
    world_ = std::make_unique<NcclCommunicator>(endpoint, std::move(group), rank_, std::move(lane));
    rank_.compute().context().SetProgress([endpoint] { return endpoint->Watch(); });
    return StartWatchdog(endpoint->transport());
  }

  Communicator& world() { return *world_; }

 private:
  absl::Status StartWatchdog(Transport& transport) {
    TESSERA_ASSIGN_OR_RETURN(watchdog_, StartThread([this, &transport] {
                               MutexLock lock(&mutex_);
                               while (!stopping_ && !transport.failed()) {
                                 stop_.WaitUntil(&mutex_,
                                                 std::chrono::steady_clock::now() + kWatchInterval);
                               }
                               if (transport.failed()) rank_.AbortAll();
                             }));
    return absl::OkStatus();
  }

  NcclRank rank_;
  std::unique_ptr<NcclCommunicator> world_;
  Mutex mutex_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watchdog_;
};

NcclWorld::NcclWorld(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclWorld::~NcclWorld() = default;

absl::StatusOr<std::unique_ptr<NcclWorld>> NcclWorld::Create(Communicator& host, NcclApi& api,
                                                             Stream& compute,
                                                             DeviceReducer& reducer) {
  auto impl = std::make_unique<Impl>(api, compute, reducer);
  TESSERA_RETURN_IF_ERROR(impl->Connect(host));
  return std::unique_ptr<NcclWorld>(new NcclWorld(std::move(impl)));
}

Communicator& NcclWorld::world() { return impl_->world(); }

}  // namespace tessera
