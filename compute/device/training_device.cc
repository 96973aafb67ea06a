#include "compute/device/training_device.h"

#include "absl/strings/str_cat.h"
#include "compute/kernels/cuda/attention_memory.h"
#include "layout/dtype.h"

namespace tessera {

absl::Status CheckChoices(const TrainingDevice& device, const cuda::ProductChoices& choices) {
  if ((choices.attention_by_warpgroups || choices.attention_gradients_by_warpgroups) &&
      !device.multiplies_by_warpgroups) {
    return absl::FailedPreconditionError(absl::StrCat(
        "attention by warpgroups needs a GPU of compute capability 9.0, not ", device.type));
  }
  constexpr int64_t kAtOnceBytes = cuda::AttentionSharedBytes(DType::kBF16, cuda::kMaxHeadSize,
                                                              /*backward=*/true, /*at_once=*/true);
  if (choices.attention_at_once && device.shared_bytes_of_block < kAtOnceBytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "attention_at_once needs ", kAtOnceBytes, " bytes of shared memory in a block, of which ",
        device.type, " has ", device.shared_bytes_of_block));
  }
  return absl::OkStatus();
}

}  // namespace tessera
