#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/decoded_files.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/formats/paddle/distributed_files.h"
#include "convert/formats/paddle/files.h"
#include "convert/formats/paddle/paddle.h"
#include "convert/formats/paddle/state_file.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kModelMeta = "model_meta.json";

struct OpenedFile {
  const PaddleRankFile* file = nullptr;
  PaddleStateFile contents;
};

// Reads all ranks' files. The weights come first; then the states of the optimizer are collected
// from all ranks, by parameter, and placed as copies or as slices (AddPaddleState()).
class PaddleReader {
 public:
  PaddleReader(Storage& storage, const std::map<std::string, std::string>& given_names)
      : storage_(storage), given_names_(given_names), progress_(storage_) {}

  absl::StatusOr<ForeignCheckpoint> Read() {
    TESSERA_ASSIGN_OR_RETURN(file_names_, storage_.List(""));
    std::ranges::sort(file_names_);
    TESSERA_ASSIGN_OR_RETURN(metadata_file_, FindPaddleMetadata(storage_));
    TESSERA_RETURN_IF_ERROR(metadata_file_.empty() ? ReadRankFiles() : ReadShardFiles());
    TESSERA_RETURN_IF_ERROR(ReadConfig());
    ForeignTensorSet set(model_->description());
    TESSERA_RETURN_IF_ERROR(metadata_file_.empty() ? AddRanks(set) : AddShards(set));
    ForeignCheckpoint checkpoint = CheckpointOf(kPaddle, "PaddleNLP");
    TESSERA_RETURN_IF_ERROR(Describe(set, checkpoint));
    checkpoint.tensors = std::move(set).Finish();
    TESSERA_RETURN_IF_ERROR(CheckComplete(checkpoint.tensors));
    NoteLeftOut("tensors that are not the model's", {left_out_.begin(), left_out_.end()},
                checkpoint.notes);
    checkpoint.decoded = std::move(storage_).Take();
    return checkpoint;
  }

 private:
  using Ranks = std::pair<int64_t, int64_t>;  // the tensor-parallel and the pipeline rank
  using Parameter = const ForeignParameter*;  // of the model, in whose order they compare
  using StateKey = std::tuple<Ranks, Parameter, PaddleState>;

  static Ranks RanksOf(const PaddleRankFile& file) { return {file.tensor, file.pipeline}; }
  TensorParallelShare ShareOf(const Ranks& ranks) const {
    return {ranks.first, files_.degrees.tensor};
  }

  absl::Status ReadRankFiles() {
    TESSERA_ASSIGN_OR_RETURN(files_, At(storage_, "", FindPaddleRankFiles(file_names_)));
    TESSERA_RETURN_IF_ERROR(ReadMeta());
    TESSERA_RETURN_IF_ERROR(ReadFiles(files_.models, models_));
    return ReadFiles(files_.optimizers, optimizers_);
  }

  // Reads the files that the metadata of auto parallel names.
  absl::Status ReadShardFiles() {
    TESSERA_ASSIGN_OR_RETURN(const auto open, storage_.Open(metadata_file_));
    TESSERA_ASSIGN_OR_RETURN(shards_, At(storage_, metadata_file_, ReadPaddleMetadata(*open)));
    std::set<std::string> names;
    const std::string folder = metadata_file_.substr(0, metadata_file_.rfind('/') + 1);
    for (PaddleShard& shard : shards_) {
      shard.file = folder + shard.file;
      names.insert(shard.file);
    }
    for (const std::string& name : names) files_.models.push_back({.name = name});
    return ReadFiles(files_.models, models_);
  }

  absl::Status ReadMeta() {
    if (!Has(file_names_, kModelMeta)) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadAll(storage_, kModelMeta, kMaxJsonBytes));
    TESSERA_ASSIGN_OR_RETURN(meta_, At(storage_, kModelMeta, ParsePaddleModelMeta(text)));
    if (!meta_.degrees || *meta_.degrees == files_.degrees) return absl::OkStatus();
    const auto shown = [](const PaddleDegrees& degrees) {
      return absl::StrCat("tp ", degrees.tensor, ", pp ", degrees.pipeline, ", sharding ",
                          degrees.sharding);
    };
    return Damaged(storage_, kModelMeta, "parallel_config: ", shown(*meta_.degrees),
                   ", the names of the files say ", shown(files_.degrees));
  }

  absl::Status ReadFiles(const std::vector<PaddleRankFile>& files,
                         std::vector<OpenedFile>& opened) {
    for (const PaddleRankFile& file : files) {
      TESSERA_ASSIGN_OR_RETURN(const auto open, storage_.Open(file.name));
      file_bytes_ += open->size_bytes();
      TESSERA_ASSIGN_OR_RETURN(PaddleStateFile contents,
                               At(storage_, file.name, ReadPaddleStateFile(*open)));
      tensor_count_ += contents.arrays.size() + contents.master_weights.size();
      storage_.Add(file.name, std::move(contents.decoded));
      opened.push_back({&file, std::move(contents)});
    }
    return absl::OkStatus();
  }

  absl::Status ReadConfig() {
    if (!Has(file_names_, kConfig)) {
      return InvalidArgument(storage_.Describe(""), ": no ", kConfig,
                             ", which describes the model: copy the one that was trained here");
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadAll(storage_, kConfig, kMaxJsonBytes));
    TESSERA_ASSIGN_OR_RETURN(
        model_,
        At(storage_, kConfig,
           ForeignModel::Read(kPaddle, text, static_cast<int64_t>(tensor_count_), file_bytes_)));
    return absl::OkStatus();
  }

  absl::Status AddRanks(ForeignTensorSet& set) {
    TESSERA_RETURN_IF_ERROR(AddWeights(set));
    TESSERA_RETURN_IF_ERROR(CollectStates());
    TESSERA_RETURN_IF_ERROR(CheckSlices());
    for (const auto& [key, stored] : states_) {
      const auto& [ranks, parameter, state] = key;
      PaddleTarget target = {
          .parameter = parameter, .share = ShareOf(ranks), .kind = *KindOf(state)};
      const auto shape = local_shapes_.find({ranks, parameter});
      if (shape != local_shapes_.end()) target.local_shape = shape->second;
      TESSERA_RETURN_IF_ERROR(AddPaddleState(target, stored, storage_, set));
    }
    return absl::OkStatus();
  }

  // Adds each shard's array. States have the names of the model's tensors, which may be in files of
  // other ranks.
  absl::Status AddShards(ForeignTensorSet& set) {
    std::map<std::pair<std::string, std::string>, const PaddleArray*> arrays;  // by file, key
    for (const OpenedFile& opened : models_) {
      for (const PaddleArray& array : opened.contents.arrays) {
        arrays[{opened.file->name, array.key}] = &array;
        const PaddleShardKey key = ParsePaddleShardKey(array.key);
        if (!key.state) AddName(*opened.file, array.tensor_name, FindParameter(key.name));
      }
    }
    for (const PaddleShard& shard : shards_) {
      const auto array = arrays.find({shard.file, shard.key});
      if (array == arrays.end()) {
        return Damaged(storage_, shard.file, "no tensor ", shard.key, ", which ", metadata_file_,
                       " says is there");
      }
      TESSERA_RETURN_IF_ERROR(AddShard(shard, *array->second, set));
    }
    return absl::OkStatus();
  }

  absl::Status AddShard(const PaddleShard& shard, const PaddleArray& array, ForeignTensorSet& set) {
    if (array.shape != shard.box.shape || array.dtype != shard.dtype) {
      return Damaged(storage_, shard.file, shard.key, ": ", ProtoName(array.dtype), " ",
                     ShapeToString(array.shape), ", ", metadata_file_, " says ",
                     ProtoName(shard.dtype), " ", ShapeToString(shard.box.shape));
    }
    const PaddleShardKey key = ParsePaddleShardKey(shard.key);
    Parameter parameter = FindParameter(key.name);
    if (parameter == nullptr && key.state) {
      TESSERA_ASSIGN_OR_RETURN(parameter, ParameterOf({.name = shard.file}, key.name));
    }
    if (parameter == nullptr) {
      left_out_.insert(shard.key);
      return absl::OkStatus();
    }
    const std::optional<ForeignKind> kind = key.state ? KindOf(*key.state) : kForeignWeight;
    if (!kind) return progress_.AddPower(shard.file, array, *key.state);
    if (key.state) tensor_names_.emplace(parameter, key.name);
    if (array.parts.size() != 1) {
      return Unimplemented(storage_.Describe(shard.file), ": ", shard.key,
                           ": a shard in several arrays");
    }
    const pickle::NumpyArray& elements = array.parts[0];
    return set.AddBox(*parameter, {}, *kind, shard.box,
                      {shard.file, elements.offset_bytes, array.dtype}, elements.strides);
  }

  // Null if the model has no such parameter.
  Parameter FindParameter(std::string_view name) { return model_->Find(CanonicalPaddleName(name)); }

  absl::Status AddWeights(ForeignTensorSet& set) {
    for (const OpenedFile& model : models_) {
      const Ranks ranks = RanksOf(*model.file);
      for (const PaddleArray& array : model.contents.arrays) {
        if (HasPaddleChunk(array.key)) {
          chunks_.insert({ranks.second, array.key.substr(0, array.key.find('.'))});
        }
        const Parameter parameter = FindParameter(array.key);
        if (parameter == nullptr) {
          left_out_.insert(array.key);
          continue;
        }
        AddName(*model.file, array.tensor_name, parameter);
        const PaddleTarget target = {.parameter = parameter, .share = ShareOf(ranks), .kind = {}};
        TESSERA_RETURN_IF_ERROR(AddPaddleState(target, {{model.file, &array}}, storage_, set));
        local_shapes_.emplace(std::pair(ranks, parameter), array.shape);
      }
    }
    for (const auto& [ranks, meta] : meta_.ranks) TESSERA_RETURN_IF_ERROR(AddMeta(ranks, meta));
    return absl::OkStatus();
  }

  void AddName(const PaddleRankFile& file, const std::string& tensor_name, Parameter parameter) {
    if (tensor_name.empty() || parameter == nullptr) return;
    const auto [at, is_new] = names_[RanksOf(file)].emplace(tensor_name, parameter);
    // Files that were made from others may have names that stand for nothing.
    if (!is_new && at->second != parameter) repeated_names_[RanksOf(file)].insert(tensor_name);
  }

  // Adds the metadata's names and shapes.
  absl::Status AddMeta(const Ranks& ranks, const PaddleShardingMeta& meta) {
    for (const auto& [tensor_name, structured] : meta.structured_names) {
      const Parameter parameter = FindParameter(structured);
      if (parameter == nullptr) continue;
      const auto [at, is_new] = names_[ranks].emplace(tensor_name, parameter);
      repeated_names_[ranks].erase(tensor_name);
      if (!is_new && at->second != parameter) {
        return Damaged(storage_, kModelMeta, "structure_name_mapping: ", tensor_name, " is ",
                       structured, ", there or in the model's file it is ", at->second->name);
      }
    }
    for (const auto& [structured, shape] : meta.shapes) {
      const Parameter parameter = FindParameter(structured);
      if (parameter == nullptr) continue;
      const auto [at, is_new] = local_shapes_.emplace(std::pair(ranks, parameter), shape);
      if (!is_new && at->second != shape) {
        return Damaged(storage_, kModelMeta, "param_meta: ", structured, ": shape ",
                       ShapeToString(shape), ", in the model's file ", ShapeToString(at->second));
      }
    }
    return absl::OkStatus();
  }

  // Returns the parameter of a tensor in the optimizer's file of a rank; null if the model has no
  // such parameter.
  absl::StatusOr<Parameter> ParameterOf(const PaddleRankFile& file,
                                        const std::string& tensor_name) {
    const Ranks ranks = RanksOf(file);
    const auto known = names_[ranks].find(tensor_name);
    if (known != names_[ranks].end() && !repeated_names_[ranks].contains(tensor_name)) {
      return known->second;
    }
    TESSERA_ASSIGN_OR_RETURN(const Parameter given, GivenParameter(file, tensor_name));
    if (given != nullptr) return given;
    if (const Parameter parameter = FindParameter(tensor_name)) return parameter;
    const auto& structured_names = meta_.ranks[ranks].structured_names;
    if (const auto name = structured_names.find(tensor_name); name != structured_names.end()) {
      left_out_.insert(name->second);
      return nullptr;
    }
    return InvalidArgument(
        storage_.Describe(file.name), ": nothing says which parameter ", tensor_name,
        " is; structure_name_mapping in model_meta.json, names of tensors in the model's files, ",
        "or --parameter-to-structured-name, would settle it");
  }

  // Looks the parameter up in the caller's map, in which a rank's own names come first.
  // InvalidArgument for a name that no parameter has.
  absl::StatusOr<Parameter> GivenParameter(const PaddleRankFile& file,
                                           const std::string& tensor_name) {
    auto given = given_names_.find(
        absl::StrCat(PaddleRankKey(file.tensor, file.pipeline), "/", tensor_name));
    if (given == given_names_.end()) given = given_names_.find(tensor_name);
    if (given == given_names_.end()) return nullptr;
    if (const Parameter parameter = FindParameter(given->second)) return parameter;
    return InvalidArgument(storage_.Describe(file.name), ": ", tensor_name, " was said to be ",
                           given->second, ", which is not a parameter of the model in ", kConfig);
  }

  // States may be named after a master weight's tensor, which is kept under its parameter's name.
  absl::Status AddNamesOfMasterWeights(const OpenedFile& optimizer) {
    for (const PaddleArray& array : optimizer.contents.master_weights) {
      const std::string name = ParsePaddleMasterKey(array.key).tensor_name;
      if (array.tensor_name.empty() || array.tensor_name == name) continue;
      TESSERA_ASSIGN_OR_RETURN(const Parameter parameter, ParameterOf(*optimizer.file, name));
      AddName(*optimizer.file, array.tensor_name, parameter);
    }
    return absl::OkStatus();
  }

  absl::Status CollectStates() {
    for (const OpenedFile& optimizer : optimizers_) {
      TESSERA_RETURN_IF_ERROR(AddNamesOfMasterWeights(optimizer));
      for (const PaddleArray& array : optimizer.contents.arrays) {
        if (const std::optional<PaddleStateKey> key = ParsePaddleStateKey(array.key)) {
          TESSERA_RETURN_IF_ERROR(CollectState(*optimizer.file, *key, array));
        } else {
          left_out_.insert(array.key);
        }
      }
      for (const PaddleArray& array : optimizer.contents.master_weights) {
        TESSERA_RETURN_IF_ERROR(
            CollectState(*optimizer.file, ParsePaddleMasterKey(array.key), array));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CollectState(const PaddleRankFile& file, const PaddleStateKey& key,
                            const PaddleArray& array) {
    TESSERA_ASSIGN_OR_RETURN(const Parameter parameter, ParameterOf(file, key.tensor_name));
    if (parameter == nullptr) return absl::OkStatus();
    is_sliced_ = is_sliced_ || key.sliced;
    if (!KindOf(key.state)) return progress_.AddPower(file.name, array, key.state);
    // A whole state is on the rank that the metadata says.
    const std::map<std::string, int64_t>& owners = meta_.ranks[RanksOf(file)].owners;
    const auto owner = owners.find(key.tensor_name);
    if (owner != owners.end() && owner->second != file.shard) {
      return Damaged(storage_, file.name, array.key, ": model_meta.json says that sharding rank ",
                     owner->second, " has it");
    }
    tensor_names_.emplace(parameter, key.tensor_name);
    states_[{RanksOf(file), parameter, key.state}].push_back({&file, &array});
    return absl::OkStatus();
  }

  absl::Status CheckStrategy(const PaddleStored& stored, bool is_flat) {
    const std::string& strategy = meta_.ranks[RanksOf(*stored.file)].strategy;
    if (strategy.empty() || is_flat == (strategy == "ShardingV2")) return absl::OkStatus();
    return Damaged(storage_, stored.file->name, stored.array->key,
                   is_flat ? " is a flat slice" : " is whole",
                   ", but model_meta.json's sharding_strategy is ", strategy);
  }

  // Checks that flat slices of states, with padding, are equally long on all sharding ranks.
  absl::Status CheckSlices() {
    using Group = std::pair<Ranks, PaddleState>;
    std::map<Group, std::map<int64_t, int64_t>> elements;  // by sharding rank
    std::set<Group> flat;
    for (const auto& [key, stored] : states_) {
      const auto& [ranks, parameter, state] = key;
      for (const PaddleStored& one : stored) {
        elements[{ranks, state}][one.file->shard] += ElementCount(one.array->shape);
        if (parameter->shape.size() < 2) continue;
        const bool is_flat = one.array->shape.size() == 1;
        TESSERA_RETURN_IF_ERROR(CheckStrategy(one, is_flat));
        if (is_flat) flat.insert({ranks, state});
      }
    }
    for (const Group& group : flat) {
      std::map<int64_t, int64_t>& by_shard = elements[group];
      const auto [first, expected] = *by_shard.begin();
      for (int64_t shard = 0; shard < files_.degrees.sharding; ++shard) {
        if (by_shard[shard] == expected) continue;
        const auto& [ranks, state] = group;
        return Damaged(storage_, "", "tp ", ranks.first, ", pp ", ranks.second, ": ",
                       PaddleStateName(state), ": sharding rank ", shard, " has ", by_shard[shard],
                       " elements in slices, rank ", first, " has ", expected,
                       ": a slice is missing");
      }
    }
    return absl::OkStatus();
  }

  // Checks that a kind of state that some parameters have exists for all of them.
  absl::Status CheckComplete(const std::vector<ForeignTensor>& tensors) const {
    std::set<std::string> found;
    for (const ForeignTensor& tensor : tensors) found.insert(tensor.name);
    const auto without = [&](const auto& is_there) {
      std::vector<std::string> names;
      for (const LogicalParameter& parameter : model_->description().parameters) {
        if (!is_there(parameter.name)) names.push_back(parameter.name);
      }
      return names;
    };
    for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq}) {
      const std::vector<std::string> missing =
          without([&](const std::string& name) { return found.contains(kind.NameOf(name)); });
      if (missing.empty() || missing.size() == model_->description().parameters.size()) continue;
      return Damaged(storage_, "", "the optimizer's files have no ", kind.state, " of ",
                     JoinFirst(missing, ", "));
    }
    const std::vector<std::string> missing = without([&](const std::string& name) {
      return found.contains(name) || found.contains(kForeignMaster.NameOf(name));
    });
    if (missing.empty()) return absl::OkStatus();
    return Damaged(storage_, "", "neither the weight nor the master weight of ",
                   JoinFirst(missing, ", "));
  }

  absl::Status Describe(ForeignTensorSet& set, ForeignCheckpoint& checkpoint) {
    Manifest& manifest = checkpoint.description;
    *manifest.mutable_model() = model_->description().config;
    const PaddleDegrees& degrees = files_.degrees;
    if (metadata_file_.empty()) {  // auto parallel places each tensor on its own
      SetTopology({.data = degrees.sharding,
                   .tensor = degrees.tensor,
                   .pipeline = degrees.pipeline,
                   .virtual_pipeline = VirtualPipeline(),
                   .zero_stage = degrees.sharding == 1 ? 0u
                                 : is_sliced_          ? 3
                                                       : 1},
                  manifest);
    }
    for (const OpenedFile& optimizer : optimizers_) {
      TESSERA_RETURN_IF_ERROR(
          progress_.AddStep(optimizer.contents.last_epoch, optimizer.file->name));
    }
    TESSERA_RETURN_IF_ERROR(progress_.ReadSteps(file_names_));
    progress_.DescribeStep(checkpoint);
    set.DescribeOptimizer(kPaddle, checkpoint);
    if (!manifest.has_optimizer()) {
      checkpoint.notes.emplace_back("There is no optimizer state.");
      return absl::OkStatus();
    }
    OptimizerState& optimizer = *manifest.mutable_optimizer();
    progress_.AddBetas(optimizer);
    AddTensorNames(optimizer);
    return absl::OkStatus();
  }

  int64_t VirtualPipeline() const {
    std::map<int64_t, int64_t> chunks;  // by pipeline rank
    int64_t most = meta_.virtual_pipeline;
    for (const auto& [pipeline, chunk] : chunks_) most = std::max(most, ++chunks[pipeline]);
    return most;
  }

  // Adds the optimizer's names beside the structured ones.
  void AddTensorNames(OptimizerState& optimizer) const {
    std::map<std::string, std::string> by_logical_name;
    for (const auto& [parameter, name] : tensor_names_) {
      for (const ForeignBlock& block : parameter->blocks) by_logical_name[block.name] = name;
    }
    for (OptimizerParameter& parameter : *optimizer.mutable_parameters()) {
      const auto name = by_logical_name.find(parameter.parameter());
      if (name == by_logical_name.end()) continue;
      (*parameter.mutable_foreign_names())["paddle.tensor"] = name->second;
    }
  }

  DecodedFiles storage_;
  const std::map<std::string, std::string>& given_names_;
  std::vector<std::string> file_names_;
  PaddleRankFiles files_;
  PaddleModelMeta meta_;
  std::string metadata_file_;  // of auto parallel; empty: there are files of ranks
  std::vector<PaddleShard> shards_;
  std::vector<OpenedFile> models_, optimizers_;
  uint64_t file_bytes_ = 0, tensor_count_ = 0;
  std::optional<ForeignModel> model_;
  // By tensor's name. Those that two parameters of a rank's model file have tell nothing.
  std::map<Ranks, std::map<std::string, Parameter>> names_;
  std::map<Ranks, std::set<std::string>> repeated_names_;
  std::map<std::pair<Ranks, Parameter>, Shape> local_shapes_;
  std::map<StateKey, std::vector<PaddleStored>> states_;
  std::map<Parameter, std::string> tensor_names_;
  PaddleProgress progress_;
  std::set<std::pair<int64_t, std::string>> chunks_;  // pipeline rank, first layer
  std::set<std::string> left_out_;
  bool is_sliced_ = false;
};

}  // namespace

absl::StatusOr<bool> IsPaddle(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  if (std::ranges::any_of(names, IsPaddleStateName)) return true;
  const absl::StatusOr<std::string> metadata = FindPaddleMetadata(storage);
  if (absl::IsDataLoss(metadata.status())) return true;
  TESSERA_RETURN_IF_ERROR(metadata.status());
  return !metadata->empty();
}

absl::StatusOr<ForeignCheckpoint> ReadPaddle(
    Storage& storage, const std::map<std::string, std::string>& structured_names) {
  return PaddleReader(storage, structured_names).Read();
}

}  // namespace tessera::ckpt::convert
