#ifndef TESSERA_CONVERT_FORMATS_DEEPSPEED_FILES_H_
#define TESSERA_CONVERT_FORMATS_DEEPSPEED_FILES_H_

// The files of a checkpoint of DeepSpeed, and their contents.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/foreign_layout.h"
#include "convert/pickle/torch_archive.h"
#include "layout/box.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// The files of one checkpoint of DeepSpeed. Paths are relative to the storage's root.
struct DeepSpeedFolder {
  // Files by data-parallel rank: "zero_pp_rank_0_mp_rank_00_optim_states.pt", ... Empty in a
  // universal checkpoint.
  std::vector<std::string> optimizer_files;
  // The model's file, or with stage 3 one for each rank. A universal checkpoint may have none.
  std::vector<std::string> model_files;
  // Names of parameters, and the folder that has a folder for each. Only in a universal checkpoint.
  std::vector<std::string> parameters;
  std::string parameters_folder;
  std::string config;  // Hugging Face's config.json; empty if it is missing
};

// Finds a checkpoint; nullopt if neither the root of the storage nor the folder that its file
// "latest" names is a checkpoint of DeepSpeed. Errors: DataLoss, listing the ranks whose files are
// missing, and for a file "latest" that names a missing folder. Unimplemented for files of
// model-parallel ranks and of experts, unless the checkpoint is universal. Those of the storage.
absl::StatusOr<std::optional<DeepSpeedFolder>> FindDeepSpeedFolder(Storage& storage);

// The entries of a dict, in the order of the file.
using NamedShapes = std::vector<std::pair<std::string, Shape>>;
using NamedTensors = std::map<std::string, TorchTensor>;

// A file "..._model_states.pt" of DeepSpeed.
struct DeepSpeedModelStates {
  std::vector<NamedShapes> groups;      // of trained parameters: shapes of the whole tensors
  NamedShapes frozen;                   // of the others: shapes of the whole tensors
  NamedTensors frozen_fragments;        // with stage 3 flat parts of them
  NamedTensors module;                  // the state dict; with stage 3 without parameters
  std::vector<std::string> left_out;    // names of tensors of kinds that are not read
  std::vector<std::string> of_program;  // names of tensors in its client_state
  std::vector<std::pair<std::string, std::string>> shared;  // second names, and the first ones
  std::optional<int64_t> data_parallel_size;
  std::optional<int64_t> steps;    // of the optimizer
  std::optional<int64_t> samples;  // consumed
  std::string version;             // of DeepSpeed
};

// Reads such a file. Errors: DataLoss, naming it; those of ReadTorchArchive() and of the storage.
absl::StatusOr<DeepSpeedModelStates> ReadDeepSpeedModelStates(Storage& storage,
                                                              const std::string& path);

// Part of a parameter in the flat state of a group.
struct ZeroSlice {
  std::string name;
  int64_t start = 0;  // of its first element in the flat state
  int64_t count = 0;
};

// One rank's part of a group of parameters: vectors, of which the fp32 weights are the first.
struct ZeroGroup {
  std::vector<std::pair<ForeignKind, TorchTensor>> vectors;
  std::vector<ZeroSlice> slices;  // with stage 1 and 2
};

// A file "..._optim_states.pt" of DeepSpeed.
struct ZeroShard {
  bool cuts_parameters = false;  // stage 3: each parameter is cut, not the group as a whole
  int64_t ranks = 0;             // that have a part of each group; 0: they differ by group
  std::vector<ZeroGroup> groups;
};

// Reads such a file. Errors: DataLoss, naming the file; Unimplemented if it does not record which
// parameters it has; those of ReadTorchArchive() and of the storage.
absl::StatusOr<ZeroShard> ReadZeroShard(Storage& storage, const std::string& path);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_DEEPSPEED_FILES_H_
