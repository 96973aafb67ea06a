#ifndef TESSERA_COMM_MPI_MPI_TRANSPORT_H_
#define TESSERA_COMM_MPI_MPI_TRANSPORT_H_

#include <mpi/mpi.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "comm/mpi/monitor.h"
#include "comm/transport.h"

namespace tessera {

// A transport whose messages are nonblocking MPI sends and receives on one MPI communicator. Groups
// are told apart by tags, so that splitting a group can time out like any other operation. MPI must
// provide MPI_THREAD_SERIALIZED: the endpoint serializes its calls.
//
// MPI cannot be made to release memory: a send that has begun, and a receive that has matched a
// message, continue whenever any call makes MPI progress. Therefore this transport makes no more
// MPI calls once such a message has been withdrawn, which happens only in a world that has failed:
// nothing is delivered into memory that its owner has released. (A network adapter that writes to
// memory by itself may still do so in the seconds before the process ends.)
class MpiTransport final : public Transport {
 public:
  // `comm` and `monitor` must outlive the transport.
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

  // Number of requests that were withdrawn but that MPI may still carry out.
  int64_t abandoned_requests() const { return abandoned_requests_; }

 private:
  struct Part {
    Transfer* transfer = nullptr;
    int bytes = 0;
  };
  // Cancels a request; returns false if MPI still uses its memory.
  bool TakeBack(MPI_Request* request, bool is_send);
  void Finish(const Part& part, const MPI_Status& status, int error);

  const MPI_Comm comm_;
  Monitor* const monitor_;
  const int64_t part_bytes_;
  int rank_ = 0, size_ = 1;

  // Parallel arrays, because MPI takes a contiguous array of requests.
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<Transfer*> ended_;
  uint64_t events_ = 0;
  int64_t abandoned_requests_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMM_MPI_MPI_TRANSPORT_H_
