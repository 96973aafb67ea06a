#ifndef TESSERA_CONVERT_FORMATS_PADDLE_PADDLE_H_
#define TESSERA_CONVERT_FORMATS_PADDLE_PADDLE_H_

// Checkpoints of PaddleNLP and of PaddlePaddle's auto parallel.
//
// Hybrid parallel, which is only read: tensor and pipeline parallelism, virtual stages, and
// sharding of stage 1, 2 (whole parameters on their owners, or flat slices) and 3, in any
// combination that PaddleNLP's trainer writes. Degrees come from the files' names and must agree
// with model_meta.json. The parameter of an optimizer state comes from model_meta.json, from the
// tensors' names in the model's files, or from the caller. The form of a state is determined per
// parameter: whole, once or as equal copies; or flat, with its slices in the order of the sharding
// ranks and padding at the end.
//
// Auto parallel, which is read and written: what paddle.distributed.save_state_dict() saves of
// {"model": model.state_dict(), "optimizer": optimizer.state_dict()}. Every shard states its place.
//
// docs/foreign-formats.md says which of these were tested with files that Paddle's own programs
// wrote, and which with files of a script that cuts a trained state as they do.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Returns whether the storage's root has files of states as PaddleNLP or auto parallel names them.
absl::StatusOr<bool> IsPaddle(Storage& storage);

// Reads a checkpoint. `structured_names` maps names of tensors in the optimizer's states to the
// model's names of parameters, for checkpoints that do not record them. "tp00_pp01/linear_0.w_0" is
// a name in files of these ranks only, since ranks may give one name to different tensors. Errors:
// DataLoss, naming files and tensors, for missing files and states of ranks and for contradictions;
// InvalidArgument, with a way to resolve it, for ambiguous checkpoints, and for unknown models.
absl::StatusOr<ForeignCheckpoint> ReadPaddle(
    Storage& storage, const std::map<std::string, std::string>& structured_names);

// Plans a folder that paddle.distributed.load_state_dict() loads, with PaddleNLP's config.json and
// trainer_state.json. Parameters are not fused; tensors have the names that PaddleNLP's models of
// auto parallel give them. InvalidArgument for models and dtypes that Paddle does not have.
absl::StatusOr<std::vector<OutputFile>> PlanPaddle(const Manifest& manifest,
                                                   const PlanOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_PADDLE_PADDLE_H_
