#ifndef TESSERA_CONVERT_FORMATS_HUGGING_FACE_HUGGING_FACE_H_
#define TESSERA_CONVERT_FORMATS_HUGGING_FACE_HUGGING_FACE_H_

// Folders in Hugging Face's format: config.json and safetensors files.

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
inline constexpr std::string_view kSafetensors = "safetensors";

// Returns whether the root of the storage has the files of a model in Hugging Face's format:
// config.json and model.safetensors, or its index.
absl::StatusOr<bool> IsHuggingFace(Storage& storage);

// Returns whether the root has files of safetensors: those of accelerate (model.safetensors), of
// diffusers, of an adapter of peft, each in one file or in several with an index, or those of DCP's
// HuggingFaceStorageWriter, which with save_distributed=True are a file of each rank
// (shard-00001-model-00001-of-00001.safetensors), whose header says where each part of a tensor
// belongs. Precondition: IsHuggingFace() is false.
absl::StatusOr<bool> HasSafetensors(Storage& storage);

// Reads the tensors of `file` or, if it is empty, of the root's files under the names that they
// have: the index pass over the index and the headers of all files. The shape of a tensor in ranks'
// files is what its parts cover, since the files do not state it. Tensors of dtypes that this
// library does not have are `unread`.
//
// A file that the index does not name replaces it, as in transformers. Adds notes that list the
// files that are not read for this reason, the shards that the index does not name, other files of
// weights, such as those of an adapter, and tensors that are not read.
// Errors: NotFound (files that the index names); DataLoss, naming file and tensor, for headers, and
// for tensors in other files than the index says.
absl::StatusOr<ForeignCheckpoint> ReadSafetensors(Storage& storage, const std::string& file);

// Reads the tensors of the model that config.json describes, and checks their shapes. Additions of
// wrappers to names are ignored (WithoutWrappers()). Tensors that are computed and not learned are
// left out; a second copy of tied parameters counts as a copy of the first. Notes and errors: those
// of ReadSafetensors(), and DataLoss, listing all missing, unknown and misshapen tensors, or if
// config.json is no JSON; InvalidArgument for an unknown model or dtype.
absl::StatusOr<ForeignCheckpoint> ReadHuggingFace(Storage& storage);

// Plans the files of a model in Hugging Face's format: config.json and model.safetensors or, if it
// would be too large, several files with their index. Tied parameters are written once; optimizer
// state is not written. The files of a given tokenizer, in which transformers finds it, are
// included.
//
// InvalidArgument: a model that Hugging Face does not have. FailedPrecondition, listing them:
// parameters that the checkpoint lacks, and weights that are not parameters. Unimplemented: a
// tokenizer that cannot be written so.
absl::StatusOr<std::vector<OutputFile>> PlanHuggingFace(const Manifest& manifest,
                                                        const PlanOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_HUGGING_FACE_HUGGING_FACE_H_
