#ifndef TESSERA_CONVERT_MEGATRON_MASTER_CHECK_H_
#define TESSERA_CONVERT_MEGATRON_MASTER_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"

namespace tessera::ckpt::convert {

// Checks that weights are their fp32 master weights, rounded, at a few elements of each: the proof
// that states which are stored without names belong to the parameters that they were given to.
// Tensors of which there are not both are skipped. DataLoss, naming tensor and files.
absl::Status CheckMasterWeights(Storage& storage, const std::vector<ForeignTensor>& tensors);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_MASTER_CHECK_H_
