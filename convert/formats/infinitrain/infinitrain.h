#ifndef TESSERA_CONVERT_FORMATS_INFINITRAIN_INFINITRAIN_H_
#define TESSERA_CONVERT_FORMATS_INFINITRAIN_INFINITRAIN_H_

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Returns whether the storage has a checkpoint that ReadInfiniTrain() would try to read.
absl::StatusOr<bool> IsInfiniTrain(Storage& storage);

// Reads a checkpoint of InfiniTrain's Checkpoint::Save() in the root of the storage, a folder
// `checkpoint_step_NNNNNN`: `model.ckpt`, `optimizer.ckpt` and `trainer_state.json`, or a folder
// `rank_NNNNNN` with them for each of several data-parallel ranks, whose tensors are copies. The
// root may also be a folder `iter_NNNNNNN` of a later release. Its `metadata.json` says how the
// tensors are cut among the folders of tensor-parallel and pipeline ranks. Rows that pad its
// vocabulary are left out.
//
// Tensors get the names of a model as in NameStateDict(): the model of config.json, otherwise
// `model`, which may be null. The names of Adam's moments (`adam.m.NAME`) name their parameters;
// without a model the moments are "state.NAME.exp_avg" and "state.NAME.exp_avg_sq". Moments by
// number (`adam.m.3`) follow the order of hash tables: they are left out, with a note, unless the
// order of the tensors in model.ckpt shows it (OrderInfiniTrainParameters()).
//
// The step is `global_step`; unknown, with a note, if Adam's number of updates is stored and
// differs.
//
// Errors: DataLoss, naming file and tensor. FailedPrecondition if trainer_state.json contradicts
// the model. Unimplemented for folders of tensor-parallel and pipeline ranks without a
// metadata.json, which do not record how tensors are cut. Those of NameStateDict() and of the
// storage.
absl::StatusOr<ForeignCheckpoint> ReadInfiniTrain(Storage& storage, const ModelProto* model);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_INFINITRAIN_INFINITRAIN_H_
