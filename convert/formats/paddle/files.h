#ifndef TESSERA_CONVERT_FORMATS_PADDLE_FILES_H_
#define TESSERA_CONVERT_FORMATS_PADDLE_FILES_H_

// The names of PaddleNLP's files, model_meta.json, and the keys of optimizer states.
//
// Each rank has one file of the model and one of the optimizer, named
// "model_state.tp00_pp01.pdparams" and "optimizer.tp00_pp01_shard00.pdopt". An axis of one rank is
// left out.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

// Ranks of each axis.
struct PaddleDegrees {
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t sharding = 1;
  bool operator==(const PaddleDegrees&) const = default;
};

struct PaddleRankFile {
  std::string name;
  int64_t tensor = 0, pipeline = 0, shard = 0;
};

struct PaddleRankFiles {
  PaddleDegrees degrees;
  // Files in the order of tensor, pipeline and shard; empty if the folder has no files of the kind.
  std::vector<PaddleRankFile> models, optimizers;
};

// Returns whether a file of this name has a model's or an optimizer's state, unlike files of
// schedulers and loss scalers.
bool IsPaddleStateName(const std::string& name);

// Returns whether a name of a parameter counts the layers of a chunk of virtual pipeline stages.
bool HasPaddleChunk(const std::string& name);
// Returns the name without such a chunk, and without the wrapper of models that run in a pipeline.
std::string CanonicalPaddleName(std::string_view name);

// Finds the files among `names`, all of each kind: the grid that the names span is complete.
// Errors: DataLoss, naming every missing file, or for a grid that no folder has room for;
// InvalidArgument, naming two files that do not belong together.
absl::StatusOr<PaddleRankFiles> FindPaddleRankFiles(std::span<const std::string> names);

// The metadata of all ranks that have the same tensor-parallel rank and the same pipeline rank.
struct PaddleShardingMeta {
  std::string strategy;  // "ShardingV1", "ShardingV2" or empty
  // Structured names by tensor name. Tied parameters have one tensor.
  std::multimap<std::string, std::string> structured_names;
  std::map<std::string, int64_t> owners;  // by tensor name: its sharding rank
  std::map<std::string, Shape> shapes;    // by structured name
};

// The contents of model_meta.json, which PaddleNLP writes beside the states if each sharding rank
// saves its own.
struct PaddleModelMeta {
  std::optional<PaddleDegrees> degrees;
  int64_t virtual_pipeline = 1;
  std::map<std::pair<int64_t, int64_t>, PaddleShardingMeta> ranks;  // by tensor, pipeline
};

// Parses model_meta.json. Errors: DataLoss, a phrase.
absl::StatusOr<PaddleModelMeta> ParsePaddleModelMeta(std::string_view json);

// Parses a map from names of tensors to names of parameters, of all ranks or of one tensor-parallel
// and pipeline rank: {"linear_0.w_0": "llama.layers..."}, or {"tp00_pp01": {"linear_0.w_0": ...}},
// which becomes "tp00_pp01/linear_0.w_0". Errors: InvalidArgument, a phrase.
absl::StatusOr<std::map<std::string, std::string>> ParsePaddleParameterNames(std::string_view json);

// Returns "tp00_pp01", the key of a rank in model_meta.json and in that map.
std::string PaddleRankKey(int64_t tensor, int64_t pipeline);

// Adam's states of a tensor.
enum class PaddleState { kMoment1, kMoment2, kBeta1Power, kBeta2Power, kMasterWeight };

// Returns "moment1", ..., "master_weights", for messages.
std::string_view PaddleStateName(PaddleState state);

// The parts of a key of an optimizer's state dict: "slice@linear_0.w_0_fp32_master_0_moment1_0".
struct PaddleStateKey {
  std::string tensor_name;  // "linear_0.w_0"
  PaddleState state;
  bool sliced = false;  // by stage 3
};

// Parses a key; nullopt if it does not have this form. Parses from the end, so that no name
// ("linear_1.w_0") is mistaken for the beginning of another ("linear_10.w_0").
std::optional<PaddleStateKey> ParsePaddleStateKey(std::string_view key);

// Parses a key of master_weights, which is the tensor's name.
PaddleStateKey ParsePaddleMasterKey(std::string_view key);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_PADDLE_FILES_H_
