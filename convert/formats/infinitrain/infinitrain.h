#ifndef TESSERA_CONVERT_FORMATS_INFINITRAIN_INFINITRAIN_H_
#define TESSERA_CONVERT_FORMATS_INFINITRAIN_INFINITRAIN_H_

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "models/foreign/format.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Whether ReadInfiniTrain() would look at this storage.
absl::StatusOr<bool> IsInfiniTrain(Storage& storage);

// What InfiniTrain's Checkpoint::Save() wrote in the root of the storage, a folder
// `checkpoint_step_NNNNNN`:
// `model.ckpt`, `optimizer.ckpt` and `trainer_state.json`, or a folder `rank_NNNNNN` with them for
// each of several data-parallel ranks, whose tensors are copies. Or the root of a folder
// `iter_NNNNNNN` of a later release, whose `metadata.json` tells how tensor-parallel and pipeline
// ranks have cut the tensors in their folders; rows that pad its vocabulary are left out.
//
// Tensors get the names of a model as those of a state dict do (NameStateDict()): that of
// config.json, else `model`, which may be null. Adam's moments belong to the
// parameters that their names (`adam.m.NAME`) tell; without a model they are "state.NAME.exp_avg"
// and "state.NAME.exp_avg_sq". Moments by number (`adam.m.3`) are left out, with a note: the
// numbers are in the order of hash tables, which no file tells.
//
// The step is `global_step`, and Adam's number of updates where that is stored; it is unknown, with
// a note, where they differ.
//
// Errors: DataLoss, naming file and tensor; FailedPrecondition where trainer_state.json contradicts
// the model; Unimplemented for folders of tensor-parallel and pipeline ranks without a
// metadata.json, which do not say how tensors are cut; those of NameStateDict() and of the storage.
absl::StatusOr<ForeignCheckpoint> ReadInfiniTrain(Storage& storage, const ModelProto* model);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_INFINITRAIN_INFINITRAIN_H_
