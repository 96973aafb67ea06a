#include "convert/megatron/read.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "convert/dcp/read.h"
#include "convert/megatron/folder.h"
#include "convert/megatron/legacy.h"
#include "convert/megatron/parameters.h"
#include "convert/megatron/torch_dist.h"
#include "convert/torch/read.h"

namespace tessera::ckpt::convert {

namespace {

// The files of all ranks, with their own names.
absl::StatusOr<ForeignCheckpoint> ReadRankFiles(Storage& storage, const std::string& folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                           FindMegatronRanks(storage, folder));
  ForeignCheckpoint all = {.format = std::string(kMegatron)};
  for (const std::string& rank : ranks) {
    const std::string file = JoinPath(JoinPath(folder, rank), kMegatronRankFile);
    TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint one, ReadTorch(storage, "", std::span(&file, 1)));
    for (ForeignTensor& tensor : one.tensors) {
      tensor.name = absl::StrCat(rank, "/", tensor.name);
      if (!tensor.alias_of.empty()) tensor.alias_of = absl::StrCat(rank, "/", tensor.alias_of);
      all.tensors.push_back(std::move(tensor));
    }
    all.notes.insert(all.notes.end(), one.notes.begin(), one.notes.end());
  }
  return all;
}

}  // namespace

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
  if (rules != nullptr && found->is_legacy) {
    return ReadMegatronLegacy(storage, found->path, *rules);
  }
  if (rules != nullptr) return ReadMegatronTorchDist(storage, found->path, *rules);
  if (found->is_legacy) return ReadRankFiles(storage, found->path);
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint checkpoint, ReadDcp(storage, found->path));
  for (ForeignTensor& tensor : checkpoint.tensors) {
    for (StoredPiece& piece : tensor.pieces) piece.file = JoinPath(found->path, piece.file);
  }
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
