#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/decoded_files.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/formats/paddle/distributed_files.h"
#include "convert/formats/paddle/files.h"
#include "convert/formats/paddle/paddle.h"
#include "convert/formats/paddle/state_file.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kModelMeta = "model_meta.json";
constexpr std::string_view kSchedulerFile = "scheduler.pdparams";
constexpr std::string_view kTrainerState = "trainer_state.json";

// "0.1.rest", a name in a chunk of virtual pipeline stages, is layer 0 + 1: "1.rest".
std::string WithoutChunk(const std::string& name) {
  int64_t numbers[2] = {0, 0};
  size_t at = 0;
  for (int64_t& number : numbers) {
    const size_t dot = name.find('.', at);
    if (dot == name.npos || dot - at > 9 ||
        !absl::SimpleAtoi(View(std::string_view(name).substr(at, dot - at)), &number) ||
        number < 0) {
      return name;
    }
    at = dot + 1;
  }
  return absl::StrCat(numbers[0] + numbers[1], ".", View(std::string_view(name).substr(at)));
}

bool HasChunk(const std::string& name) { return WithoutChunk(name) != name; }

// Returns the name without the wrapper of a model that runs in a pipeline.
std::string CanonicalName(std::string_view name) {
  constexpr std::string_view kWrapper = "_layers.";
  if (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
  return WithoutChunk(std::string(name));
}

struct OpenedFile {
  const PaddleRankFile* file = nullptr;
  PaddleStateFile contents;
};

std::optional<ForeignKind> KindOf(PaddleState state) {
  switch (state) {
    case PaddleState::kMoment1:
      return kForeignExpAvg;
    case PaddleState::kMoment2:
      return kForeignExpAvgSq;
    case PaddleState::kMasterWeight:
      return kForeignMaster;
    default:
      return std::nullopt;
  }
}

// Reads all ranks' files. The weights come first; then the states of the optimizer are collected
// from all ranks, by parameter, and placed as copies or as slices (AddPaddleState()).
class PaddleReader {
 public:
  PaddleReader(Storage& storage, const std::map<std::string, std::string>& given_names)
      : storage_(storage), given_names_(given_names) {}

  absl::StatusOr<ForeignCheckpoint> Read() {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage_.List(""));
    has_.insert(names.begin(), names.end());
    TESSERA_ASSIGN_OR_RETURN(metadata_file_, FindPaddleMetadata(storage_));
    TESSERA_RETURN_IF_ERROR(metadata_file_.empty() ? ReadRankFiles() : ReadShardFiles());
    TESSERA_RETURN_IF_ERROR(ReadConfig());
    ForeignTensorSet set(model_->description());
    TESSERA_RETURN_IF_ERROR(metadata_file_.empty() ? AddRanks(set) : AddShards(set));
    ForeignCheckpoint checkpoint = {.format = kPaddle};
    TESSERA_RETURN_IF_ERROR(Describe(set, checkpoint));
    checkpoint.tensors = std::move(set).Finish();
    TESSERA_RETURN_IF_ERROR(CheckComplete(checkpoint.tensors));
    AddNotes(checkpoint);
    checkpoint.decoded = std::move(storage_).Take();
    return checkpoint;
  }

 private:
  // Tensor-parallel and pipeline rank, the parameter's index, and the state.
  using StateKey = std::tuple<int64_t, int64_t, size_t, PaddleState>;
  using Ranks = std::pair<int64_t, int64_t>;

  absl::Status ReadRankFiles() {
    const std::vector<std::string> names(has_.begin(), has_.end());
    TESSERA_ASSIGN_OR_RETURN(files_, At(storage_, "", FindPaddleRankFiles(names)));
    TESSERA_RETURN_IF_ERROR(ReadMeta());
    TESSERA_RETURN_IF_ERROR(ReadFiles(files_.models, models_));
    return ReadFiles(files_.optimizers, optimizers_);
  }

  // Reads the files that the metadata of auto parallel names.
  absl::Status ReadShardFiles() {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open,
                             storage_.Open(metadata_file_));
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

  absl::Status AddRanks(ForeignTensorSet& set) {
    TESSERA_RETURN_IF_ERROR(AddWeights(set));
    TESSERA_RETURN_IF_ERROR(CollectStates());
    TESSERA_RETURN_IF_ERROR(CheckSlices());
    for (const auto& [key, stored] : states_) TESSERA_RETURN_IF_ERROR(AddState(key, stored, set));
    return absl::OkStatus();
  }

  // Adds each shard's array. The names of the model's tensors, by which states are called, may be
  // in files of other ranks.
  absl::Status AddShards(ForeignTensorSet& set) {
    std::map<std::pair<std::string, std::string>, const PaddleArray*> arrays;  // by file, key
    std::map<std::string, const PaddleRankFile*> files;
    for (const OpenedFile& opened : models_) {
      files[opened.file->name] = opened.file;
      for (const PaddleArray& array : opened.contents.arrays) {
        arrays[{opened.file->name, array.key}] = &array;
        const PaddleShardKey key = ParsePaddleShardKey(array.key);
        if (key.state) continue;
        const std::optional<size_t> parameter = FindParameter(key.name);
        if (parameter) AddName(*opened.file, array.tensor_name, *parameter);
      }
    }
    for (const PaddleShard& shard : shards_) {
      const auto array = arrays.find({shard.file, shard.key});
      if (array == arrays.end()) {
        return Damaged(
            storage_, shard.file,
            absl::StrCat("no tensor ", shard.key, ", which ", metadata_file_, " says is there"));
      }
      TESSERA_RETURN_IF_ERROR(AddShard(*files[shard.file], shard, *array->second, set));
    }
    return absl::OkStatus();
  }

  absl::Status AddShard(const PaddleRankFile& file, const PaddleShard& shard,
                        const PaddleArray& array, ForeignTensorSet& set) {
    if (array.shape != shard.box.shape || array.dtype != shard.dtype) {
      return Damaged(storage_, file.name,
                     absl::StrCat(shard.key, ": ", ProtoName(array.dtype), " ",
                                  ShapeToString(array.shape), ", ", metadata_file_, " says ",
                                  ProtoName(shard.dtype), " ", ShapeToString(shard.box.shape)));
    }
    const PaddleShardKey key = ParsePaddleShardKey(shard.key);
    std::optional<size_t> parameter = FindParameter(key.name);
    if (!parameter && key.state) {
      TESSERA_ASSIGN_OR_RETURN(parameter, ParameterOf(file, key.name));
    }
    if (!parameter) {
      left_out_.insert(shard.key);
      return absl::OkStatus();
    }
    const std::optional<ForeignKind> kind = key.state ? KindOf(*key.state) : kForeignWeight;
    if (!kind) return CheckPower(file, array, *key.state);
    if (key.state) tensor_names_.emplace(*parameter, key.name);
    if (array.parts.size() != 1) {
      return absl::UnimplementedError(absl::StrCat(storage_.Describe(file.name), ": ", shard.key,
                                                   ": a shard in several arrays"));
    }
    const pickle::NumpyArray& elements = array.parts[0];
    return set.AddBox(ParameterAt(*parameter), {}, *kind, shard.box,
                      {file.name, elements.offset_bytes, array.dtype}, elements.strides);
  }

  static Ranks RanksOf(const PaddleRankFile& file) { return {file.tensor, file.pipeline}; }

  absl::Status ReadMeta() {
    if (!has_.contains(std::string(kModelMeta))) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const std::string text,
                             ReadAll(storage_, std::string(kModelMeta), kMaxJsonBytes));
    absl::StatusOr<PaddleModelMeta> meta = ParsePaddleModelMeta(text);
    if (!meta.ok()) return Damaged(storage_, kModelMeta, meta.status().message());
    meta_ = *std::move(meta);
    if (!meta_.degrees || *meta_.degrees == files_.degrees) return absl::OkStatus();
    const auto shown = [](const PaddleDegrees& degrees) {
      return absl::StrCat("tp ", degrees.tensor, ", pp ", degrees.pipeline, ", sharding ",
                          degrees.sharding);
    };
    return Damaged(storage_, kModelMeta,
                   absl::StrCat("parallel_config: ", shown(*meta_.degrees),
                                ", the names of the files say ", shown(files_.degrees)));
  }

  absl::Status ReadFiles(const std::vector<PaddleRankFile>& files,
                         std::vector<OpenedFile>& opened) {
    for (const PaddleRankFile& file : files) {
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open, storage_.Open(file.name));
      file_bytes_ += open->size_bytes();
      TESSERA_ASSIGN_OR_RETURN(PaddleStateFile contents,
                               At(storage_, file.name, ReadPaddleStateFile(*open)));
      tensor_count_ +=
          static_cast<int64_t>(contents.arrays.size() + contents.master_weights.size());
      storage_.Add(file.name, std::move(contents.decoded));
      opened.push_back({&file, std::move(contents)});
    }
    return absl::OkStatus();
  }

  absl::Status ReadConfig() {
    if (!has_.contains(std::string(kConfig))) {
      return absl::InvalidArgumentError(
          absl::StrCat(storage_.Describe(""), ": no ", View(kConfig),
                       ", which describes the model: copy the one that was trained here"));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string text,
                             ReadAll(storage_, std::string(kConfig), kMaxJsonBytes));
    TESSERA_ASSIGN_OR_RETURN(
        model_,
        At(storage_, kConfig, ForeignModel::Read(kPaddle, text, tensor_count_, file_bytes_)));
    return absl::OkStatus();
  }

  // Returns an index into the model's parameters.
  std::optional<size_t> FindParameter(std::string_view name) {
    const ForeignParameter* const found = model_->Find(CanonicalName(name));
    if (found == nullptr) return std::nullopt;
    return found - model_->parameters().data();
  }
  const ForeignParameter& ParameterAt(size_t index) const { return model_->parameters()[index]; }

  TensorParallelShare ShareOf(const PaddleRankFile& file) const {
    return {file.tensor, files_.degrees.tensor};
  }

  absl::Status AddWeights(ForeignTensorSet& set) {
    for (const OpenedFile& model : models_) {
      for (const PaddleArray& array : model.contents.arrays) {
        if (HasChunk(array.key))
          chunks_.insert({model.file->pipeline, array.key.substr(0, array.key.find('.'))});
        const std::optional<size_t> parameter = FindParameter(array.key);
        if (!parameter) {
          left_out_.insert(array.key);
          continue;
        }
        AddName(*model.file, array.tensor_name, *parameter);
        const PaddleTarget target = {
            .parameter = &ParameterAt(*parameter), .share = ShareOf(*model.file), .kind = {}};
        TESSERA_RETURN_IF_ERROR(AddPaddleState(target, {{model.file, &array}}, storage_, set));
        local_shapes_.emplace(std::tuple(model.file->tensor, model.file->pipeline, *parameter),
                              array.shape);
      }
    }
    for (const auto& [ranks, meta] : meta_.ranks) {
      TESSERA_RETURN_IF_ERROR(AddMeta(ranks, meta));
    }
    return absl::OkStatus();
  }

  void AddName(const PaddleRankFile& file, const std::string& tensor_name, size_t parameter) {
    if (tensor_name.empty()) return;
    const auto [at, is_new] = names_[RanksOf(file)].emplace(tensor_name, parameter);
    // Files that were made from others may have names that stand for nothing.
    if (!is_new && at->second != parameter) repeated_names_[RanksOf(file)].insert(tensor_name);
  }

  // Adds the metadata's names and shapes.
  absl::Status AddMeta(const Ranks& ranks, const PaddleShardingMeta& meta) {
    for (const auto& [tensor_name, structured] : meta.structured_names) {
      const std::optional<size_t> parameter = FindParameter(structured);
      if (!parameter) continue;
      const auto [at, is_new] = names_[ranks].emplace(tensor_name, *parameter);
      repeated_names_[ranks].erase(tensor_name);
      if (!is_new && at->second != *parameter) {
        return Damaged(
            storage_, kModelMeta,
            absl::StrCat("structure_name_mapping: ", tensor_name, " is ", structured,
                         ", there or in the model's file it is ", ParameterAt(at->second).name));
      }
    }
    for (const auto& [structured, shape] : meta.shapes) {
      const std::optional<size_t> parameter = FindParameter(structured);
      if (!parameter) continue;
      const auto [at, is_new] =
          local_shapes_.emplace(std::tuple(ranks.first, ranks.second, *parameter), shape);
      if (!is_new && at->second != shape) {
        return Damaged(storage_, kModelMeta,
                       absl::StrCat("param_meta: ", structured, ": shape ", ShapeToString(shape),
                                    ", in the model's file ", ShapeToString(at->second)));
      }
    }
    return absl::OkStatus();
  }

  // Returns the parameter of a tensor in the optimizer's file of a rank; nullopt if the model has
  // no such parameter.
  absl::StatusOr<std::optional<size_t>> ParameterOf(const PaddleRankFile& file,
                                                    const std::string& tensor_name) {
    const auto& known = names_[RanksOf(file)];
    const auto found = known.find(tensor_name);
    if (found != known.end() && !repeated_names_[RanksOf(file)].contains(tensor_name)) {
      return found->second;
    }
    TESSERA_ASSIGN_OR_RETURN(const std::optional<size_t> given, GivenParameter(file, tensor_name));
    if (given) return given;
    if (const std::optional<size_t> parameter = FindParameter(tensor_name)) return parameter;
    const auto meta = meta_.ranks.find(RanksOf(file));
    if (meta != meta_.ranks.end() && meta->second.structured_names.contains(tensor_name)) {
      left_out_.insert(meta->second.structured_names.find(tensor_name)->second);
      return std::nullopt;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        storage_.Describe(file.name), ": nothing tells which parameter ", tensor_name,
        " is; structure_name_mapping in model_meta.json, names of tensors in the model's files, ",
        "or --parameter-to-structured-name, would settle it"));
  }

  // Looks the parameter up in the caller's map, in which a rank's own names come first.
  // InvalidArgument for a name that no parameter has.
  absl::StatusOr<std::optional<size_t>> GivenParameter(const PaddleRankFile& file,
                                                       const std::string& tensor_name) {
    auto given = given_names_.find(
        absl::StrCat(PaddleRankKey(file.tensor, file.pipeline), "/", tensor_name));
    if (given == given_names_.end()) given = given_names_.find(tensor_name);
    if (given == given_names_.end()) return std::nullopt;
    const std::optional<size_t> parameter = FindParameter(given->second);
    if (parameter) return parameter;
    return absl::InvalidArgumentError(
        absl::StrCat(storage_.Describe(file.name), ": ", tensor_name, " was said to be ",
                     given->second, ", which is no parameter of the model in ", View(kConfig)));
  }

  // States may be named after the tensor of a master weight, which is kept under its parameter's
  // name.
  absl::Status AddNamesOfMasterWeights(const OpenedFile& optimizer) {
    for (const PaddleArray& array : optimizer.contents.master_weights) {
      const std::string name = ParsePaddleMasterKey(array.key).tensor_name;
      if (array.tensor_name.empty() || array.tensor_name == name) continue;
      TESSERA_ASSIGN_OR_RETURN(const std::optional<size_t> parameter,
                               ParameterOf(*optimizer.file, name));
      if (parameter) AddName(*optimizer.file, array.tensor_name, *parameter);
    }
    return absl::OkStatus();
  }

  absl::Status CollectStates() {
    for (const OpenedFile& optimizer : optimizers_) {
      TESSERA_RETURN_IF_ERROR(AddNamesOfMasterWeights(optimizer));
      for (const PaddleArray& array : optimizer.contents.arrays) {
        const std::optional<PaddleStateKey> key = ParsePaddleStateKey(array.key);
        if (!key) {
          left_out_.insert(array.key);
          continue;
        }
        TESSERA_RETURN_IF_ERROR(CollectState(*optimizer.file, *key, array));
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
    TESSERA_ASSIGN_OR_RETURN(const std::optional<size_t> parameter,
                             ParameterOf(file, key.tensor_name));
    if (!parameter) return absl::OkStatus();
    is_sliced_ = is_sliced_ || key.sliced;
    if (!KindOf(key.state)) return CheckPower(file, array, key.state);
    TESSERA_RETURN_IF_ERROR(CheckOwner(file, key, array));
    tensor_names_.emplace(*parameter, key.tensor_name);
    states_[{file.tensor, file.pipeline, *parameter, key.state}].push_back({&file, &array});
    return absl::OkStatus();
  }

  // A whole state is on the rank that the metadata says.
  absl::Status CheckOwner(const PaddleRankFile& file, const PaddleStateKey& key,
                          const PaddleArray& array) const {
    const auto meta = meta_.ranks.find(RanksOf(file));
    if (meta == meta_.ranks.end()) return absl::OkStatus();
    const auto owner = meta->second.owners.find(key.tensor_name);
    if (owner == meta->second.owners.end() || owner->second == file.shard) {
      return absl::OkStatus();
    }
    return Damaged(storage_, file.name,
                   absl::StrCat(array.key, ": model_meta.json says that sharding rank ",
                                owner->second, " has it"));
  }

  // beta^(updates + 1), which must be the same for all parameters.
  absl::Status CheckPower(const PaddleRankFile& file, const PaddleArray& array, PaddleState state) {
    if (array.dtype != DType::kF32 || ElementCount(array.shape) != 1) {
      return Damaged(
          storage_, file.name,
          absl::StrCat(array.key, ": expected one F32, found ", ShapeToString(array.shape)));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open, storage_.Open(file.name));
    float power = 0;
    TESSERA_RETURN_IF_ERROR(
        open->ReadAt(array.parts[0].offset_bytes, std::as_writable_bytes(std::span(&power, 1))));
    const auto [at, is_new] = powers_.emplace(state, Power{power, file.name, array.key});
    if (is_new || std::memcmp(&at->second.value, &power, sizeof(power)) == 0) {
      return absl::OkStatus();
    }
    return Damaged(
        storage_, file.name,
        absl::StrCat(array.key, " is ", power, ", ", at->second.key, " in ", at->second.file,
                     " is ", at->second.value, ": parameters with different numbers of updates"));
  }

  absl::Status CheckStrategy(const PaddleStored& stored, bool is_flat) const {
    const auto meta = meta_.ranks.find(RanksOf(*stored.file));
    if (meta == meta_.ranks.end() || meta->second.strategy.empty()) return absl::OkStatus();
    if (is_flat == (meta->second.strategy == "ShardingV2")) return absl::OkStatus();
    return Damaged(
        storage_, stored.file->name,
        absl::StrCat(stored.array->key, is_flat ? " is a flat slice" : " is whole",
                     ", but model_meta.json's sharding_strategy is ", meta->second.strategy));
  }

  // Checks that flat slices of states have equally many elements on all sharding ranks, padding
  // included.
  absl::Status CheckSlices() const {
    std::map<std::tuple<int64_t, int64_t, PaddleState>, std::map<int64_t, int64_t>> elements;
    std::set<std::tuple<int64_t, int64_t, PaddleState>> flat;
    for (const auto& [key, stored] : states_) {
      const auto& [tensor, pipeline, parameter, state] = key;
      for (const PaddleStored& one : stored) {
        const std::tuple group(tensor, pipeline, state);
        elements[group][one.file->shard] += ElementCount(one.array->shape);
        if (ParameterAt(parameter).shape.size() < 2) continue;
        const bool is_flat = one.array->shape.size() == 1;
        TESSERA_RETURN_IF_ERROR(CheckStrategy(one, is_flat));
        if (is_flat) flat.insert(group);
      }
    }
    for (const auto& group : flat) {
      const std::map<int64_t, int64_t>& by_shard = elements[group];
      for (int64_t shard = 0; shard < files_.degrees.sharding; ++shard) {
        const auto found = by_shard.find(shard);
        const int64_t count = found == by_shard.end() ? 0 : found->second;
        if (count == by_shard.begin()->second) continue;
        return absl::DataLossError(absl::StrCat(
            storage_.Describe(""), ": tp ", std::get<0>(group), ", pp ", std::get<1>(group), ": ",
            View(PaddleStateName(std::get<2>(group))), ": sharding rank ", shard, " has ", count,
            " elements in slices, rank ", by_shard.begin()->first, " has ",
            by_shard.begin()->second, ": a slice is missing"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddState(const StateKey& key, const std::vector<PaddleStored>& stored,
                        ForeignTensorSet& set) {
    const auto& [tensor, pipeline, parameter, state] = key;
    PaddleTarget target = {.parameter = &ParameterAt(parameter),
                           .share = {tensor, files_.degrees.tensor},
                           .kind = *KindOf(state)};
    const auto shape = local_shapes_.find(std::tuple(tensor, pipeline, parameter));
    if (shape != local_shapes_.end()) target.local_shape = shape->second;
    return AddPaddleState(target, stored, storage_, set);
  }

  // Checks that a kind of state that some parameters have exists for all of them.
  absl::Status CheckComplete(const std::vector<ForeignTensor>& tensors) const {
    std::map<std::string, const ForeignTensor*> found;
    for (const ForeignTensor& tensor : tensors) found[tensor.name] = &tensor;
    const auto has = [&](const LogicalParameter& parameter, std::string_view state) {
      return found.contains(absl::StrCat(parameter.name, ".", View(state)));
    };
    for (const std::string_view state : {"exp_avg", "exp_avg_sq"}) {
      std::vector<std::string> missing;
      for (const LogicalParameter& parameter : model_->description().parameters) {
        if (!has(parameter, state)) missing.push_back(parameter.name);
      }
      if (missing.empty() || missing.size() == model_->description().parameters.size()) continue;
      return absl::DataLossError(absl::StrCat(storage_.Describe(""), ": the optimizer's ",
                                              "files have no ", View(state), " of ",
                                              JoinFirst(missing, ", ")));
    }
    std::vector<std::string> missing;
    for (const LogicalParameter& parameter : model_->description().parameters) {
      if (!found.contains(parameter.name) && !has(parameter, "master")) {
        missing.push_back(parameter.name);
      }
    }
    if (missing.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(storage_.Describe(""),
                                            ": neither the weight nor the master weight of ",
                                            JoinFirst(missing, ", ")));
  }

  // Returns the scheduler's number of steps, on which all files and the trainer's state must agree.
  absl::StatusOr<std::optional<int64_t>> ReadStep() {
    std::optional<int64_t> step;
    std::string from;
    const auto agree = [&](std::optional<int64_t> found, const std::string& file) {
      if (!found || *found < 0) return absl::OkStatus();
      if (step && *step != *found) {
        return Damaged(storage_, file, absl::StrCat("step ", *found, ", ", from, " says ", *step));
      }
      step = found;
      from = file;
      return absl::OkStatus();
    };
    for (const OpenedFile& optimizer : optimizers_) {
      TESSERA_RETURN_IF_ERROR(agree(optimizer.contents.last_epoch, optimizer.file->name));
    }
    if (has_.contains(std::string(kSchedulerFile))) {
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open,
                               storage_.Open(std::string(kSchedulerFile)));
      const absl::StatusOr<PaddleStateFile> scheduler = ReadPaddleStateFile(*open);
      if (!scheduler.ok()) return Damaged(storage_, kSchedulerFile, scheduler.status().message());
      TESSERA_RETURN_IF_ERROR(agree(scheduler->last_epoch, std::string(kSchedulerFile)));
    }
    if (has_.contains(std::string(kTrainerState))) {
      TESSERA_ASSIGN_OR_RETURN(const std::string text,
                               ReadAll(storage_, std::string(kTrainerState), kMaxJsonBytes));
      const nlohmann::json json = ParseJson(text);
      if (!json.is_object()) return Damaged(storage_, kTrainerState, "not a JSON object");
      const auto member = json.find("global_step");
      if (member != json.end() && member->is_number_integer()) {
        TESSERA_RETURN_IF_ERROR(agree(member->get<int64_t>(), std::string(kTrainerState)));
      }
    }
    return step;
  }

  absl::Status Describe(const ForeignTensorSet& set, ForeignCheckpoint& checkpoint) {
    Manifest& manifest = checkpoint.description;
    manifest.mutable_producer()->set_program("PaddleNLP");
    *manifest.mutable_model() = model_->description().config;
    // Auto parallel places each tensor on its own.
    if (metadata_file_.empty()) SetRanks(manifest);
    TESSERA_ASSIGN_OR_RETURN(const std::optional<int64_t> step, ReadStep());
    if (step) {
      SetProgress(*step, std::nullopt, manifest);
    } else {
      checkpoint.notes.emplace_back("No file tells the step.");
    }
    if (!set.has_states()) {
      checkpoint.notes.emplace_back("There is no optimizer state.");
      return absl::OkStatus();
    }
    OptimizerState& optimizer = *manifest.mutable_optimizer();
    set.DescribeOptimizer(kPaddle, optimizer);
    if (step) AddBetas(*step, optimizer);
    AddTensorNames(optimizer);
    return absl::OkStatus();
  }

  void SetRanks(Manifest& manifest) const {
    SetTopology({.data = files_.degrees.sharding,
                 .tensor = files_.degrees.tensor,
                 .pipeline = files_.degrees.pipeline,
                 .virtual_pipeline = VirtualPipeline(),
                 .zero_stage = files_.degrees.sharding == 1 ? 0u
                               : is_sliced_                 ? 3
                                                            : 1},
                manifest);
  }

  int64_t VirtualPipeline() const {
    std::map<int64_t, int64_t> chunks;  // by pipeline rank
    for (const auto& [pipeline, chunk] : chunks_) ++chunks[pipeline];
    int64_t most = meta_.virtual_pipeline;
    for (const auto& [pipeline, count] : chunks) most = std::max(most, count);
    return most;
  }

  // Computes the betas from their powers, which begin with beta itself before the first update.
  void AddBetas(int64_t step, OptimizerState& optimizer) const {
    for (const auto& [state, name] :
         {std::pair(PaddleState::kBeta1Power, "beta1"), {PaddleState::kBeta2Power, "beta2"}}) {
      const auto power = powers_.find(state);
      if (power == powers_.end()) continue;
      const double value = power->second.value;
      // Subnormal powers have too few digits, and 0 has none.
      if (!(value > 1e-30 && value < 1)) continue;
      const double beta = std::exp(std::log(value) / static_cast<double>(step + 1));
      for (ParameterGroup& group : *optimizer.mutable_groups()) {
        (*group.mutable_options())[name] = beta;
      }
    }
  }

  // Adds the optimizer's names beside the structured ones.
  void AddTensorNames(OptimizerState& optimizer) const {
    std::map<std::string, std::string> by_logical_name;
    for (const auto& [parameter, name] : tensor_names_) {
      for (const ForeignBlock& block : ParameterAt(parameter).blocks) {
        by_logical_name[block.name] = name;
      }
    }
    for (OptimizerParameter& parameter : *optimizer.mutable_parameters()) {
      const auto name = by_logical_name.find(parameter.parameter());
      if (name == by_logical_name.end()) continue;
      (*parameter.mutable_foreign_names())["paddle.tensor"] = name->second;
    }
  }

  void AddNotes(ForeignCheckpoint& checkpoint) const {
    if (left_out_.empty()) return;
    const std::vector<std::string> names(left_out_.begin(), left_out_.end());
    checkpoint.notes.push_back(
        absl::StrCat("Left out, as no parameter of the model: ", JoinFirst(names, ", "), "."));
  }

  struct Power {
    float value = 0;
    std::string file, key;
  };

  DecodedFiles storage_;
  const std::map<std::string, std::string>& given_names_;
  std::set<std::string> has_;  // names of files
  PaddleRankFiles files_;
  PaddleModelMeta meta_;
  std::string metadata_file_;  // of auto parallel; empty: there are files of ranks
  std::vector<PaddleShard> shards_;
  std::vector<OpenedFile> models_, optimizers_;
  uint64_t file_bytes_ = 0;
  int64_t tensor_count_ = 0;
  std::optional<ForeignModel> model_;
  // By tensor's name. Those that two parameters of a rank's model file have tell nothing.
  std::map<Ranks, std::map<std::string, size_t>> names_;
  std::map<Ranks, std::set<std::string>> repeated_names_;
  std::map<std::tuple<int64_t, int64_t, size_t>, Shape> local_shapes_;
  std::map<StateKey, std::vector<PaddleStored>> states_;
  std::map<size_t, std::string> tensor_names_;
  std::map<PaddleState, Power> powers_;
  std::set<std::pair<int64_t, std::string>> chunks_;  // pipeline rank, first layer
  std::set<std::string> left_out_;
  bool is_sliced_ = false;
};

}  // namespace

absl::StatusOr<bool> IsPaddle(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  if (std::ranges::any_of(names, IsPaddleStateName)) return true;
  const absl::StatusOr<std::string> metadata = FindPaddleMetadata(storage);
  return metadata.ok() ? !metadata->empty() : absl::IsDataLoss(metadata.status());
}

absl::StatusOr<ForeignCheckpoint> ReadPaddle(
    Storage& storage, const std::map<std::string, std::string>& structured_names) {
  return PaddleReader(storage, structured_names).Read();
}

}  // namespace tessera::ckpt::convert
