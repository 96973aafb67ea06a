#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/reading.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/internevo/files.h"
#include "convert/formats/internevo/internevo.h"
#include "convert/formats/internevo/zero_state.h"
#include "convert/pickle/torch_archive.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

// Groups of parameters, by their names.
constexpr std::string_view kDefaultGroup = "default";
constexpr std::string_view kFp32Group = "fp32";

// A tensor of a model's file.
struct LocalTensor {
  std::string name;  // in the file
  InternEvoLocalName parsed;
  TorchTensor tensor;
  const ForeignParameter* parameter = nullptr;
};

// A model's file, whose tensors are in the order of the model's parameters.
struct ModelFile {
  const InternEvoRankFile* file = nullptr;
  std::vector<LocalTensor> tensors;
};

// Reads one file of the model and one of the optimizer for each rank. The weights come first: the
// order of a rank's parameters says where they are in its flat states.
class RankFilesReader {
 public:
  RankFilesReader(Storage& storage, InternEvoRankFiles files)
      : storage_(storage), files_(std::move(files)) {}

  absl::StatusOr<ForeignCheckpoint> Read() {
    for (const InternEvoRankFile& file : files_.models) {
      TESSERA_RETURN_IF_ERROR(ReadModelFile(file));
    }
    TESSERA_ASSIGN_OR_RETURN(model_, ReadInternEvoModel(storage_, tensor_count_, file_bytes_));
    set_.emplace(model_->description());
    for (ModelFile& model : models_) TESSERA_RETURN_IF_ERROR(AddWeights(model));
    for (const ModelFile& model : models_) TESSERA_RETURN_IF_ERROR(AddOptimizers(model));
    ForeignCheckpoint checkpoint = CheckpointOf(kInternEvo, "InternEvo");
    TESSERA_RETURN_IF_ERROR(DescribeInternEvoRun(storage_, checkpoint));
    SetTopology({.data = files_.zero_ranks,
                 .tensor = files_.parts,
                 .pipeline = files_.stages,
                 .virtual_pipeline = layers_.chunks(),
                 .zero_stage = files_.zero_ranks > 1 ? 1u : 0},
                checkpoint.description);
    TESSERA_RETURN_IF_ERROR(std::move(*set_).MoveTo(kInternEvo, storage_.Describe(""), checkpoint));
    return checkpoint;
  }

 private:
  TensorParallelShare ShareOf(const InternEvoRankFile& file) const {
    return {file.part, files_.parts};
  }

  absl::Status ReadModelFile(const InternEvoRankFile& file) {
    const std::string path = file.name;
    TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchFile(storage_, path));
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open, storage_.Open(path));
    file_bytes_ += open->size_bytes();
    ModelFile model = {.file = &file};
    std::set<std::string> names;
    for (const auto& [key, value] : archive.contents.root().entries()) {
      const auto name = key.AsText();
      if (!name || !IsTorchTensor(value)) continue;
      LocalTensor tensor = {.name = std::string(*name), .parsed = ParseInternEvoName(*name)};
      if (!names.insert(tensor.name).second) {
        return Damaged(storage_, file.name, "tensor ", tensor.name, " occurs twice");
      }
      TESSERA_ASSIGN_OR_RETURN(tensor.tensor,
                               At(storage_, path, ResolveTorchTensor(archive, value)));
      rounded_ = rounded_ || tensor.tensor.dtype != DType::kF32;
      layers_.Add(file.pipeline, tensor.parsed);
      model.tensors.push_back(std::move(tensor));
    }
    if (model.tensors.empty())
      return Damaged(storage_, file.name, "no tensors: not the file of a model");
    tensor_count_ += static_cast<int64_t>(model.tensors.size());
    models_.push_back(std::move(model));
    return absl::OkStatus();
  }

  absl::Status AddWeights(ModelFile& model) {
    for (LocalTensor& tensor : model.tensors) {
      const std::string& file = model.file->name;
      TESSERA_ASSIGN_OR_RETURN(
          const std::string name,
          At(storage_, file, layers_.GlobalName(model.file->pipeline, tensor.parsed)));
      TESSERA_ASSIGN_OR_RETURN(
          tensor.parameter,
          At(storage_, file,
             FindInternEvoParameter(*model_, name, tensor.tensor.shape, files_.parts)));
      TESSERA_RETURN_IF_ERROR(set_->AddWhole(*tensor.parameter, ShareOf(*model.file),
                                             kForeignWeight, file, tensor.tensor));
    }
    return absl::OkStatus();
  }

  absl::Status AddOptimizers(const ModelFile& model) {
    std::vector<const InternEvoRankFile*> files;
    std::vector<InternEvoZeroState> states;
    for (const InternEvoRankFile& file : files_.optimizers) {
      if (file.part != model.file->part || file.pipeline != model.file->pipeline) continue;
      TESSERA_ASSIGN_OR_RETURN(InternEvoZeroState state,
                               ReadTorchFile(storage_, file.name, ParseInternEvoZeroState));
      files.push_back(&file);
      states.push_back(std::move(state));
    }
    if (files.empty()) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const InternEvoPlan plan, PlanOf(*model.file, files, states));
    for (size_t g = 0; g < plan.size(); ++g) {
      const bool is_empty =
          std::ranges::all_of(plan[g], [](const auto& rank) { return rank.empty(); });
      for (size_t zero = 0; zero < files.size(); ++zero) {
        if (g >= states[zero].groups.size()) {
          return Damaged(storage_, files[zero]->name, "the plan has ", plan.size(),
                         " groups of parameters, param_groups ", states[zero].groups.size());
        }
        const InternEvoGroup& group = states[zero].groups[g];
        const std::vector<const LocalTensor*> parameters = ParametersOf(model, group.name);
        if (is_empty && parameters.empty() && group.vectors.empty()) continue;
        if (plan[g].size() != files.size()) {
          return Damaged(storage_, files[zero]->name, "group ", group.name, " was dealt out to ",
                         plan[g].size(), " ranks, but ", files.size(), " have files");
        }
        if (const absl::Status fits = CheckPlan(parameters, plan[g]); !fits.ok()) {
          return Damaged(storage_, files[zero]->name, "group ", group.name, ": ", fits.message());
        }
        TESSERA_RETURN_IF_ERROR(AddGroup(*files[zero], group, parameters, plan[g][zero]));
      }
    }
    return absl::OkStatus();
  }

  // Returns the plan that all of a stage's ZeRO ranks have or, without one, that in its own file.
  absl::StatusOr<InternEvoPlan> PlanOf(const InternEvoRankFile& model,
                                       const std::vector<const InternEvoRankFile*>& files,
                                       const std::vector<InternEvoZeroState>& states) const {
    std::optional<InternEvoPlan> plan;
    for (size_t zero = 0; zero < states.size(); ++zero) {
      if (!states[zero].plan) continue;
      if (!plan) plan = states[zero].plan;
      if (*plan == *states[zero].plan) continue;
      return Damaged(storage_, files[zero]->name,
                     "parameters are dealt out to ranks in another way than in ", files[0]->name);
    }
    if (plan) return *std::move(plan);
    for (const InternEvoRankFile& file : files_.plans) {
      if (file.part != model.part || file.pipeline != model.pipeline) continue;
      return ReadTorchFile<InternEvoPlan>(storage_, file.name, [](const TorchArchive& archive) {
        return ParseInternEvoPlan(archive.contents, archive.contents.root());
      });
    }
    return Unimplemented(storage_.Describe(files[0]->name),
                         ": no zero_devide_optim_plan, which tells where each parameter "
                         "is: load and save it with a later InternEvo");
  }

  // Returns the parameters of a group, the largest first.
  std::vector<const LocalTensor*> ParametersOf(const ModelFile& model,
                                               const std::string& group) const {
    std::vector<const LocalTensor*> parameters;
    for (const LocalTensor& tensor : model.tensors) {
      const bool is_fp32 = rounded_ && tensor.tensor.dtype == DType::kF32;
      if (is_fp32 ? group == kFp32Group : group == kDefaultGroup) parameters.push_back(&tensor);
    }
    std::ranges::stable_sort(parameters, std::greater<>(), [](const LocalTensor* tensor) {
      return ElementCount(tensor->tensor.shape);
    });
    return parameters;
  }

  absl::Status CheckPlan(const std::vector<const LocalTensor*>& parameters,
                         const std::vector<std::vector<InternEvoPlannedParameter>>& ranks) const {
    std::vector<bool> found(parameters.size());
    for (const auto& rank : ranks) {
      for (const InternEvoPlannedParameter& planned : rank) {
        const auto index = static_cast<size_t>(planned.index);
        if (index >= parameters.size()) {
          return DataLoss("the plan has a parameter ", index, ", the model's file ",
                          parameters.size());
        }
        const LocalTensor& tensor = *parameters[index];
        if (planned.shape != tensor.tensor.shape) {
          return DataLoss("parameter ", index, " of the plan has shape ",
                          ShapeToString(planned.shape), ", in the model's file it is ", tensor.name,
                          " of shape ", ShapeToString(tensor.tensor.shape));
        }
        if (found[index]) return DataLoss("two ranks of the plan have ", tensor.name);
        found[index] = true;
      }
    }
    const auto missing = std::ranges::find(found, false);
    if (missing == found.end()) return absl::OkStatus();
    return DataLoss("no rank of the plan has ", parameters[missing - found.begin()]->name);
  }

  absl::Status AddGroup(const InternEvoRankFile& file, const InternEvoGroup& group,
                        const std::vector<const LocalTensor*>& parameters,
                        const std::vector<InternEvoPlannedParameter>& plan) {
    int64_t elements = 0;
    for (const InternEvoPlannedParameter& planned : plan) elements += ElementCount(planned.shape);
    const int64_t stored = group.vectors.empty() ? 0 : group.vectors.front().second.shape[0];
    if (stored != elements) {
      return Damaged(storage_, file.name, "group ", group.name, ": flat_fp32_weights has ", stored,
                     " elements, its parameters have ", elements);
    }
    for (const auto& [kind, vector] : group.vectors) {
      const bool is_copy = kind.state == kForeignMaster.state && !rounded_;
      uint64_t offset_bytes = vector.offset_bytes;
      for (const InternEvoPlannedParameter& planned : plan) {
        const ForeignParameter& parameter = *parameters[planned.index]->parameter;
        TESSERA_RETURN_IF_ERROR(set_->AddWhole(
            parameter, ShareOf(file), is_copy ? kForeignWeight : kind, planned.shape,
            {file.name, offset_bytes, vector.dtype}, ContiguousStrides(planned.shape)));
        offset_bytes += ByteCount(planned.shape, vector.dtype);
      }
    }
    return absl::OkStatus();
  }

  Storage& storage_;
  const InternEvoRankFiles files_;
  std::vector<ModelFile> models_;
  InternEvoLayers layers_;
  bool rounded_ = false;  // some weights are not F32
  int64_t tensor_count_ = 0;
  uint64_t file_bytes_ = 0;
  std::optional<ForeignModel> model_;
  std::optional<ForeignTensorSet> set_;
};

// ---- Universal checkpoints.

constexpr std::string_view kModelFolder = "model";
constexpr std::string_view kOptimizerFolder = "optimizer";

// A tensor of DCP: which of a parameter's tensors it is.
struct Key {
  ForeignKind kind;
  std::string parameter;
};

Key ParseStateKey(const std::string& name, const ForeignKind& kind_of_fp32) {
  for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq}) {
    const std::string suffix = "." + kind.state;
    if (name.ends_with(suffix)) return {kind, name.substr(0, name.size() - suffix.size())};
  }
  return {kind_of_fp32, name};
}

absl::Status AddTensor(const ForeignTensor& tensor, const Key& key, ForeignModel& model,
                       ForeignTensorSet& set) {
  TESSERA_ASSIGN_OR_RETURN(const ForeignParameter* const parameter,
                           FindInternEvoParameter(model, key.parameter, tensor.shape, /*parts=*/1));
  return set.AddPieces(*parameter, key.kind, tensor);
}

// Returns whether there is a universal checkpoint: folders of DCP for model and optimizer.
absl::StatusOr<bool> IsUniversal(Storage& storage) {
  // Other programs have a DCP folder "model", too.
  TESSERA_ASSIGN_OR_RETURN(const bool has_config, Exists(storage, "model_config.pt"));
  return has_config ? IsDcp(storage, kModelFolder) : false;
}

absl::StatusOr<ForeignCheckpoint> ReadUniversal(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ForeignTensor> weights,
                           ReadDcpTensors(storage, kModelFolder));
  std::vector<ForeignTensor> states;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  if (Has(names, std::string(kOptimizerFolder) + "/")) {
    TESSERA_ASSIGN_OR_RETURN(states, ReadDcpTensors(storage, kOptimizerFolder));
  }
  TESSERA_ASSIGN_OR_RETURN(const uint64_t file_bytes, FileBytes(storage, FilesOf(weights)));
  TESSERA_ASSIGN_OR_RETURN(
      ForeignModel model,
      ReadInternEvoModel(storage, static_cast<int64_t>(weights.size()), file_bytes));
  ForeignTensorSet set(model.description());
  bool rounded = false;
  for (const ForeignTensor& tensor : weights) {
    rounded = rounded || tensor.dtype != DType::kF32;
    TESSERA_RETURN_IF_ERROR(AddTensor(tensor, {kForeignWeight, tensor.name}, model, set));
  }
  for (const ForeignTensor& tensor : states) {
    const Key key = ParseStateKey(tensor.name, rounded ? kForeignMaster : kForeignWeight);
    TESSERA_RETURN_IF_ERROR(AddTensor(tensor, key, model, set));
  }
  ForeignCheckpoint checkpoint = CheckpointOf(kInternEvo, "InternEvo");
  TESSERA_RETURN_IF_ERROR(DescribeInternEvoRun(storage, checkpoint));
  TESSERA_RETURN_IF_ERROR(std::move(set).MoveTo(kInternEvo, storage.Describe(""), checkpoint));
  return checkpoint;
}

}  // namespace

absl::StatusOr<bool> IsInternEvo(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const auto names, IfPresent(storage.List("")));
  if (!names) return false;
  if (std::ranges::any_of(*names, IsInternEvoModelName)) return true;
  return IsUniversal(storage);
}

absl::StatusOr<ForeignCheckpoint> ReadInternEvo(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  if (std::ranges::none_of(names, IsInternEvoModelName)) return ReadUniversal(storage);
  TESSERA_ASSIGN_OR_RETURN(InternEvoRankFiles files,
                           At(storage, "", FindInternEvoRankFiles(names)));
  return RankFilesReader(storage, std::move(files)).Read();
}

}  // namespace tessera::ckpt::convert
