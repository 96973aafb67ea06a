#ifndef TESSERA_CONVERT_CORE_NAME_STATE_DICT_H_
#define TESSERA_CONVERT_CORE_NAME_STATE_DICT_H_

#include <string_view>

#include "absl/status/status.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Gives the tensors of a state dict of torch the names and layouts of a model's logical tensors.
//
// The model is described by config.json (Hugging Face's) or params.json (Meta's) beside the files,
// otherwise by nanoGPT's `model_args` in them, otherwise by `model`, which may be null. Names are
// Hugging Face's or Meta's. Matrices of GPT-2 may be transposed, as in nanoGPT, if the shapes of
// all of them prove it. Wrappers in names (WithoutWrappers()) and dicts around the model ("model.")
// are left out. Adam's moments below "state.NAME." become those of the parameter. So do moments
// below "state.NUMBER.", if AssignNumbers() determines the parameter of each number from the
// optimizer's param_groups, the order of the model's parameters and the shapes. Otherwise a note
// says why not. The number of updates, if all parameters agree, becomes the step.
//
// If `framework` is not empty, the files have its names and layouts of parameters
// (ForeignParameters()) instead of Hugging Face's or Meta's.
//
// Without a model, or if the names are not those of all its parameters, the tensors are left as
// they are, with a note that says why. Errors: DataLoss, naming the tensor, if names match but
// shapes do not, or if the model lacks one of the tensors around its own. DataLoss if two parts of
// the state dict could be the model. Those of the storage.
absl::Status NameStateDict(Storage& storage, const ModelProto* model, std::string_view framework,
                           ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_NAME_STATE_DICT_H_
