#ifndef TESSERA_CHECKPOINT_CONVERT_MEGATRON_MASTER_CHECK_H_
#define TESSERA_CHECKPOINT_CONVERT_MEGATRON_MASTER_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "checkpoint/convert/foreign_checkpoint.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

// Checks that weights are their fp32 master weights, rounded, at a few elements of each: the proof
// that states which are stored without names belong to the parameters that they were given to.
// Tensors of which there are not both are skipped. DataLoss, naming tensor and files.
absl::Status CheckMasterWeights(Storage& storage, const std::vector<ForeignTensor>& tensors);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CHECKPOINT_CONVERT_MEGATRON_MASTER_CHECK_H_
