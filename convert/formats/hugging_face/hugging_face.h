#ifndef TESSERA_CONVERT_FORMATS_HUGGING_FACE_HUGGING_FACE_H_
#define TESSERA_CONVERT_FORMATS_HUGGING_FACE_HUGGING_FACE_H_

// Folders in Hugging Face's format: config.json and safetensors files.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kHuggingFace = "hf";

// Whether the root of the storage has the files of a model in Hugging Face's format: config.json
// and model.safetensors, or its index.
absl::StatusOr<bool> IsHuggingFace(Storage& storage);

// The tensors of such a folder under their own names: the index pass over the index and the headers
// of all files. Errors: NotFound (files that the index names); DataLoss naming file and tensor, for
// headers, and for tensors in other files than the index says.
absl::StatusOr<std::map<std::string, ForeignTensor>> ReadHuggingFaceTensors(Storage& storage);

// The tensors of the model that config.json describes, each with its shape checked, whatever
// wrappers have added to their names (WithoutWrappers()). Tensors that
// are computed and not learned are left out; a second copy of tied parameters is a copy of the
// first. Errors also: DataLoss, listing all missing, unknown and misshapen tensors;
// InvalidArgument for a model that is not known here.
absl::StatusOr<ForeignCheckpoint> ReadHuggingFace(Storage& storage);

// The files of a model in Hugging Face's format: config.json and model.safetensors or, where that
// would be too large, several with their index. Tied parameters are written once, and optimizer
// state is not. A tokenizer's files, by which transformers finds it, lie beside them.
//
// InvalidArgument: a model that Hugging Face does not have. FailedPrecondition, listing them:
// parameters that the checkpoint does not have, and weights that are not parameters. Unimplemented:
// a tokenizer that cannot be written so.
absl::StatusOr<std::vector<OutputFile>> PlanHuggingFace(const Manifest& manifest,
                                                        const PlanOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_HUGGING_FACE_HUGGING_FACE_H_
