#ifndef TESSERA_CONVERT_FORMATS_PADDLE_PADDLE_H_
#define TESSERA_CONVERT_FORMATS_PADDLE_PADDLE_H_

// Hybrid-parallel checkpoints of PaddleNLP: tensor and pipeline parallelism, virtual stages, and
// sharding of stage 1, 2 (whole parameters on their owners, or flat slices) and 3, in any
// combination that its trainer writes.
//
// Degrees come from the files' names and must agree with model_meta.json. The parameter of an
// optimizer state comes from model_meta.json, from the tensors' names in the model's files, or from
// the caller. The form of a state is determined per parameter: whole, once or as equal copies; or
// flat, with its slices in the order of the sharding ranks and padding at the end.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "models/foreign/format.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Returns whether the root of the storage has files of states as PaddleNLP names them.
absl::StatusOr<bool> IsPaddle(Storage& storage);

// Reads a checkpoint. `structured_names` maps names of tensors in the optimizer's states to the
// model's names of parameters, for checkpoints that do not record them. "tp00_pp01/linear_0.w_0" is
// a name in files of these ranks only, since ranks may give one name to different tensors. Errors:
// DataLoss, naming files and tensors, for missing files and states of ranks and for contradictions;
// InvalidArgument, with a way to resolve it, for ambiguous checkpoints, and for unknown models.
absl::StatusOr<ForeignCheckpoint> ReadPaddle(
    Storage& storage, const std::map<std::string, std::string>& structured_names);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_PADDLE_PADDLE_H_
