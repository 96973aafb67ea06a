#ifndef TESSERA_CONVERT_FORMATS_MEGATRON_RUN_H_
#define TESSERA_CONVERT_FORMATS_MEGATRON_RUN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "convert/pickle/value.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// The data of a run that Megatron-LM stores beside its tensors: its arguments and its progress.
class MegatronRun {
 public:
  // `state`, the dict that Megatron-LM saves, must outlive this object.
  explicit MegatronRun(const pickle::Value& state);

  bool has_arguments() const { return arguments_.present(); }
  // Returns the arguments that are numbers, texts or truth values, as a JSON object.
  std::string ArgumentsAsJson() const;
  // Return the value of an argument; nullopt, or false, if it is missing or None.
  std::optional<int64_t> Integer(std::string_view name) const;
  std::optional<std::string> Text(std::string_view name) const;
  bool IsTrue(std::string_view name) const;

  // Returns the elements with which a bucket of the distributed optimizer is full, in the first
  // chunk of the first pipeline stage; 0: never, as in all other chunks.
  int64_t BucketElements() const;

  // Sets the topology, the step and the consumed samples, as far as they are known. Adds a note if
  // the run's GELU is not this library's.
  void Describe(ForeignCheckpoint& checkpoint) const;

 private:
  pickle::Value state_;
  pickle::Value arguments_;  // a dict
};

// Reads the model that the arguments of a run describe, and its parameters. Names of layers stand
// both for one layer and for stacks of all. `where` names the file that has the arguments.
// InvalidArgument if the run has no arguments, or for a model that is unknown or too large for the
// files.
absl::StatusOr<ForeignModel> ReadMegatronModel(const MegatronRun& run, const std::string& where,
                                               int64_t tensor_count, uint64_t file_bytes);

// Returns the parameter of this name in a file whose tensors have `rows` rows in all, padding
// included, which a padded parameter gets. Null if the model has no such parameter.
const ForeignParameter* FindMegatronParameter(ForeignModel& model, std::string_view name,
                                              int64_t rows);

// Returns whether a parameter is an embedding that the last pipeline stage has, too, as the head.
inline bool IsTiedEmbedding(const ForeignParameter& parameter) {
  return parameter.padded && !parameter.other_names.empty();
}

inline constexpr char kMegatronCommonFile[] = "common.pt";
inline constexpr char kMegatronFormatFile[] = "metadata.json";

inline constexpr char kMegatronRankFile[] = "model_optim_rng.pt";

// Returns the folders of ranks in a folder, sorted; empty if it has none, or does not exist.
absl::StatusOr<std::vector<std::string>> FindMegatronRanks(Storage& storage,
                                                           std::string_view folder);

// Reads a checkpoint of Megatron-LM's format `torch`: a folder mp_rank_TT or mp_rank_TT_PPP for
// each rank of the tensor- and pipeline-parallel grid, with model_optim_rng.pt and, of the
// distributed optimizer, distrib_optim.pt. The state of the optimizers has no names there: its
// parameters follow from their order in model_optim_rng.pt, and are checked by sizes, shapes and,
// if there are fp32 weights, their values.
//
// Errors: DataLoss, naming file and tensor, also for files of ranks that are missing or do not
// belong together. InvalidArgument without arguments, or if they describe an unknown model.
// Unimplemented for experts, and for models of before Megatron-Core.
absl::StatusOr<ForeignCheckpoint> ReadMegatronLegacy(Storage& storage, const std::string& folder);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_MEGATRON_RUN_H_
