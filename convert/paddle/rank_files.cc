#include "convert/paddle/rank_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/join_first.h"
#include "base/status_macros.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kModelSuffix = ".pdparams";
constexpr std::string_view kOptimizerSuffix = ".pdopt";
constexpr std::string_view kNoStates[] = {"scheduler.pdparams", "scalar.pdparams",
                                          "scaler.pdparams"};
// Paddle writes two digits. More ranks than this have no room in any list of files.
constexpr size_t kMaxDigits = 4;
constexpr int64_t kMaxFiles = int64_t{1} << 20;

constexpr int kAxes = 3;
constexpr std::string_view kAxisNames[kAxes] = {"tp", "pp", "shard"};

// A name without its ranks ("model_state.pdparams"), and the ranks that it has.
struct ParsedName {
  std::string base;
  std::optional<int64_t> ranks[kAxes];
};

std::optional<int64_t> Digits(std::string_view text) {
  if (text.empty() || text.size() > kMaxDigits) return std::nullopt;
  int64_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = 10 * number + (c - '0');
  }
  return number;
}

// "tp00_pp01": axes in their order, each at most once.
bool ParseRanks(std::string_view text, ParsedName& parsed) {
  for (int axis = 0; axis < kAxes; ++axis) {
    if (!text.starts_with(kAxisNames[axis])) continue;
    const size_t begin = kAxisNames[axis].size();
    const size_t end = std::min(text.find('_'), text.size());
    parsed.ranks[axis] = Digits(text.substr(begin, end - begin));
    if (!parsed.ranks[axis]) return false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return text.empty();
}

ParsedName Parse(const std::string& name, std::string_view suffix) {
  const std::string_view stem = std::string_view(name).substr(0, name.size() - suffix.size());
  const size_t dot = stem.rfind('.');
  ParsedName parsed;
  if (dot != std::string_view::npos && dot + 1 < stem.size() &&
      ParseRanks(stem.substr(dot + 1), parsed)) {
    parsed.base = std::string(stem.substr(0, dot)) + std::string(suffix);
    return parsed;
  }
  return {.base = name};
}

std::string NameOf(const ParsedName& like, const int64_t ranks[kAxes], std::string_view suffix) {
  std::vector<std::string> parts;
  for (int axis = 0; axis < kAxes; ++axis) {
    if (!like.ranks[axis]) continue;
    parts.push_back(absl::StrFormat(
        "%s%02d", absl::string_view(kAxisNames[axis].data(), kAxisNames[axis].size()),
        ranks[axis]));
  }
  const std::string stem = like.base.substr(0, like.base.size() - suffix.size());
  if (parts.empty()) return like.base;
  return absl::StrCat(stem, ".", absl::StrJoin(parts, "_"),
                      absl::string_view(suffix.data(), suffix.size()));
}

struct FilesOfKind {
  std::string_view suffix;
  std::vector<std::pair<std::string, ParsedName>> names;
};

// That all have the same base and the same axes.
absl::Status CheckNames(const FilesOfKind& files) {
  for (const auto& [name, parsed] : files.names) {
    const auto& [first_name, first] = files.names[0];
    bool same = parsed.base == first.base;
    for (int axis = 0; axis < kAxes; ++axis) {
      same = same && parsed.ranks[axis].has_value() == first.ranks[axis].has_value();
    }
    if (same) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(first_name, " and ", name,
                     " are files of different checkpoints: leave those of one in the folder"));
  }
  return absl::OkStatus();
}

absl::Status CheckGrid(const FilesOfKind& files, const int64_t degrees[kAxes],
                       std::vector<std::string>& missing) {
  if (files.names.empty()) return absl::OkStatus();
  const ParsedName& like = files.names[0].second;
  std::map<std::string, int> present;
  for (const auto& [name, parsed] : files.names) ++present[name];
  int64_t extents[kAxes];
  for (int axis = 0; axis < kAxes; ++axis) extents[axis] = like.ranks[axis] ? degrees[axis] : 1;
  if (extents[0] * extents[1] * extents[2] > kMaxFiles) {
    return absl::InvalidArgumentError(absl::StrCat("the names of the files span tp ", extents[0],
                                                   ", pp ", extents[1], ", shard ", extents[2]));
  }
  for (int64_t tp = 0; tp < extents[0]; ++tp) {
    for (int64_t pp = 0; pp < extents[1]; ++pp) {
      for (int64_t shard = 0; shard < extents[2]; ++shard) {
        const int64_t ranks[kAxes] = {tp, pp, shard};
        std::string name = NameOf(like, ranks, files.suffix);
        if (!present.contains(name)) missing.push_back(std::move(name));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<PaddleRankFile> Sorted(const FilesOfKind& files) {
  std::vector<PaddleRankFile> sorted;
  for (const auto& [name, parsed] : files.names) {
    sorted.push_back({name, parsed.ranks[0].value_or(0), parsed.ranks[1].value_or(0),
                      parsed.ranks[2].value_or(0)});
  }
  std::ranges::sort(sorted, {}, [](const PaddleRankFile& file) {
    return std::tuple(file.tensor, file.pipeline, file.shard);
  });
  return sorted;
}

}  // namespace

bool IsPaddleStateName(const std::string& name) {
  if (std::ranges::find(kNoStates, name) != std::end(kNoStates)) return false;
  return name.ends_with(kModelSuffix) || name.ends_with(kOptimizerSuffix);
}

absl::StatusOr<PaddleRankFiles> FindPaddleRankFiles(std::span<const std::string> names) {
  FilesOfKind models = {.suffix = kModelSuffix}, optimizers = {.suffix = kOptimizerSuffix};
  int64_t degrees[kAxes] = {1, 1, 1};
  for (const std::string& name : names) {
    if (!IsPaddleStateName(name)) continue;
    FilesOfKind& files = name.ends_with(kModelSuffix) ? models : optimizers;
    ParsedName parsed = Parse(name, files.suffix);
    for (int axis = 0; axis < kAxes; ++axis) {
      degrees[axis] = std::max(degrees[axis], parsed.ranks[axis].value_or(0) + 1);
    }
    files.names.emplace_back(name, std::move(parsed));
  }
  std::vector<std::string> missing;
  for (const FilesOfKind* files : {&models, &optimizers}) {
    TESSERA_RETURN_IF_ERROR(CheckNames(*files));
    TESSERA_RETURN_IF_ERROR(CheckGrid(*files, degrees, missing));
    // Tensor and pipeline ranks cut both kinds of states.
    for (int axis = 0; axis < 2 && !files->names.empty(); ++axis) {
      if (degrees[axis] == 1 || files->names[0].second.ranks[axis]) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          files->names[0].first, " has no rank of ", absl::string_view(kAxisNames[axis].data(), 2),
          ", of which other files have ", degrees[axis]));
    }
  }
  if (!missing.empty()) {
    return absl::DataLossError(absl::StrCat("missing: ", JoinFirst(missing, ", ")));
  }
  return PaddleRankFiles{.degrees = {degrees[0], degrees[1], degrees[2]},
                         .models = Sorted(models),
                         .optimizers = Sorted(optimizers)};
}

}  // namespace tessera::ckpt::convert
