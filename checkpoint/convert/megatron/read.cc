#include "checkpoint/convert/megatron/read.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/convert/dcp/read.h"
#include "checkpoint/convert/megatron/folder.h"
#include "checkpoint/convert/megatron/parameters.h"
#include "checkpoint/convert/megatron/torch_dist.h"
#include "checkpoint/directory/directory.h"

namespace tessera::ckpt::convert {

absl::StatusOr<bool> IsMegatron(Storage& storage, std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<MegatronFolder> found,
                           FindMegatronFolder(storage, folder));
  return found.has_value();
}

absl::StatusOr<ForeignCheckpoint> ReadMegatron(Storage& storage, std::string_view folder,
                                               const ModelRules* rules) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<MegatronFolder> found,
                           FindMegatronFolder(storage, folder));
  if (!found) {
    return absl::NotFoundError(
        absl::StrCat(storage.Describe(folder), ": no checkpoint of Megatron-LM"));
  }
  if (rules != nullptr) return ReadMegatronTorchDist(storage, found->path, *rules);
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint checkpoint, ReadDcp(storage, found->path));
  for (ForeignTensor& tensor : checkpoint.tensors) {
    for (StoredPiece& piece : tensor.pieces) piece.file = JoinPath(found->path, piece.file);
  }
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
