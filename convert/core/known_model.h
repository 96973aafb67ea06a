#ifndef TESSERA_CONVERT_CORE_KNOWN_MODEL_H_
#define TESSERA_CONVERT_CORE_KNOWN_MODEL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

using Parameters = std::vector<ForeignParameter>;

// A model, and the ways in which state dicts name its parameters.
struct KnownModel {
  ModelDescription description;
  std::optional<HuggingFaceDescription> hugging_face;  // where that is known
  // Namings in the order in which they are tried; parameters in the order of the modules.
  std::vector<Parameters> namings;
  std::vector<std::string> notes;  // how its computation differs here, one sentence each
};

// Returns the model of a state dict in `folder`; nullopt if neither the files nor the caller
// describe one. See NameStateDict() for the arguments. InvalidArgument if they describe an unknown
// model.
absl::StatusOr<std::optional<KnownModel>> FindModel(Storage& storage, std::string_view folder,
                                                    const ModelProto* model,
                                                    std::string_view framework,
                                                    const ForeignCheckpoint& checkpoint);

// Reads Meta's params.json, and adds the size of the vocabulary from the table of embeddings, since
// Llama 2's file has vocab_size -1. `tensors` are all tensors of one of `parts` files, each of
// which has an equal part of the table's rows or columns. Returns the text unchanged if it is not
// JSON. Errors: those of ReadAll().
absl::StatusOr<std::string> ReadMetaConfig(Storage& storage, const std::string& path,
                                           std::span<const ForeignTensor> tensors, int64_t parts);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_KNOWN_MODEL_H_
