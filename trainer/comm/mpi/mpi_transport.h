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
//
// MPI cannot be told to let go of memory: a send that it has begun, and a receive that has met its
// message, go on whenever any call moves MPI on. So once such a transfer has been withdrawn, which
// happens only in a world that has failed, this makes no more calls to MPI: nothing is delivered
// into memory that its owner has given up. (An adapter that writes into memory by itself may still
// do so, in the seconds before the process ends.)
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

  // Requests that were withdrawn and that MPI would still carry out.
  int64_t abandoned_requests() const { return abandoned_requests_; }

 private:
  struct Part {
    Transfer* transfer = nullptr;
    int bytes = 0;
  };
  // False where MPI still holds the request's memory.
  bool TakeBack(MPI_Request* request, bool is_send);
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
  int64_t abandoned_requests_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_COMM_MPI_MPI_TRANSPORT_H_
