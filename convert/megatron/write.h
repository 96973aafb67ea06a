#ifndef TESSERA_CONVERT_MEGATRON_WRITE_H_
#define TESSERA_CONVERT_MEGATRON_WRITE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "convert/core/model_rules.h"
#include "convert/core/output.h"

namespace tessera::ckpt::convert {

struct MegatronOutputOptions {
  DType dtype = DTYPE_UNSPECIFIED;  // of the weights; unspecified: as they are saved
  bool weights_only = false;
  // Of one file of data, unless a single chunk is larger.
  uint64_t max_file_bytes = 5'000'000'000;
};

// The files of a folder that megatron-core's distributed checkpointing loads (torch_dist), with the
// arguments of Megatron-LM that describe the model. Layers are stacked. Optimizer state is that of
// the distributed optimizer in the format fully_reshardable where there are master weights, else
// that of the optimizer for fp32. Errors: InvalidArgument for a model that Megatron-Core does not
// have, weights of several dtypes, and states that only some parameters have; FindWeights()'s.
absl::StatusOr<std::vector<OutputFile>> PlanMegatron(const Manifest& manifest,
                                                     const ModelRules& rules,
                                                     const MegatronOutputOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_WRITE_H_
