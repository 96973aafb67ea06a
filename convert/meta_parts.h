#ifndef TESSERA_CONVERT_META_PARTS_H_
#define TESSERA_CONVERT_META_PARTS_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/include/storage.h"
#include "convert/core/foreign_checkpoint.h"

namespace tessera::ckpt::convert {

// Whether these are the files of tensor-parallel ranks as Meta names them: "consolidated.00.pth",
// "consolidated.01.pth", ..., two or more.
bool AreMetaParts(std::span<const std::string> files);

// The model of params.json, of which each file, in the order of the ranks, has a part of every
// tensor. Its shape says along which dim it is cut, into equal parts, or that it is a copy:
// embedding tables are cut by rows since Llama 3 and by columns before.
//
// Errors: NotFound without params.json; DataLoss, naming file and tensor, for tensors that are no
// such part, that only some files have, or that are missing or unknown; those of ReadTorch().
absl::StatusOr<ForeignCheckpoint> ReadMetaParts(Storage& storage, std::string_view folder,
                                                std::span<const std::string> files);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_META_PARTS_H_
