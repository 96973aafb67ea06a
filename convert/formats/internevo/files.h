#ifndef TESSERA_CONVERT_FORMATS_INTERNEVO_FILES_H_
#define TESSERA_CONVERT_FORMATS_INTERNEVO_FILES_H_

// The names of InternEvo's files and of the tensors in them, and the files' information about the
// model and the run.

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "layout/box.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// A file of one rank, such as "optimizer_tp0_pp1_zo0.pt".
struct InternEvoRankFile {
  std::string name;
  int64_t part = 0;  // tensor-parallel rank, or weight-parallel rank
  int64_t pipeline = 0;
  int64_t zero = 0;
};

struct InternEvoRankFiles {
  bool weight_parallel = false;  // "wp" in place of "tp"
  int64_t parts = 1, stages = 1, zero_ranks = 1;
  // All ranks of the grid, by stage, part and ZeRO rank.
  std::vector<InternEvoRankFile> models;
  std::vector<InternEvoRankFile> optimizers;  // empty: none was saved
  // Files "gpus-8_wp-0_tp-1_dp-0_pp-0_zo-1.pt", which record the parameters of each ZeRO rank.
  std::vector<InternEvoRankFile> plans;
};

// Returns whether a file of this name has the model's weights, in any parallel mode.
bool IsInternEvoModelName(const std::string& name);

// Finds the ranks' files among the names in a folder. Errors, naming files: DataLoss for missing
// ranks; Unimplemented for files of experts, of FSDP, and of ranks that are both tensor-parallel
// and weight-parallel.
absl::StatusOr<InternEvoRankFiles> FindInternEvoRankFiles(std::span<const std::string> names);

// A name in the file of a pipeline stage, which counts its layers from 0 on: "layers.1.ffn_norm",
// or "1.model.layers.0.ffn_norm" if the stage has several chunks of layers.
struct InternEvoLocalName : LayerName {
  int64_t chunk = 0;
};

InternEvoLocalName ParseInternEvoName(std::string_view name);

// Counts the layers of the whole model from those of each stage. Stages take chunks in turn.
class InternEvoLayers {
 public:
  void Add(int64_t stage, const InternEvoLocalName& name);

  // Returns the number of chunks of a stage.
  int64_t chunks() const;

  // Returns the name with the number of the layer in the whole model. DataLoss, naming chunk and
  // stage, if the stage's numbers leave one out.
  absl::StatusOr<std::string> GlobalName(int64_t stage, const InternEvoLocalName& name) const;

 private:
  std::map<std::pair<int64_t, int64_t>, std::set<int64_t>> layers_;  // by chunk and stage
};

// Reads the model that model_config.pt describes. `tensor_count` and `file_bytes` are totals of all
// files that hold tensors. Errors, naming the file: InvalidArgument if it is missing, does not
// record the order of rotary rows, or describes a model that is unknown or too large for the files;
// DataLoss; those of the storage.
absl::StatusOr<ForeignModel> ReadInternEvoModel(Storage& storage, int64_t tensor_count,
                                                uint64_t file_bytes);

// Finds a parameter: each of `parts` ranks has a tensor of it with this name and shape. Shapes
// decide, since releases gave the same names to different parameters and cut them along different
// dims. Errors, naming the tensor: InvalidArgument for an unknown name, and if several parameters
// have that shape; DataLoss for another shape.
absl::StatusOr<const ForeignParameter*> FindInternEvoParameter(ForeignModel& model,
                                                               const std::string& name,
                                                               const Shape& shape, int64_t parts);

// Adds the information of context.pt, schedulder.pt and sampler.pt: the step, the consumed samples
// and their length, and a note about them. Without these files the information stays unknown.
// Errors: DataLoss, naming the file, if one contradicts another; those of the storage.
absl::Status DescribeInternEvoRun(Storage& storage, ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_INTERNEVO_FILES_H_
