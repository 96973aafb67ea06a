#ifndef TESSERA_COMM_NCCL_TESTING_FAKE_NCCL_H_
#define TESSERA_COMM_NCCL_TESTING_FAKE_NCCL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/nccl/nccl_api.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {

struct FakeComm;
struct FakeClique;

// State shared by the ranks of one world.
class FakeNcclNet {
 public:
  explicit FakeNcclNet(std::shared_ptr<FakeFabric> fabric);
  ~FakeNcclNet();

  // Number of communicators that were aborted.
  int64_t aborts() const;

 private:
  friend class FakeNccl;
  const std::shared_ptr<FakeFabric> fabric_;
  // Guarded by the fabric's mutex. Communicators are kept until the end, so that uses after
  // destruction are detected.
  std::vector<std::unique_ptr<FakeComm>> comms_;
  std::map<uint64_t, std::shared_ptr<FakeClique>> cliques_;  // by unique id
  uint64_t next_id_ = 1;
  int64_t aborts_ = 0;
};

struct FakeNcclOptions {
  uint64_t seed = 0;
  // Number of the launch at which the rank's communicator reports `error`, and which never ends;
  // -1: none.
  int64_t fail_at_launch = -1;
  NcclApi::Result error = NcclApi::kRemoteError;
};

// NCCL on a fake device, for one rank. Does what NCCL permits: communicators connect late; calls
// that return kInProgress are queued on the stream only when AsyncError() has been polled; a
// message ends when both sides' streams have come to it. A call on a communicator that is not
// settled is an error, and one on a destroyed communicator ends the process.
class FakeNccl final : public NcclApi {
 public:
  // `net` and `device` must outlive this object; the device belongs to the net's fabric.
  FakeNccl(FakeNcclNet& net, FakeDeviceRuntime& device, const FakeNcclOptions& options);

  Result GetUniqueId(UniqueId* id) override;
  Result CommInitRank(Comm* comm, int ranks, const UniqueId& id, int rank) override;
  Result CommSplit(Comm parent, int color, int key, Comm* child) override;
  Result CommDestroy(Comm comm) override;
  Result CommAbort(Comm comm) override;
  Result AsyncError(Comm comm, Result* state) override;
  Result GroupStart() override;
  Result GroupEnd() override;
  Result Send(const void* data, size_t bytes, int peer, Comm comm, StreamHandle stream) override;
  Result Receive(void* data, size_t bytes, int peer, Comm comm, StreamHandle stream) override;
  Result AllGather(const void* send, void* receive, size_t bytes, Comm comm,
                   StreamHandle stream) override;
  Result Broadcast(void* data, size_t bytes, int root, Comm comm, StreamHandle stream) override;
  std::string ErrorString(Result result) override;
  std::string LastError(Comm comm) override;

 private:
  struct Launch;

  FakeComm* NewComm(const std::shared_ptr<FakeClique>& clique, int rank);
  int RandomDelay();
  Launch& Pending(FakeComm* comm, StreamHandle stream);
  Result Add(bool is_send, void* data, size_t bytes, int peer, Comm comm, StreamHandle stream);
  void Queue(std::shared_ptr<Launch> launch);
  // Called with the fabric's mutex held.
  static bool TryRun(Launch& launch);
  static void Post(Launch& launch);
  bool FinishSplit(FakeComm& parent);

  FakeNcclNet& net_;
  FakeDeviceRuntime& device_;
  const FakeNcclOptions options_;
  std::mt19937_64 random_;
  int depth_ = 0;
  std::shared_ptr<Launch> group_;
  int64_t launches_ = 0;
  friend struct FakeComm;
};

}  // namespace tessera

#endif  // TESSERA_COMM_NCCL_TESTING_FAKE_NCCL_H_
