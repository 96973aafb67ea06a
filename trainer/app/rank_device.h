#ifndef TESSERA_TRAINER_APP_RANK_DEVICE_H_
#define TESSERA_TRAINER_APP_RANK_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/program.h"
#include "comm/communicator.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_world.h"
#include "compute/device/compute_devices.h"
#include "compute/device/training_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "trainer/app/host_share.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// The device of one rank: the processors of its share of the machine, or a GPU of its own.
class RankDevice {
 public:
  // Opens the device. Collective over `world` (null for one process), which must outlive the
  // device, as must `devices`. Ranks of a machine that see the same GPUs take them in the order of
  // ranks. FailedPrecondition, with both numbers, if there are more ranks than GPUs;
  // InvalidArgument if rank 0 cannot read product_table, or it is longer than 16 MiB; the errors of
  // `devices`.
  //
  // No rank uses a table that is damaged, that has other products for the GPU of one rank than for
  // that of another, or a way of computing that one of the GPUs does not have. `notes` receives
  // the reason.
  static absl::StatusOr<std::unique_ptr<RankDevice>> Open(const TrainConfig& config,
                                                          const HostShare& host,
                                                          Communicator* world,
                                                          ComputeDevices& devices,
                                                          const NoteSink& notes);

  Backend& backend() { return gpu_ == nullptr ? *cpu_ : *gpu_->backend; }
  const NumericsFingerprint& numerics() const { return numerics_; }
  // Returns the rank's GPU; null on the processors.
  TrainingDevice* gpu() { return gpu_.get(); }
  // Returns the ranks of `world` with buffers in the GPU's memory; null on the processors and for
  // one process.
  Communicator* world() { return nccl_world_ == nullptr ? nullptr : &nccl_world_->world(); }

 private:
  RankDevice() = default;
  absl::Status OpenGpu(const TrainConfig& config, const HostShare& host, Communicator* world,
                       ComputeDevices& devices, const NoteSink& notes);

  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<TrainingDevice> gpu_;
  std::unique_ptr<NcclApi> nccl_;
  std::unique_ptr<NcclWorld> nccl_world_;
  NumericsFingerprint numerics_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_RANK_DEVICE_H_
