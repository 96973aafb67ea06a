#include "convert/deepspeed/folder.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/join_first.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/storage/checks.h"

namespace tessera::ckpt::convert {
namespace {

constexpr uint64_t kMaxTagBytes = 4096;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr std::string_view kParameters = "zero/";
constexpr std::string_view kConfig = "config.json";

// A name such as "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt".
struct RankFile {
  bool is_optimizer = false;
  std::optional<int64_t> data_rank;
  int64_t model_rank = 0;
};

bool Consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<int64_t> ConsumeNumber(std::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  int64_t number = 0;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), digits), &number) || number >= kMaxRanks) {
    return std::nullopt;
  }
  text.remove_prefix(digits);
  return number;
}

std::optional<RankFile> ParseName(std::string_view name) {
  RankFile file;
  if (!Consume(name, "bf16_")) Consume(name, "fp16_");
  if (Consume(name, "zero_pp_rank_")) {
    file.data_rank = ConsumeNumber(name);
    if (!file.data_rank || !Consume(name, "_")) return std::nullopt;
  }
  if (!Consume(name, "mp_rank_")) return std::nullopt;
  const std::optional<int64_t> model_rank = ConsumeNumber(name);
  if (!model_rank) return std::nullopt;
  file.model_rank = *model_rank;
  file.is_optimizer = name == "_optim_states.pt";
  if (file.is_optimizer ? file.data_rank.has_value() : name == "_model_states.pt") return file;
  return std::nullopt;
}

// The files by rank. Precondition: the ranks are below kMaxRanks.
absl::StatusOr<std::vector<std::string>> ByRank(const std::map<int64_t, std::string>& files) {
  std::vector<std::string> paths, missing;
  for (const auto& [rank, path] : files) {
    for (auto other = static_cast<int64_t>(paths.size() + missing.size()); other < rank; ++other) {
      missing.push_back(absl::StrCat(other));
    }
    paths.push_back(path);
  }
  if (missing.empty()) return paths;
  return absl::DataLossError(absl::StrCat(
      "beside ", files.rbegin()->second,
      ", the files of these data-parallel ranks are missing: ", JoinFirst(missing, ", ")));
}

// "layer_00-model_states.pt", "layer_00-model_00-model_states.pt".
bool IsPipelineLayer(std::string_view name) {
  return name.starts_with("layer_") && name.ends_with("-model_states.pt");
}

// Sorts the files of ranks among `names` into `found`.
absl::Status AddRankFiles(const std::string& path, const std::vector<std::string>& names,
                          DeepSpeedFolder& found) {
  std::map<int64_t, std::string> optimizer, model;
  std::string refused;
  for (const std::string& name : names) {
    const std::optional<RankFile> file = ParseName(name);
    if (!file || file->model_rank > 0) {
      if (name.ends_with("_states.pt") || IsPipelineLayer(name)) refused = name;
      continue;
    }
    if (file->is_optimizer && !found.parameters.empty()) continue;
    std::map<int64_t, std::string>& files = file->is_optimizer ? optimizer : model;
    const std::string full = JoinPath(path, name);
    const auto [at, is_new] = files.emplace(file->data_rank.value_or(0), full);
    if (!is_new) {
      return absl::DataLossError(
          absl::StrCat(at->second, " and ", full, " are both files of one rank"));
    }
  }
  if (!refused.empty() && found.parameters.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        JoinPath(path, refused), " is of a model-parallel rank, a pipeline's layer or an expert: ",
        "such checkpoints are read after DeepSpeed's ds_to_universal has converted them"));
  }
  // Parts of tensors, which mean nothing on their own.
  if (!refused.empty()) model.clear();
  TESSERA_ASSIGN_OR_RETURN(found.optimizer_files, ByRank(optimizer));
  TESSERA_ASSIGN_OR_RETURN(found.model_files, ByRank(model));
  return absl::OkStatus();
}

// The checkpoint whose files are directly in this folder.
absl::StatusOr<std::optional<DeepSpeedFolder>> Look(Storage& storage, const std::string& path,
                                                    const std::vector<std::string>& names) {
  DeepSpeedFolder found;
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (has(kParameters)) {
    found.parameters_folder = JoinPath(path, "zero");
    TESSERA_ASSIGN_OR_RETURN(found.parameters, storage.List(found.parameters_folder));
    std::erase_if(found.parameters, [](const std::string& name) { return !name.ends_with('/'); });
    for (std::string& name : found.parameters) name.pop_back();
  }
  const bool has_shards = std::ranges::any_of(names, [](const std::string& name) {
    const std::optional<RankFile> file = ParseName(name);
    return file && file->is_optimizer;
  });
  const bool has_model = std::ranges::any_of(
      names, [](const std::string& name) { return ParseName(name).has_value(); });
  if (!has_shards && (found.parameters.empty() || !has_model)) return std::nullopt;
  if (has(kConfig)) found.config = JoinPath(path, kConfig);
  TESSERA_RETURN_IF_ERROR(AddRankFiles(path, names, found));
  return found;
}

}  // namespace

absl::StatusOr<std::optional<DeepSpeedFolder>> FindDeepSpeedFolder(Storage& storage,
                                                                   std::string_view folder) {
  const std::string root(folder);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(root));
  TESSERA_ASSIGN_OR_RETURN(std::optional<DeepSpeedFolder> found, Look(storage, root, names));
  if (found.has_value()) return found;
  for (const std::string_view latest : {"latest", "latest_universal"}) {
    if (std::ranges::find(names, latest) == names.end()) continue;
    const std::string path = JoinPath(root, latest);
    const absl::StatusOr<std::string> text = ReadAll(storage, path, kMaxTagBytes);
    if (!text.ok()) return text.status();
    const std::string tag(absl::StripAsciiWhitespace(*text));
    if (!CheckPath("Open", tag, /*root_allowed=*/false).ok()) continue;
    if (std::ranges::find(names, tag + "/") == names.end()) {
      if (!tag.starts_with("global_step")) continue;
      return absl::DataLossError(
          absl::StrCat(storage.Describe(path), " names the folder ", tag, ", which is missing"));
    }
    const std::string inner = JoinPath(root, tag);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> inner_names, storage.List(inner));
    TESSERA_ASSIGN_OR_RETURN(found, Look(storage, inner, inner_names));
    if (!found.has_value()) continue;
    if (std::ranges::find(names, kConfig) != names.end()) found->config = JoinPath(root, kConfig);
    return found;
  }
  return std::nullopt;
}

}  // namespace tessera::ckpt::convert
