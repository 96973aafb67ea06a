#ifndef TESSERA_TRAINER_COMM_MPI_MPI_TRANSPORT_H_
#define TESSERA_TRAINER_COMM_MPI_MPI_TRANSPORT_H_

#include <mpi/mpi.h>

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/comm/mpi/monitor.h"
#include "trainer/comm/transport.h"

namespace tessera {

// Messages are nonblocking MPI sends and receives on one MPI communicator: groups are told apart by
// tags, so that splitting, too, can give up waiting. MPI needs MPI_THREAD_SERIALIZED: the endpoint
// calls one at a time.
class MpiTransport final : public Transport {
 public:
  // Both must outlive it.
  MpiTransport(MPI_Comm comm, Monitor* monitor, int64_t part_bytes);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void Post(Transfer* transfer) override;
  uint64_t Poll(std::vector<Transfer*>* ended) override;
  void Withdraw(Transfer* transfer) override;
  bool Idle(uint64_t seen, int64_t idle_calls, absl::Duration longest) override;
  bool failed() const override { return monitor_->failed(); }
  Failure failure() const override { return monitor_->failure(); }
  void Fail(Failure failure) override { monitor_->Fail(std::move(failure)); }
  std::vector<PeerState> Ask(std::span<const int> ranks) override { return monitor_->Ask(ranks); }

 private:
  struct Part {
    Transfer* transfer = nullptr;
    int bytes = 0;
  };
  void Finish(const Part& part, const MPI_Status& status, int error);

  const MPI_Comm comm_;
  Monitor* const monitor_;
  const int64_t part_bytes_;
  int rank_ = 0, size_ = 1;

  // Parallel arrays: MPI wants its own in one piece.
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<Transfer*> ended_;
  uint64_t events_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_COMM_MPI_MPI_TRANSPORT_H_
