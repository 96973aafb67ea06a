#ifndef TESSERA_CONVERT_MEGATRON_FOLDER_H_
#define TESSERA_CONVERT_MEGATRON_FOLDER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr char kMegatronCommonFile[] = "common.pt";
inline constexpr char kMegatronFormatFile[] = "metadata.json";

struct MegatronFolder {
  std::string path;        // of the checkpoint, inside the storage
  bool is_legacy = false;  // of the format `torch`; else torch_dist
};

// The checkpoint of Megatron-LM in a folder: one with metadata.json of the backend torch_dist, one
// with a folder for each rank (mp_rank_00, mp_rank_00_000) or, in the folder of a whole run, the
// iteration that latest_checkpointed_iteration.txt names. nullopt where there is none.
// Unimplemented for checkpoints of the backend zarr.
absl::StatusOr<std::optional<MegatronFolder>> FindMegatronFolder(Storage& storage,
                                                                 std::string_view folder);

inline constexpr char kMegatronRankFile[] = "model_optim_rng.pt";

// The folders of ranks in a folder, sorted; empty where it has none, or does not exist.
absl::StatusOr<std::vector<std::string>> FindMegatronRanks(Storage& storage,
                                                           std::string_view folder);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_FOLDER_H_
