#ifndef TESSERA_COMM_NCCL_NCCL_WORLD_H_
#define TESSERA_COMM_NCCL_NCCL_WORLD_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/nccl/device_reducer.h"
#include "comm/nccl/nccl_api.h"
#include "tensor/device.h"

namespace tessera {

// A world whose buffers are device memory that NCCL moves, over a world of the same ranks in host
// memory:
//   auto nccl = NcclWorld::Create(host, *api, compute, reducer);
//   (*nccl)->world().AllReduce(device_buffer, ReduceOp::kSum);
//
// The host world does operations on byte strings, barriers, the agreement on splits, deadlines,
// diagnostics and Abort(). Everything else is queued on streams of the device:
// - A Start method records an event on the compute stream. The operation runs on its communicator's
//   own stream after that event.
// - Wait() returns once the operation has ended on the device, so that work queued afterwards on
//   any stream sees its result. Until then it polls the device, NCCL's asynchronous error, the host
//   world's failures and the clock.
// - Follow() returns once the operation has been queued and the compute stream waits for its event.
//   From then on, every Synchronize() of the device (device.h) polls the operation as Wait() does,
//   and ends with its error.
// - NCCL moves bytes; `reducer` adds them in the fixed tree order of ReduceOp, so results have the
//   same bits as in every other implementation.
// - Messages: the two ranks first agree on the host that both sides have been started. The message
//   then moves on a communicator and a stream of this pair and direction, which the first message
//   creates. Messages therefore never wait behind collective operations, nor messages with one tag
//   behind those with another.
//
// Failures: when a wait or the host world fails, a watchdog aborts every NCCL communicator of this
// rank, so that no kernel waits for a missing rank. Sizes that differ between ranks are detected
// for messages only, since NCCL does not check them.
//
// Memory: a reduction uses up to 16 MiB a rank for received pieces.
// Threads: as any Communicator. A thread that drives an operation leaves the device selected.
class NcclWorld {
 public:
  // Creates the world; every rank of `host` calls. Returns before NCCL has connected the ranks; the
  // first operation waits for that. `host` is a world of threads/ or mpi/. All arguments must
  // outlive the world.
  static absl::StatusOr<std::unique_ptr<NcclWorld>> Create(Communicator& host, NcclApi& api,
                                                           Stream& compute, DeviceReducer& reducer);
  // Communicators that were split from the world must be destroyed before it.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  Communicator& world();

 private:
  class Impl;
  explicit NcclWorld(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_COMM_NCCL_NCCL_WORLD_H_
