#ifndef TESSERA_CONVERT_META_PARTS_H_
#define TESSERA_CONVERT_META_PARTS_H_

// The files of Meta's tensor-parallel ranks.

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Returns whether these are the files of tensor-parallel ranks as Meta names them:
// "consolidated.00.pth", "consolidated.01.pth", ..., two or more.
bool AreMetaParts(std::span<const std::string> files);

// Reads the model of params.json, of which each file, in the order of the ranks, has a part of
// every tensor. The shape of a part shows along which dim the tensor is cut into equal parts, or
// that the part is a copy: embedding tables are cut by rows since Llama 3 and by columns before.
//
// Errors: NotFound without params.json; DataLoss, naming file and tensor, for tensors that are not
// such a part, that only some files have, or that are missing or unknown; those of ReadTorch().
absl::StatusOr<ForeignCheckpoint> ReadMetaParts(Storage& storage, std::string_view folder,
                                                std::span<const std::string> files);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_META_PARTS_H_
