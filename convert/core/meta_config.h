#ifndef TESSERA_CONVERT_CORE_META_CONFIG_H_
#define TESSERA_CONVERT_CORE_META_CONFIG_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"

namespace tessera::ckpt::convert {

// Meta's params.json, with the size of the vocabulary: Llama 2's has vocab_size -1, and the table
// of embeddings tells it. `tensors` are those of one of `parts` files, each of which has an equal
// part of the table's rows or columns. What is no JSON is returned as it is. Errors: those of
// ReadAll().
absl::StatusOr<std::string> ReadMetaConfig(Storage& storage, const std::string& path,
                                           std::span<const ForeignTensor> tensors, int64_t parts);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_META_CONFIG_H_
