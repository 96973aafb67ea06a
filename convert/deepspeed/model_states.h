#ifndef TESSERA_CONVERT_DEEPSPEED_MODEL_STATES_H_
#define TESSERA_CONVERT_DEEPSPEED_MODEL_STATES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/torch/archive.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

// Entries of a dict, in the order of the file.
using NamedShapes = std::vector<std::pair<std::string, Shape>>;
using NamedTensors = std::map<std::string, TorchTensor>;

// A file "..._model_states.pt" of DeepSpeed.
struct DeepSpeedModelStates {
  std::vector<NamedShapes> groups;  // parameters that are trained: of the whole tensors
  NamedShapes frozen;               // the others, likewise
  NamedTensors frozen_fragments;    // with stage 3 flat parts of them
  NamedTensors module;              // the state dict; with stage 3 without parameters
  std::vector<std::pair<std::string, std::string>> shared;  // second names, and the first ones
  std::optional<int64_t> data_parallel_size;
  std::optional<int64_t> steps;    // of the optimizer
  std::optional<int64_t> samples;  // consumed
  std::string version;             // of DeepSpeed
};

// Errors: DataLoss, naming the file; those of ReadTorchArchive() and of the storage.
absl::StatusOr<DeepSpeedModelStates> ReadDeepSpeedModelStates(Storage& storage,
                                                              const std::string& path);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_DEEPSPEED_MODEL_STATES_H_
