#include "convert/formats/deepspeed/files.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/rank_grid.h"
#include "convert/core/reading.h"
#include "convert/pickle/value.h"
#include "storage/checks.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

constexpr uint64_t kMaxTagBytes = 4096;
constexpr std::string_view kParameters = "zero/";
constexpr std::string_view kLatestUniversal = "latest_universal";
constexpr std::string_view kConfig = "config.json";
// Entries of the model's file that have tensors and are DeepSpeed's own.
constexpr std::string_view kOwnEntries[] = {"module", "optimizer", "frozen_param_fragments"};
constexpr int kMaxDepth = 64;

// A name such as "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt".
struct StatesName {
  bool is_optimizer = false;
  std::optional<int64_t> data_rank;
  int64_t model_rank = 0;
};

std::optional<StatesName> ParseName(std::string_view name) {
  static const RankPattern optimizer("zero_pp_rank_{1}_mp_rank_{2}_optim_states.pt");
  static const RankPattern cut_model("zero_pp_rank_{1}_mp_rank_{2}_model_states.pt");
  static const RankPattern model("mp_rank_{2}_model_states.pt");
  if (name.starts_with("bf16_") || name.starts_with("fp16_")) name.remove_prefix(5);
  if (const auto ranks = model.Parse(name)) return StatesName{.model_rank = (*ranks)[0]};
  for (const RankPattern* const pattern : {&optimizer, &cut_model}) {
    if (const auto ranks = pattern->Parse(name)) {
      return StatesName{pattern == &optimizer, (*ranks)[0], (*ranks)[1]};
    }
  }
  return std::nullopt;
}

// Returns the files by rank. Their numbers are bounded (RankPattern).
absl::StatusOr<std::vector<std::string>> ByRank(const std::map<int64_t, std::string>& files) {
  std::vector<std::string> paths, missing;
  for (const auto& [rank, path] : files) {
    for (auto other = static_cast<int64_t>(paths.size() + missing.size()); other < rank; ++other) {
      missing.push_back(absl::StrCat(other));
    }
    paths.push_back(path);
  }
  if (missing.empty()) return paths;
  return DataLoss(
      "beside ", files.rbegin()->second,
      ", the files of these data-parallel ranks are missing: ", JoinFirst(missing, ", "));
}

// Sorts the files of ranks among `names` into `found`.
absl::Status AddRankFiles(const std::string& path, const std::vector<std::string>& names,
                          DeepSpeedFolder& found) {
  std::map<int64_t, std::string> optimizer, model;
  std::string refused;
  for (const std::string& name : names) {
    const std::optional<StatesName> file = ParseName(name);
    if (!file || file->model_rank > 0) {
      if (name.ends_with("_states.pt")) refused = name;  // also "layer_00-model_states.pt"
      continue;
    }
    if (file->is_optimizer && !found.parameters.empty()) continue;
    std::map<int64_t, std::string>& files = file->is_optimizer ? optimizer : model;
    const std::string full = JoinPath(path, name);
    const auto [at, is_new] = files.emplace(file->data_rank.value_or(0), full);
    if (!is_new) return DataLoss(at->second, " and ", full, " are both files of one rank");
  }
  if (!refused.empty() && found.parameters.empty()) {
    return Unimplemented(
        JoinPath(path, refused), " is of a model-parallel rank, a pipeline's layer or an expert: ",
        "such checkpoints are read after DeepSpeed's ds_to_universal has converted them");
  }
  // Parts of tensors, which mean nothing on their own.
  if (!refused.empty()) model.clear();
  TESSERA_ASSIGN_OR_RETURN(found.optimizer_files, ByRank(optimizer));
  TESSERA_ASSIGN_OR_RETURN(found.model_files, ByRank(model));
  return absl::OkStatus();
}

// Finds the checkpoint whose files are directly in this folder.
absl::StatusOr<std::optional<DeepSpeedFolder>> Look(Storage& storage, const std::string& path,
                                                    const std::vector<std::string>& names) {
  DeepSpeedFolder found;
  if (Has(names, kParameters)) {
    found.parameters_folder = JoinPath(path, "zero");
    TESSERA_ASSIGN_OR_RETURN(found.parameters, storage.List(found.parameters_folder));
    std::erase_if(found.parameters, [](const std::string& name) { return !name.ends_with('/'); });
    for (std::string& name : found.parameters) name.pop_back();
  }
  const bool has_shards = std::ranges::any_of(names, [](const std::string& name) {
    const std::optional<StatesName> file = ParseName(name);
    return file && file->is_optimizer;
  });
  const bool has_model = std::ranges::any_of(
      names, [](const std::string& name) { return ParseName(name).has_value(); });
  if (!has_shards && (found.parameters.empty() || !has_model)) return std::nullopt;
  if (Has(names, kConfig)) found.config = JoinPath(path, kConfig);
  TESSERA_RETURN_IF_ERROR(AddRankFiles(path, names, found));
  return found;
}

absl::StatusOr<NamedShapes> ReadShapes(const Value& dict, pickle::Budget& budget) {
  NamedShapes shapes;
  for (const auto& [key, value] : dict.entries()) {
    TESSERA_ASSIGN_OR_RETURN(std::string name, ReadTorchName(key, budget));
    std::optional<std::vector<int64_t>> shape = pickle::DimsOf(value);
    if (!shape || !CheckedByteCount(*shape, sizeof(double)).ok()) {
      return DataLoss("parameter ", Shown(name), ": no shape, or one that is too large");
    }
    shapes.emplace_back(std::move(name), *std::move(shape));
  }
  return shapes;
}

// Adds the names of tensors of other dtypes and kinds than are known here to `left_out`.
absl::StatusOr<NamedTensors> ReadTensors(const TorchArchive& archive, const Value& dict,
                                         pickle::Budget& budget,
                                         std::vector<std::string>& left_out) {
  NamedTensors tensors;
  for (const auto& [key, value] : dict.entries()) {
    if (!IsTorchTensor(value)) continue;
    TESSERA_ASSIGN_OR_RETURN(const std::string name, ReadTorchName(key, budget));
    absl::StatusOr<TorchTensor> tensor = ResolveTorchTensor(archive, value);
    if (absl::IsUnimplemented(tensor.status())) {
      left_out.push_back(name);
      continue;
    }
    if (!tensor.ok()) return DataLoss("tensor ", Shown(name), ": ", tensor.status().message());
    tensors[name] = *std::move(tensor);
  }
  return tensors;
}

// Adds the names of the tensors in a value, such as "ema.head.weight", until the budget is spent.
void AddTensorNames(const Value& value, const std::string& name, int depth, pickle::Budget& budget,
                    std::vector<std::string>& names) {
  if (depth > kMaxDepth || !budget.Has(pickle::Budget::kVisitBytes + name.size())) return;
  if (IsTorchTensor(value)) return names.push_back(name);
  pickle::ForEachPart(value, [&](std::optional<std::string_view> part, const Value& child) {
    AddTensorNames(child, part ? absl::StrCat(name, ".", View(*part)) : name, depth + 1, budget,
                   names);
    return absl::OkStatus();
  }).IgnoreError();
}

absl::StatusOr<DeepSpeedModelStates> ReadStates(const TorchArchive& archive) {
  const Value root = archive.contents.root();
  pickle::Budget budget(archive.contents);
  DeepSpeedModelStates states;
  const Value groups = root.Find("param_shapes");
  for (size_t i = 0; i < groups.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(NamedShapes)));
    TESSERA_ASSIGN_OR_RETURN(states.groups.emplace_back(), ReadShapes(groups[i], budget));
  }
  TESSERA_ASSIGN_OR_RETURN(states.frozen, ReadShapes(root.Find("frozen_param_shapes"), budget));
  TESSERA_ASSIGN_OR_RETURN(
      states.frozen_fragments,
      ReadTensors(archive, root.Find("frozen_param_fragments"), budget, states.left_out));
  TESSERA_ASSIGN_OR_RETURN(states.module,
                           ReadTensors(archive, root.Find("module"), budget, states.left_out));
  const Value shared = root.Find("shared_params");
  for (const auto& [key, value] : shared.entries()) {
    TESSERA_ASSIGN_OR_RETURN(std::string second, ReadTorchName(key, budget));
    TESSERA_ASSIGN_OR_RETURN(std::string first, ReadTorchName(value, budget));
    states.shared.emplace_back(std::move(second), std::move(first));
  }
  for (const auto& [key, value] : root.entries()) {
    const std::string name(key.AsText().value_or(""));
    if (std::ranges::find(kOwnEntries, name) != std::end(kOwnEntries)) continue;
    AddTensorNames(value, name, /*depth=*/0, budget, states.of_program);
  }
  states.data_parallel_size = root.Find("dp_world_size").AsInt();
  // Steps that were skipped because a gradient overflowed change nothing.
  if (const std::optional<int64_t> steps = root.Find("global_steps").AsInt()) {
    const int64_t skipped = root.Find("skipped_steps").AsInt().value_or(0);
    if (skipped >= 0 && skipped <= *steps) states.steps = *steps - skipped;
  }
  states.samples = root.Find("global_samples").AsInt();
  states.version = Shown(root.Find("ds_version").AsText().value_or(""));
  return states;
}

int64_t PartitionCount(const Value& count) {
  if (count.size() == 0) return count.AsInt().value_or(0);
  for (size_t i = 1; i < count.size(); ++i) {
    if (count[i].AsInt() != count[0].AsInt()) return 0;
  }
  return count[0].AsInt().value_or(0);
}

absl::Status AddVector(const TorchArchive& archive, const ForeignKind& kind, const Value& value,
                       ZeroGroup& group) {
  TESSERA_ASSIGN_OR_RETURN(TorchTensor tensor, ResolveTorchVector(archive, value));
  group.vectors.emplace_back(kind, std::move(tensor));
  return absl::OkStatus();
}

absl::Status AddSlices(const Value& slices, pickle::Budget& budget, ZeroGroup& group) {
  for (const auto& [key, slice] : slices.entries()) {
    const std::string_view text = key.AsText().value_or("");
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(ZeroSlice) + text.size()));
    const std::string name(text);
    const std::optional<int64_t> start = slice.state().Find("start").AsInt();
    const std::optional<int64_t> count = slice.state().Find("numel").AsInt();
    if (name.empty() || !start || !count) {
      return DataLoss("a malformed entry of param_slice_mappings: ", Shown(name));
    }
    group.slices.push_back({name, *start, *count});
  }
  return absl::OkStatus();
}

// Adds the moments of a group: the base optimizer's state has one tensor for each group, by number.
absl::Status AddMoments(const TorchArchive& archive, const Value& base, size_t index,
                        ZeroGroup& group) {
  const Value in_list = base[index];  // of an elastic checkpoint
  const Value state =
      in_list.present() ? in_list : FindNumber(base.Find("state"), static_cast<int64_t>(index));
  for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq}) {
    const Value moment = state.Find(kind.state);
    if (moment.present()) TESSERA_RETURN_IF_ERROR(AddVector(archive, kind, moment, group));
  }
  return absl::OkStatus();
}

absl::StatusOr<ZeroShard> ReadShard(const TorchArchive& archive) {
  const Value state = archive.contents.root().Find("optimizer_state_dict");
  const Value partitions = state.Find("single_partition_of_fp32_groups");
  ZeroShard shard = {.cuts_parameters = !partitions.present(),
                     .ranks = PartitionCount(state.Find("partition_count"))};
  const Value fp32 = shard.cuts_parameters ? state.Find("fp32_flat_groups") : partitions;
  const Value base =
      state.Find(shard.cuts_parameters ? "optimizer_state_dict" : "base_optimizer_state");
  const Value slices = state.Find("param_slice_mappings");
  if (!fp32.present()) return DataLoss("not written by ZeRO: no groups of fp32 weights");
  if (!shard.cuts_parameters && !slices.present()) {
    return Unimplemented(
        "no param_slice_mappings, which tell where each parameter is: load and save it with a "
        "later DeepSpeed");
  }
  if (!shard.cuts_parameters && slices.size() != fp32.size()) {
    return DataLoss(fp32.size(), " groups of fp32 weights, ", slices.size(),
                    " of param_slice_mappings");
  }
  pickle::Budget budget(archive.contents);
  for (size_t i = 0; i < fp32.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(ZeroGroup) + 3 * sizeof(TorchTensor)));
    ZeroGroup& group = shard.groups.emplace_back();
    absl::Status status = AddVector(archive, kForeignWeight, fp32[i], group);
    if (status.ok()) status = AddMoments(archive, base, i, group);
    if (status.ok() && !shard.cuts_parameters) status = AddSlices(slices[i], budget, group);
    TESSERA_RETURN_IF_ERROR(In(absl::StrCat("group ", i), status));
  }
  return shard;
}

}  // namespace

absl::StatusOr<std::optional<DeepSpeedFolder>> FindDeepSpeedFolder(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  TESSERA_ASSIGN_OR_RETURN(std::optional<DeepSpeedFolder> found, Look(storage, "", names));
  if (found.has_value()) return found;
  for (const std::string_view latest : {std::string_view("latest"), kLatestUniversal}) {
    if (!Has(names, latest)) continue;
    TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadAll(storage, latest, kMaxTagBytes));
    const std::string tag(absl::StripAsciiWhitespace(text));
    if (!CheckPath("Open", tag, /*root_allowed=*/false).ok()) continue;
    if (!Has(names, tag + "/")) {
      if (!tag.starts_with("global_step")) continue;
      return DataLoss(storage.Describe(latest), " names the folder ", tag, ", which is missing");
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> inner_names, storage.List(tag));
    TESSERA_ASSIGN_OR_RETURN(found, Look(storage, tag, inner_names));
    if (!found.has_value() && latest == kLatestUniversal) {
      return DataLoss(storage.Describe(latest), " names ", tag, ", in which the folder ",
                      kParameters, " or the model's file is missing");
    }
    if (!found.has_value()) continue;
    if (Has(names, kConfig)) found->config = kConfig;
    return found;
  }
  return std::nullopt;
}

absl::StatusOr<DeepSpeedModelStates> ReadDeepSpeedModelStates(Storage& storage,
                                                              const std::string& path) {
  return ReadTorchFile(storage, path, ReadStates);
}

absl::StatusOr<ZeroShard> ReadZeroShard(Storage& storage, const std::string& path) {
  return ReadTorchFile(storage, path, ReadShard);
}

}  // namespace tessera::ckpt::convert
