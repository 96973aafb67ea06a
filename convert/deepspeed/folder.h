#ifndef TESSERA_CONVERT_DEEPSPEED_FOLDER_H_
#define TESSERA_CONVERT_DEEPSPEED_FOLDER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

// The files of one checkpoint of DeepSpeed. Paths are relative to the storage's root.
struct DeepSpeedFolder {
  // By data-parallel rank: "zero_pp_rank_0_mp_rank_00_optim_states.pt", ... Empty in a universal
  // checkpoint.
  std::vector<std::string> optimizer_files;
  // One, or with stage 3 one for each rank. A universal checkpoint may have none.
  std::vector<std::string> model_files;
  // Of a universal checkpoint: names of parameters, and the folder that has one for each.
  std::vector<std::string> parameters;
  std::string parameters_folder;
  std::string config;  // of Hugging Face; empty: there is none
};

// Nullopt where neither `folder` nor the one that its file "latest" names is a checkpoint of
// DeepSpeed. Errors: DataLoss, listing the ranks whose files are missing, and for a file "latest"
// that names a folder that is missing; Unimplemented for files of model-parallel ranks and of
// experts, unless the checkpoint is universal; those of the storage.
absl::StatusOr<std::optional<DeepSpeedFolder>> FindDeepSpeedFolder(Storage& storage,
                                                                   std::string_view folder);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_DEEPSPEED_FOLDER_H_
