#ifndef TESSERA_CONVERT_CORE_STATE_DICT_H_
#define TESSERA_CONVERT_CORE_STATE_DICT_H_

#include <string_view>

#include "absl/status/status.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Gives the tensors of a state dict of torch the names and layouts of a model's logical tensors.
//
// config.json (Hugging Face's) or params.json (Meta's) beside the files describes the model, else
// nanoGPT's `model_args` in them, else `model`, which may be null. Names are Hugging Face's or
// Meta's; matrices of GPT-2 may be transposed, as nanoGPT has them, which the shapes of all of them
// have to prove. Wrappers in names (WithoutWrappers()) and dicts around the model ("model.") are
// left out. Adam's moments below "state.NAME." become those of the parameter; so do those below
// "state.NUMBER.", where the optimizer's param_groups, the order of the model's parameters and the
// shapes settle which parameter each number is (AssignNumbers()); where they do not, a note says
// why. The number of updates, where all parameters agree, becomes the step.
//
// `framework`, where it is not empty, is that whose names and layouts of parameters the files have
// (ForeignParameters()), instead of Hugging Face's or Meta's.
//
// Without a model, or with names that are not those of all its parameters, the tensors are left as
// they are, with a note that says why. Errors: DataLoss, naming the tensor, where names match but
// shapes do not, where the model lacks one of the tensors around its own, and where two parts of
// the state dict could be the model; those of the storage.
absl::Status NameStateDict(Storage& storage, std::string_view folder, const ModelProto* model,
                           std::string_view framework, ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_STATE_DICT_H_
