#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/optimizer_groups.h"
#include "convert/core/reading.h"
#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/deepspeed/files.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

// A parameter under DeepSpeed's name.
struct Parameter {
  ForeignParameter foreign;
  bool is_buffer = false;           // in the model's file alone
  bool has_rounded_weight = false;  // beside its fp32 weight
  int64_t found = 0;                // elements of its fp32 weight, in the ranks' files so far
};

// Universal checkpoints that were converted from stage 3 have flat tensors: gives such a one the
// shape of its parameter.
void Unflatten(const Shape& shape, TorchTensor& tensor) {
  if (tensor.shape != Shape{ElementCount(shape)} || tensor.strides != Shape{1}) return;
  tensor.shape = shape;
  tensor.strides = ContiguousStrides(shape);
}

// Reads one folder. Read() determines the parameters' names and shapes and the model first, then
// adds the weights, and then the slices of each rank's optimizer file.
class DeepSpeedReader {
 public:
  DeepSpeedReader(Storage& storage, DeepSpeedFolder folder, bool needs_moments)
      : storage_(storage), folder_(std::move(folder)), needs_moments_(needs_moments) {}

  absl::StatusOr<ForeignCheckpoint> Read() {
    TESSERA_RETURN_IF_ERROR(ReadShapes());
    TESSERA_RETURN_IF_ERROR(MakeModel());
    TESSERA_RETURN_IF_ERROR(AddModule());
    TESSERA_RETURN_IF_ERROR(AddUniversal());
    for (size_t rank = 0; rank < folder_.optimizer_files.size(); ++rank) {
      TESSERA_RETURN_IF_ERROR(AddRank(rank));
    }
    TESSERA_RETURN_IF_ERROR(AddFrozenParts());
    TESSERA_RETURN_IF_ERROR(CheckWeights());
    ForeignCheckpoint checkpoint = CheckpointOf(kDeepSpeed, "deepspeed");
    Manifest& description = checkpoint.description;
    description.mutable_producer()->set_version(states_.version);
    *description.mutable_model() = model_.config;
    std::vector<std::string>& notes = checkpoint.notes;
    NoteLeftOut("tensors of dtypes or kinds that are not read", states_.left_out, notes);
    NoteLeftOut("tensors of the program's own", states_.of_program, notes);
    NoteLeftOut("further names of tied parameters", further_names_, notes);
    NoteLeftOut("copies of tied parameters in the model's file", copies_, notes);
    NoteLeftOut("empty or misshapen tensors of the model's file", unread_, notes);
    NoteLeftOut("moments whose files are missing or damaged", missing_moments_, notes);
    const int64_t ranks = states_.data_parallel_size.value_or(0);
    if (ranks > 0 && ranks <= std::numeric_limits<uint32_t>::max()) {
      description.mutable_topology()->set_data_parallel(static_cast<uint32_t>(ranks));
    }
    if (states_.steps) SetProgress(*states_.steps, states_.samples, description);
    const size_t count = notes.size();
    set_->DescribeOptimizer(kDeepSpeed, checkpoint);
    if (notes.size() == count && facts_.other_states.empty() && missing_moments_.empty()) {
      description.mutable_optimizer();  // there is one, if without state
    }
    TakeFacts(facts_, checkpoint);
    checkpoint.tensors = std::move(*set_).Finish();
    return checkpoint;
  }

 private:
  // Reads the parameters' names and shapes, and the model.
  absl::Status ReadShapes() {
    if (!folder_.model_files.empty()) {
      TESSERA_ASSIGN_OR_RETURN(states_,
                               ReadDeepSpeedModelStates(storage_, folder_.model_files.front()));
    }
    if (!folder_.parameters.empty()) return ReadUniversalShapes();
    if (folder_.model_files.empty()) {
      return NotFound(storage_.Describe(folder_.optimizer_files.front()),
                      ": the model's file beside it is missing");
    }
    for (const NamedShapes& group : states_.groups) {
      shapes_.insert(shapes_.end(), group.begin(), group.end());
    }
    if (!shapes_.empty()) return absl::OkStatus();
    return Damaged(storage_, folder_.model_files.front(), "param_shapes names no parameter");
  }

  absl::Status ReadUniversalShapes() {
    std::map<std::string, Shape> whole;
    for (const NamedShapes& group : states_.groups) whole.insert(group.begin(), group.end());
    for (const std::string& name : folder_.parameters) {
      const std::string path = PathOf(name, "fp32");
      TESSERA_ASSIGN_OR_RETURN(std::optional<TorchTensor> tensor, ReadUniversalFile(path));
      if (!tensor) return NotFound(storage_.Describe(path), " is missing");
      if (const auto shape = whole.find(name); shape != whole.end()) {
        Unflatten(shape->second, *tensor);
      }
      universal_[name] = *tensor;
      shapes_.emplace_back(name, tensor->shape);
    }
    for (const auto& [name, unused] : whole) {
      if (!universal_.contains(name)) {
        return NotFound(storage_.Describe(PathOf(name, "fp32")), " is missing");
      }
    }
    return absl::OkStatus();
  }

  absl::Status MakeModel() {
    for (const auto& [name, shape] : states_.frozen) {
      if (!universal_.contains(name)) shapes_.emplace_back(name, shape);
    }
    const std::set<std::string> buffers = FindBuffers();
    // A universal checkpoint may have them under their second names, too, with rounded values.
    std::erase_if(shapes_, [&](const auto& named) {
      return std::ranges::any_of(states_.shared, [&](const auto& names) {
        return names.first == named.first && universal_.contains(names.second);
      });
    });
    for (const auto& [name, shape] : shapes_) {
      ForeignParameter foreign = SameTensor(name, name, shape);
      if (!parameters_.emplace(name, Parameter{.foreign = std::move(foreign)}).second) {
        return DataLoss("parameter ", name, " occurs twice");
      }
    }
    for (const std::string& name : buffers) parameters_[name].is_buffer = true;
    if (!folder_.config.empty()) {
      TESSERA_RETURN_IF_ERROR(ReadConfig());
    } else {
      DescribeFiles();
    }
    std::set<std::string> files(folder_.model_files.begin(), folder_.model_files.end());
    files.insert(folder_.optimizer_files.begin(), folder_.optimizer_files.end());
    for (const std::string& name : folder_.parameters) files.insert(PathOf(name, "fp32"));
    TESSERA_ASSIGN_OR_RETURN(const uint64_t file_bytes, FileBytes(storage_, files));
    TESSERA_RETURN_IF_ERROR(CheckModelFits(model_, file_bytes));
    set_.emplace(model_);
    return absl::OkStatus();
  }

  // Finds the tensors of the state dict that are neither parameters nor second names of some, such
  // as running means of a norm, and adds them to shapes_. Releases that do not list second names
  // have them in the same place as the first ones.
  std::set<std::string> FindBuffers() {
    std::map<std::string, Shape> known(shapes_.begin(), shapes_.end());
    std::map<std::pair<uint64_t, DType>, std::string> places;  // of parameters
    for (const auto& [name, tensor] : states_.module) {
      if (known.contains(name) && ElementCount(tensor.shape) > 0)
        places.emplace(std::pair(tensor.offset_bytes, tensor.dtype), name);
    }
    for (const auto& [second, first] : states_.shared) known.emplace(second, Shape());
    std::set<std::string> buffers;
    for (const auto& [name, tensor] : states_.module) {
      // Stage 3 has empty tensors in place of those that it has cut, whether or not it saves them.
      const bool is_cut = ElementCount(tensor.shape) == 0;
      if (is_cut && !known.contains(name)) unread_.push_back(name);
      if (is_cut || known.contains(name)) continue;
      const auto first = places.find({tensor.offset_bytes, tensor.dtype});
      if (first != places.end() && tensor.shape == states_.module.at(first->second).shape) {
        states_.shared.emplace_back(name, first->second);
        continue;
      }
      shapes_.emplace_back(name, tensor.shape);
      buffers.insert(name);
    }
    return buffers;
  }

  // Describes the parameters by the files' own names.
  void DescribeFiles() {
    std::map<std::string, std::string> second_names;
    for (const auto& [second, first] : states_.shared) {
      if (!second_names.emplace(first, second).second) further_names_.push_back(second);
    }
    for (const auto& [name, shape] : shapes_) {
      const auto second = second_names.find(name);
      model_.parameters.push_back(
          {.name = name,
           .shape = shape,
           .tied_name = second == second_names.end() ? "" : second->second});
    }
  }

  absl::Status ReadConfig() {
    TESSERA_ASSIGN_OR_RETURN(const std::string config,
                             ReadAll(storage_, folder_.config, kMaxJsonBytes));
    TESSERA_ASSIGN_OR_RETURN(
        const HuggingFaceDescription description,
        At(storage_, folder_.config,
           ReadHuggingFaceConfig(config, static_cast<int64_t>(shapes_.size()))));
    model_ = description.model;
    return MatchModel(description);
  }

  absl::Status MatchModel(const HuggingFaceDescription& description) {
    std::map<std::string, const Shape*> shapes;
    for (const auto& [name, shape] : shapes_) shapes[name] = &shape;
    std::vector<std::string> problems;
    const auto take = [&](const std::string& name, const LogicalParameter& parameter) {
      const auto found = shapes.find(name);
      if (found == shapes.end()) return false;
      if (*found->second != parameter.shape) {
        problems.push_back(absl::StrCat("parameter ", name, " has shape ",
                                        ShapeToString(*found->second), ", expected ",
                                        ShapeToString(parameter.shape)));
      }
      parameters_[name].foreign.blocks.front().name = parameter.name;
      shapes.erase(found);
      return true;
    };
    const std::string prefix(description.format->prefix);
    for (const LogicalParameter& parameter : description.model.parameters) {
      const bool is_prefixed = !prefix.empty() && parameter.name.starts_with(prefix);
      if (!take(parameter.name, parameter) &&
          !(is_prefixed && take(parameter.name.substr(prefix.size()), parameter)) &&
          !(!parameter.tied_name.empty() && take(parameter.tied_name, parameter))) {
        problems.push_back(absl::StrCat("parameter ", parameter.name, " is missing"));
      }
    }
    for (const auto& entry : shapes) {
      const std::string& name = entry.first;
      const bool is_copy =
          parameters_.at(name).is_buffer &&
          std::ranges::count(description.model.parameters, name, &LogicalParameter::tied_name) > 0;
      if (is_copy) copies_.push_back(name);
      if (is_copy || description.IsComputed(name)) {
        parameters_.erase(name);
      } else {
        problems.push_back(absl::StrCat("parameter ", name, " is not the model's"));
      }
    }
    if (problems.empty()) return absl::OkStatus();
    return Damaged(storage_, folder_.config, JoinFirst(problems, "; "));
  }

  // Returns the file of a state in a universal checkpoint.
  std::string PathOf(const std::string& parameter, const std::string& state) const {
    return JoinPath(JoinPath(folder_.parameters_folder, parameter), state + ".pt");
  }

  ForeignKind KindOfFp32(const Parameter& parameter) const {
    return parameter.has_rounded_weight ? kForeignMaster : kForeignWeight;
  }

  // Rounded weights, and weights that are not trained.
  absl::Status AddModule() {
    if (folder_.model_files.empty()) return absl::OkStatus();
    const std::string& file = folder_.model_files.front();
    std::set<std::string> frozen;
    for (const auto& [name, unused] : states_.frozen) frozen.insert(name);
    for (auto& [name, parameter] : parameters_) {
      // Stage 3 has empty tensors in place of those that it has cut.
      const auto found = states_.module.find(name);
      if (found == states_.module.end() || ElementCount(found->second.shape) == 0) continue;
      if (found->second.shape != parameter.foreign.shape) {
        unread_.push_back(name);
        continue;
      }
      const bool is_frozen =
          parameter.is_buffer || (frozen.contains(name) && !universal_.contains(name));
      if (!is_frozen && found->second.dtype == DType::kF32) continue;
      if (is_frozen) parameter.found = ElementCount(parameter.foreign.shape);
      parameter.has_rounded_weight = !is_frozen;
      TESSERA_RETURN_IF_ERROR(
          set_->AddWhole(parameter.foreign, {}, kForeignWeight, file, found->second));
    }
    return absl::OkStatus();
  }

  absl::Status AddRank(size_t rank) {
    const std::string& file = folder_.optimizer_files[rank];
    TESSERA_ASSIGN_OR_RETURN(const ZeroShard shard, ReadZeroShard(storage_, file));
    TESSERA_RETURN_IF_ERROR(AddOptimizerFacts(storage_, file, facts_));
    if (shard.ranks != static_cast<int64_t>(folder_.optimizer_files.size())) {
      return Damaged(storage_, file, "the state was cut among ", shard.ranks, " ranks, but ",
                     folder_.optimizer_files.size(), " have files");
    }
    if (shard.cuts_parameters && shard.groups.size() != states_.groups.size()) {
      return Damaged(storage_, file, shard.groups.size(), " groups of fp32 weights, ",
                     states_.groups.size(), " of param_shapes");
    }
    for (size_t i = 0; i < shard.groups.size(); ++i) {
      const ZeroGroup& group = shard.groups[i];
      TESSERA_RETURN_IF_ERROR(
          shard.cuts_parameters
              ? AddEqualParts(file, group, states_.groups[i], rank, folder_.optimizer_files.size())
              : AddSlices(file, group));
    }
    return absl::OkStatus();
  }

  // Adds a rank's slices of a group, which stages 1 and 2 flatten and cut into one range for each
  // rank. The parts of a parameter are in the order of the ranks.
  absl::Status AddSlices(const std::string& file, const ZeroGroup& group) {
    for (const ZeroSlice& slice : group.slices) {
      TESSERA_ASSIGN_OR_RETURN(Parameter* const parameter, Find(slice.name, file));
      TESSERA_RETURN_IF_ERROR(
          AddRange(file, group, *parameter, parameter->found, slice.count, slice.start));
    }
    return absl::OkStatus();
  }

  // Stage 3 cuts every parameter into equal parts, of which the last ones may be padded.
  absl::Status AddEqualParts(const std::string& file, const ZeroGroup& group,
                             const NamedShapes& shapes, size_t rank, size_t rank_count) {
    const auto ranks = static_cast<int64_t>(rank_count);
    const Shape& flat = group.vectors.front().second.shape;
    if (flat.size() != 1) return Damaged(storage_, file, "a part of a parameter is not a vector");
    int64_t start = 0;
    for (const auto& [name, shape] : shapes) {
      TESSERA_ASSIGN_OR_RETURN(Parameter* const parameter, Find(name, file));
      const int64_t count = ElementCount(shape);
      const int64_t part = (count + ranks - 1) / ranks;
      const int64_t begin = std::min(count, static_cast<int64_t>(rank) * part);
      TESSERA_RETURN_IF_ERROR(
          AddRange(file, group, *parameter, begin, std::min(count - begin, part), start));
      start += part;
    }
    if (start == flat[0]) return absl::OkStatus();
    return Damaged(storage_, file, "a group has ", flat[0], " elements, its parameters have ",
                   start, " on each of ", ranks, " ranks");
  }

  // `count` elements of a parameter from `begin` on, which are from `start` on in the flat state.
  absl::Status AddRange(const std::string& file, const ZeroGroup& group, Parameter& parameter,
                        int64_t begin, int64_t count, int64_t start) {
    for (const auto& [kind, tensor] : group.vectors) {
      const int64_t elements = tensor.shape[0];
      if (start < 0 || count < 0 || start > elements || count > elements - start) {
        return Damaged(storage_, file, "parameter ", parameter.foreign.name, ": ", count,
                       " elements at ", start, " of ", elements);
      }
      const ForeignPlace place = {file, tensor.offset_bytes, tensor.dtype};
      const bool is_fp32 = kind.role != TensorRole::kOptimizerState;
      TESSERA_RETURN_IF_ERROR(set_->AddRange(parameter.foreign, {},
                                             is_fp32 ? KindOfFp32(parameter) : kind, begin,
                                             begin + count, place.After(start)));
    }
    parameter.found += count;
    return absl::OkStatus();
  }

  // Stage 3 cuts parameters that are not trained like the others. In a universal checkpoint the
  // files of the ranks' models are the only ones of ranks.
  absl::Status AddFrozenParts() {
    NamedShapes frozen;
    for (const auto& [name, shape] : states_.frozen) {
      const auto parameter = parameters_.find(name);
      if (parameter != parameters_.end() && parameter->second.found == 0) {
        frozen.emplace_back(name, shape);
      }
    }
    for (size_t rank = 0; !frozen.empty() && rank < folder_.model_files.size(); ++rank) {
      const std::string& file = folder_.model_files[rank];
      TESSERA_ASSIGN_OR_RETURN(const DeepSpeedModelStates states,
                               ReadDeepSpeedModelStates(storage_, file));
      for (const auto& [name, shape] : frozen) {
        const auto fragment = states.frozen_fragments.find(name);
        if (fragment == states.frozen_fragments.end()) {
          return Damaged(storage_, file, "parameter ", name, " is not in frozen_param_fragments");
        }
        const ZeroGroup alone = {.vectors = {{kForeignWeight, fragment->second}}};
        TESSERA_RETURN_IF_ERROR(
            AddEqualParts(file, alone, {{name, shape}}, rank, folder_.model_files.size()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddUniversal() {
    if (universal_.empty()) return absl::OkStatus();
    const std::string known[] = {"fp32.pt", "exp_avg.pt", "exp_avg_sq.pt", "step.pt"};
    for (const auto& [name, tensor] : universal_) {
      const auto parameter = parameters_.find(name);
      if (parameter == parameters_.end()) continue;
      const ForeignParameter& own = parameter->second.foreign;
      TESSERA_RETURN_IF_ERROR(
          set_->AddWhole(own, {}, KindOfFp32(parameter->second), PathOf(name, "fp32"), tensor));
      std::vector<std::pair<ForeignKind, TorchTensor>> moments;
      std::vector<std::string> missing;
      bool is_damaged = false;
      for (const ForeignKind& moment : {kForeignExpAvg, kForeignExpAvgSq}) {
        const std::string path = PathOf(name, moment.state);
        absl::StatusOr<std::optional<TorchTensor>> found = ReadUniversalFile(path);
        if (!needs_moments_ && absl::IsDataLoss(found.status())) {
          is_damaged = true;
          found.emplace();
        }
        TESSERA_RETURN_IF_ERROR(found.status());
        if (!found->has_value()) missing.push_back(path);
        if (found->has_value()) moments.emplace_back(moment, **std::move(found));
      }
      // Parameters that are not trained have neither.
      if (is_damaged || moments.size() == 1) {
        missing_moments_.insert(missing_moments_.end(), missing.begin(), missing.end());
      }
      if (!missing.empty()) moments.clear();
      for (auto& [moment, tensor] : moments) {
        Unflatten(own.shape, tensor);
        TESSERA_RETURN_IF_ERROR(
            set_->AddWhole(own, {}, moment, PathOf(name, moment.state), tensor));
      }
      TESSERA_RETURN_IF_ERROR(AddFacts(PathOf(name, "step")));
      TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                               storage_.List(JoinPath(folder_.parameters_folder, name)));
      for (const std::string& file : files) {
        if (!Has(known, file)) facts_.other_states.insert(file);
      }
    }
    return AddFacts(JoinPath(folder_.parameters_folder, "optimizer_state.pt"));
  }

  absl::Status CheckWeights() const {
    const bool has_ranks = !folder_.optimizer_files.empty();  // else rounded weights are enough
    std::vector<std::string> missing;
    for (const auto& [name, parameter] : parameters_) {
      if (parameter.found == 0 && (has_ranks || !parameter.has_rounded_weight) &&
          !universal_.contains(name) && ElementCount(parameter.foreign.shape) > 0) {
        missing.push_back(KindOfFp32(parameter).NameOf(name));
      }
    }
    if (missing.empty()) return absl::OkStatus();
    return Damaged(storage_, "", "no file has ", JoinShown(missing));
  }

  absl::Status AddFacts(const std::string& path) {
    const absl::Status added = AddOptimizerFacts(storage_, path, facts_);
    return absl::IsDataLoss(added) && !needs_moments_ ? absl::OkStatus() : added;
  }

  // Returns the tensor of a file; nullopt if there is no such file.
  absl::StatusOr<std::optional<TorchTensor>> ReadUniversalFile(const std::string& path) {
    TESSERA_ASSIGN_OR_RETURN(const auto archive, IfPresent(ReadTorchFile(storage_, path)));
    if (!archive) return std::nullopt;
    const Value root = archive->contents.root();
    const Value value = root.Find("param").present() ? root.Find("param") : root;
    if (!IsTorchTensor(value)) return Damaged(storage_, path, "no tensor \"param\"");
    return At(storage_, path, ResolveTorchTensor(*archive, value));
  }

  absl::StatusOr<Parameter*> Find(const std::string& name, const std::string& file) {
    const auto found = parameters_.find(name);
    if (found != parameters_.end()) return &found->second;
    return Damaged(storage_, file, "parameter ", Shown(name),
                   " is not in param_shapes of the model's file");
  }

  Storage& storage_;
  const DeepSpeedFolder folder_;
  const bool needs_moments_;
  DeepSpeedModelStates states_;
  std::map<std::string, TorchTensor> universal_;  // fp32 weights, by name
  std::vector<std::pair<std::string, Shape>> shapes_;
  std::map<std::string, Parameter> parameters_;
  ModelDescription model_;
  std::optional<ForeignTensorSet> set_;
  // What notes list.
  std::vector<std::string> further_names_, copies_, unread_, missing_moments_;
  OptimizerFacts facts_;
};

}  // namespace

absl::StatusOr<bool> IsDeepSpeed(Storage& storage) {
  const auto found = FindDeepSpeedFolder(storage);
  const absl::Status& status = found.status();
  // What is refused is DeepSpeed's, too.
  if (absl::IsUnimplemented(status) || absl::IsDataLoss(status)) return true;
  TESSERA_RETURN_IF_ERROR(status);
  return found->has_value();
}

absl::StatusOr<ForeignCheckpoint> ReadDeepSpeed(Storage& storage, bool needs_moments) {
  TESSERA_ASSIGN_OR_RETURN(std::optional<DeepSpeedFolder> found, FindDeepSpeedFolder(storage));
  if (found.has_value()) return DeepSpeedReader(storage, *std::move(found), needs_moments).Read();
  return NotFound(storage.Describe(""), ": no checkpoint of DeepSpeed");
}

}  // namespace tessera::ckpt::convert
