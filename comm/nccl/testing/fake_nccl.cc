#include "comm/nccl/testing/fake_nccl.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace tessera {
namespace {

// One side of a message.
struct Half {
  bool is_send = false;
  void* data = nullptr;
  size_t bytes = 0;
  int peer = 0;
  FakeComm* comm = nullptr;
  bool done = false;
};

}  // namespace

struct FakeNccl::Launch {
  FakeComm* comm = nullptr;
  StreamHandle stream = nullptr;
  std::vector<std::shared_ptr<Half>> halves;
  const void* local_from = nullptr;  // the rank's own piece
  void* local_to = nullptr;
  size_t local_bytes = 0;
  bool posted = false;
  bool never_ends = false;
};

struct FakeComm {
  std::shared_ptr<FakeClique> clique;
  FakeNccl* owner = nullptr;
  FakeDeviceRuntime* device = nullptr;
  int rank = 0;
  int delay = 0;  // polls until the call in progress has been made
  std::shared_ptr<FakeNccl::Launch> in_progress;
  NcclApi::Comm* split_result = nullptr;  // of a split in progress
  int splits = 0;
  NcclApi::Result error = NcclApi::kSuccess;
  bool aborted = false;
  bool destroyed = false;
  int64_t running = 0;  // launches that have not ended
  std::vector<NcclApi::StreamHandle> streams;
};

// The ranks of one communicator.
struct FakeClique {
  struct Vote {
    int color = 0, key = 0;
  };

  explicit FakeClique(int size) : members(size) {}
  bool complete() const {
    return std::none_of(members.begin(), members.end(), [](FakeComm* m) { return m == nullptr; });
  }

  std::vector<FakeComm*> members;
  // By sender and receiver, in the order in which the streams came to them.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Half>>> sends, receives;
  std::map<int, std::map<int, Vote>> votes;                                  // by split and rank
  std::map<std::pair<int, int>, std::shared_ptr<FakeClique>> split_cliques;  // split, color
};

namespace {

bool MayTouch(FakeComm& comm, const void* data, size_t bytes) {
  return comm.device->MayTouch("NCCL", data, static_cast<int64_t>(bytes), /*or_pinned=*/true);
}

void MatchMessages(FakeClique& clique, int from, int to) {
  auto& sends = clique.sends[{from, to}];
  auto& receives = clique.receives[{from, to}];
  while (!sends.empty() && !receives.empty()) {
    Half& send = *sends.front();
    Half& receive = *receives.front();
    if (send.bytes != receive.bytes) receive.comm->error = NcclApi::kInvalidUsage;
    if (MayTouch(*send.comm, send.data, send.bytes) &&
        MayTouch(*receive.comm, receive.data, receive.bytes)) {
      std::memcpy(receive.data, send.data, std::min(send.bytes, receive.bytes));
    }
    send.done = receive.done = true;
    sends.pop_front();
    receives.pop_front();
  }
}

FakeComm& Live(NcclApi::Comm handle) {
  FakeComm& comm = *static_cast<FakeComm*>(handle);
  CHECK(!comm.aborted && !comm.destroyed) << "a communicator is used after it was destroyed";
  return comm;
}

bool IsSettled(const FakeComm& comm) {
  return comm.clique->complete() && comm.in_progress == nullptr && comm.split_result == nullptr &&
         comm.delay == 0;
}

}  // namespace

FakeNcclNet::FakeNcclNet(std::shared_ptr<FakeFabric> fabric) : fabric_(std::move(fabric)) {}
FakeNcclNet::~FakeNcclNet() = default;

int64_t FakeNcclNet::aborts() const {
  const MutexLock lock(&fabric_->mutex);
  return aborts_;
}

FakeNccl::FakeNccl(FakeNcclNet& net, FakeDeviceRuntime& device, const FakeNcclOptions& options)
    : net_(net), device_(device), options_(options), random_(options.seed) {}

int FakeNccl::RandomDelay() { return std::uniform_int_distribution<int>(0, 3)(random_); }

FakeComm* FakeNccl::NewComm(const std::shared_ptr<FakeClique>& clique, int rank) {
  auto comm = std::make_unique<FakeComm>();
  comm->clique = clique;
  comm->owner = this;
  comm->device = &device_;
  comm->rank = rank;
  comm->delay = RandomDelay();
  CHECK(clique->members[rank] == nullptr) << "two ranks " << rank;
  clique->members[rank] = comm.get();
  return net_.comms_.emplace_back(std::move(comm)).get();
}

NcclApi::Result FakeNccl::GetUniqueId(UniqueId* id) {
  const MutexLock lock(&net_.fabric_->mutex);
  const uint64_t number = net_.next_id_++;
  std::memset(id->bytes, 0x5a, sizeof(id->bytes));
  std::memcpy(id->bytes + sizeof(id->bytes) - sizeof(number), &number, sizeof(number));
  return kSuccess;
}

NcclApi::Result FakeNccl::CommInitRank(Comm* comm, int ranks, const UniqueId& id, int rank) {
  const MutexLock lock(&net_.fabric_->mutex);
  uint64_t number = 0;
  std::memcpy(&number, id.bytes + sizeof(id.bytes) - sizeof(number), sizeof(number));
  std::shared_ptr<FakeClique>& clique = net_.cliques_[number];
  if (clique == nullptr) clique = std::make_shared<FakeClique>(ranks);
  *comm = NewComm(clique, rank);
  return kInProgress;
}

NcclApi::Result FakeNccl::CommSplit(Comm parent, int color, int key, Comm* child) {
  const MutexLock lock(&net_.fabric_->mutex);
  FakeComm& comm = Live(parent);
  if (!IsSettled(comm)) return kInvalidUsage;
  comm.clique->votes[comm.splits][comm.rank] = {color, key};
  comm.split_result = child;
  comm.delay = RandomDelay();
  return kInProgress;
}

bool FakeNccl::FinishSplit(FakeComm& parent) {
  FakeClique& clique = *parent.clique;
  const std::map<int, FakeClique::Vote>& votes = clique.votes[parent.splits];
  if (votes.size() < clique.members.size()) return false;
  const FakeClique::Vote mine = votes.at(parent.rank);
  Comm* const result = std::exchange(parent.split_result, nullptr);
  const int number = parent.splits++;
  *result = nullptr;
  if (mine.color < 0) return true;
  std::vector<std::pair<int, int>> order;  // key, rank
  for (const auto& [rank, vote] : votes) {
    if (vote.color == mine.color) order.emplace_back(vote.key, rank);
  }
  std::sort(order.begin(), order.end());
  std::shared_ptr<FakeClique>& child = clique.split_cliques[{number, mine.color}];
  if (child == nullptr) child = std::make_shared<FakeClique>(static_cast<int>(order.size()));
  const auto at = std::find(order.begin(), order.end(), std::pair(mine.key, parent.rank));
  *result = NewComm(child, static_cast<int>(at - order.begin()));
  return true;
}

NcclApi::Result FakeNccl::CommDestroy(Comm handle) {
  const MutexLock lock(&net_.fabric_->mutex);
  FakeComm& comm = Live(handle);
  CHECK_EQ(comm.running, 0) << "a communicator is destroyed while it is in use";
  comm.destroyed = true;
  return kSuccess;
}

NcclApi::Result FakeNccl::CommAbort(Comm handle) {
  const MutexLock lock(&net_.fabric_->mutex);
  FakeComm& comm = Live(handle);
  comm.aborted = true;
  ++net_.aborts_;
  const auto is_mine = [&](const std::shared_ptr<Half>& half) { return half->comm == &comm; };
  for (auto& [route, halves] : comm.clique->sends) std::erase_if(halves, is_mine);
  for (auto& [route, halves] : comm.clique->receives) std::erase_if(halves, is_mine);
  device_.Notify();
  return kSuccess;
}

NcclApi::Result FakeNccl::AsyncError(Comm handle, Result* state) {
  std::shared_ptr<Launch> launch;
  {
    const MutexLock lock(&net_.fabric_->mutex);
    FakeComm& comm = Live(handle);
    *state = comm.error;
    if (comm.error != kSuccess) return kSuccess;
    *state = kInProgress;
    if (!comm.clique->complete()) return kSuccess;
    if (comm.delay > 0) {
      --comm.delay;
      return kSuccess;
    }
    if (comm.split_result != nullptr && !FinishSplit(comm)) return kSuccess;
    *state = kSuccess;
    launch = std::move(comm.in_progress);
    comm.in_progress = nullptr;
  }
  if (launch != nullptr) Queue(std::move(launch));
  return kSuccess;
}

NcclApi::Result FakeNccl::GroupStart() {
  ++depth_;
  return kSuccess;
}

FakeNccl::Launch& FakeNccl::Pending(FakeComm* comm, StreamHandle stream) {
  if (group_ == nullptr) {
    group_ = std::make_shared<Launch>();
    group_->comm = comm;
    group_->stream = stream;
  }
  CHECK(group_->comm == comm && group_->stream == stream);
  return *group_;
}

NcclApi::Result FakeNccl::GroupEnd() {
  if (--depth_ > 0 || group_ == nullptr) return kSuccess;
  std::shared_ptr<Launch> launch = std::exchange(group_, nullptr);
  {
    const MutexLock lock(&net_.fabric_->mutex);
    FakeComm& comm = *launch->comm;
    if (!IsSettled(comm)) return kInvalidUsage;
    ++comm.running;
    if (launches_++ == options_.fail_at_launch) {
      launch->never_ends = true;
      comm.error = options_.error;
    }
    comm.delay = RandomDelay();
    if (comm.delay > 0) {
      comm.in_progress = std::move(launch);
      return kInProgress;
    }
  }
  Queue(std::move(launch));
  return kSuccess;
}

NcclApi::Result FakeNccl::Add(bool is_send, void* data, size_t bytes, int peer, Comm handle,
                              StreamHandle stream) {
  GroupStart();
  {
    const MutexLock lock(&net_.fabric_->mutex);
    FakeComm& comm = Live(handle);
    auto half = std::make_shared<Half>();
    *half = {is_send, data, bytes, peer, &comm, false};
    Pending(&comm, stream).halves.push_back(std::move(half));
  }
  return GroupEnd();
}

NcclApi::Result FakeNccl::Send(const void* data, size_t bytes, int peer, Comm comm,
                               StreamHandle stream) {
  return Add(true, const_cast<void*>(data), bytes, peer, comm, stream);
}

NcclApi::Result FakeNccl::Receive(void* data, size_t bytes, int peer, Comm comm,
                                  StreamHandle stream) {
  return Add(false, data, bytes, peer, comm, stream);
}

NcclApi::Result FakeNccl::AllGather(const void* send, void* receive, size_t bytes, Comm handle,
                                    StreamHandle stream) {
  const FakeComm& comm = *static_cast<FakeComm*>(handle);
  const int size = static_cast<int>(comm.clique->members.size());
  char* const all = static_cast<char*>(receive);
  GroupStart();
  for (int i = 0; i < size; ++i) {
    if (i == comm.rank) continue;
    Send(send, bytes, i, handle, stream);
    Receive(all + static_cast<size_t>(i) * bytes, bytes, i, handle, stream);
  }
  Launch& launch = Pending(static_cast<FakeComm*>(handle), stream);
  launch.local_from = send;
  launch.local_to = all + static_cast<size_t>(comm.rank) * bytes;
  launch.local_bytes = bytes;
  return GroupEnd();
}

NcclApi::Result FakeNccl::Broadcast(void* data, size_t bytes, int root, Comm handle,
                                    StreamHandle stream) {
  const FakeComm& comm = *static_cast<FakeComm*>(handle);
  const int size = static_cast<int>(comm.clique->members.size());
  GroupStart();
  for (int i = 0; i < size; ++i) {
    if (comm.rank == root && i != root) Send(data, bytes, i, handle, stream);
  }
  if (comm.rank != root) Receive(data, bytes, root, handle, stream);
  return GroupEnd();
}

void FakeNccl::Queue(std::shared_ptr<Launch> launch) {
  {
    const MutexLock lock(&net_.fabric_->mutex);
    std::vector<StreamHandle>& streams = launch->comm->streams;
    if (std::find(streams.begin(), streams.end(), launch->stream) == streams.end()) {
      streams.push_back(launch->stream);
    }
  }
  const StreamHandle stream = launch->stream;
  device_.EnqueueShared(stream, [launch = std::move(launch)] { return TryRun(*launch); });
}

void FakeNccl::Post(Launch& launch) {
  launch.posted = true;
  FakeClique& clique = *launch.comm->clique;
  if (launch.local_from != launch.local_to &&
      MayTouch(*launch.comm, launch.local_from, launch.local_bytes) &&
      MayTouch(*launch.comm, launch.local_to, launch.local_bytes)) {
    std::memcpy(launch.local_to, launch.local_from, launch.local_bytes);
  }
  for (const std::shared_ptr<Half>& half : launch.halves) {
    const int from = half->is_send ? launch.comm->rank : half->peer;
    const int to = half->is_send ? half->peer : launch.comm->rank;
    (half->is_send ? clique.sends : clique.receives)[{from, to}].push_back(half);
    MatchMessages(clique, from, to);
  }
  launch.comm->device->Notify();
}

bool FakeNccl::TryRun(Launch& launch) {
  FakeComm& comm = *launch.comm;
  const auto is_done = [](const std::shared_ptr<Half>& half) { return half->done; };
  const auto ended = [&] {
    return comm.aborted ||
           (!launch.never_ends && std::all_of(launch.halves.begin(), launch.halves.end(), is_done));
  };
  if (!launch.posted && !comm.aborted && !launch.never_ends) Post(launch);
  for (const std::shared_ptr<Half>& half : launch.halves) {
    if (ended()) break;
    // The peer's device runs, too.
    FakeComm* const peer = comm.clique->members[half->peer];
    if (half->done || peer == nullptr || peer->aborted || peer->destroyed) continue;
    for (StreamHandle stream : peer->streams) peer->device->RunNext(stream);
  }
  if (!ended()) return false;
  --comm.running;
  return true;
}

std::string FakeNccl::ErrorString(Result result) {
  switch (result) {
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInvalidUsage:
      return "invalid usage";
    default:
      return absl::StrCat("error ", static_cast<int>(result));
  }
}

std::string FakeNccl::LastError(Comm /*comm*/) { return ""; }

}  // namespace tessera
