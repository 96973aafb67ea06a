#include "convert/formats/paddle/files.h"

#include <algorithm>
#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/rank_grid.h"
#include "convert/core/reading.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

using nlohmann::json;

constexpr std::string_view kModelSuffix = ".pdparams";
constexpr std::string_view kOptimizerSuffix = ".pdopt";
constexpr std::string_view kNoStates[] = {"scheduler.pdparams", "scalar.pdparams",
                                          "scaler.pdparams"};

constexpr size_t kAxes = 3;
constexpr const char* kAxisNames[kAxes] = {"tp", "pp", "shard"};

// Which axes a name has, in their order.
using Axes = std::vector<size_t>;

const Axes kAllAxes[] = {{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}};

RankPattern PatternOf(const Axes& axes) {
  std::vector<std::string> parts;
  for (const size_t axis : axes) parts.push_back(absl::StrCat(kAxisNames[axis], "{2}"));
  return RankPattern(absl::StrJoin(parts, "_"));
}

// "model_state.tp00_pp01.pdparams" is "model_state", "tp00_pp01" and the ranks of tp and pp.
struct ParsedName {
  std::string name, base, place;
  Axes axes;
  std::vector<int64_t> ranks;
};

ParsedName Parse(const std::string& name, std::string_view suffix) {
  const std::string stem = name.substr(0, name.size() - suffix.size());
  const size_t dot = stem.rfind('.');
  if (dot != stem.npos) {
    const std::string place = stem.substr(dot + 1);
    for (const Axes& axes : kAllAxes) {
      const std::optional<std::vector<int64_t>> ranks = PatternOf(axes).Parse(place);
      if (ranks) return {name, stem.substr(0, dot), place, axes, *ranks};
    }
  }
  return {.name = name, .base = stem};
}

struct FilesOfKind {
  std::string_view suffix;
  std::vector<ParsedName> names;
};

// Returns all ranks' files of a kind, with 0 on axes that the names do not have.
absl::StatusOr<std::vector<PaddleRankFile>> FilesOf(const FilesOfKind& files,
                                                    const int64_t degrees[kAxes],
                                                    std::vector<std::string>& missing) {
  if (files.names.empty()) return std::vector<PaddleRankFile>();
  const ParsedName& first = files.names[0];
  std::vector<std::string> places;
  for (const ParsedName& other : files.names) {
    places.push_back(other.place);
    if (other.base == first.base && other.axes == first.axes) continue;
    return InvalidArgument(first.name, " and ", other.name,
                           " are files of different checkpoints: leave those of one in the folder");
  }
  std::vector<int64_t> extents;
  for (const size_t axis : first.axes) extents.push_back(degrees[axis]);
  const auto name_of = [&](const std::string& place) {
    return absl::StrCat(first.base, place.empty() ? "" : ".", place, std::string(files.suffix));
  };
  std::vector<std::string> missing_places;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<RankFile> grid,
                           CompleteGrid(PatternOf(first.axes), extents, places, missing_places));
  for (const std::string& place : missing_places) missing.push_back(name_of(place));
  std::vector<PaddleRankFile> all;
  for (const RankFile& file : grid) {
    int64_t ranks[kAxes] = {};
    for (size_t i = 0; i < first.axes.size(); ++i) ranks[first.axes[i]] = file.ranks[i];
    all.push_back({name_of(file.name), ranks[0], ranks[1], ranks[2]});
  }
  return all;
}

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

constexpr int64_t kMaxDegree = 1 << 16;

// Returns an object's member, or an empty object.
const json& Member(const json& object, const char* name) {
  static const json empty = json::object();
  const auto member = object.find(name);
  return member == object.end() || !member->is_object() ? empty : *member;
}

absl::StatusOr<int64_t> Degree(const json& config, const char* name) {
  const auto member = config.find(name);
  if (member == config.end()) return 1;
  if (!member->is_number_integer() || *member < 1 || *member > kMaxDegree) {
    return DataLoss("parallel_config: ", name, " is not a degree");
  }
  return member->get<int64_t>();
}

std::optional<Shape> ShapeOf(const json& value) {
  if (!value.is_array()) return std::nullopt;
  Shape shape;
  for (const json& extent : value) {
    if (!extent.is_number_integer()) return std::nullopt;
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

RankPattern RankKeys() { return RankPattern("tp{2}_pp{2}"); }

absl::StatusOr<PaddleShardingMeta> ParseRank(const json& value) {
  PaddleShardingMeta meta;
  const auto strategy = value.find("sharding_strategy");
  if (strategy != value.end() && strategy->is_string()) meta.strategy = *strategy;
  for (const auto& [structured, name] : Member(value, "structure_name_mapping").items()) {
    if (!name.is_string()) return DataLoss("structure_name_mapping: ", structured, ": not a name");
    meta.structured_names.emplace(name.get<std::string>(), structured);
  }
  for (const auto& [name, rank] : Member(value, "param2rank").items()) {
    if (!rank.is_number_integer()) return DataLoss("param2rank: ", name, ": not a rank");
    meta.owners[name] = rank.get<int64_t>();
  }
  // [shape, dtype].
  for (const auto& [structured, description] : Member(value, "param_meta").items()) {
    std::optional<Shape> shape;
    if (description.is_array() && !description.empty()) shape = ShapeOf(description[0]);
    if (!shape) return DataLoss("param_meta: ", structured, ": no shape");
    meta.shapes[structured] = *std::move(shape);
  }
  return meta;
}

constexpr std::string_view kSlice = "slice@";
constexpr std::string_view kMaster = "_fp32_master";

struct Suffix {
  std::string_view text;
  PaddleState state;
};
constexpr Suffix kSuffixes[] = {{"moment1", PaddleState::kMoment1},
                                {"moment2", PaddleState::kMoment2},
                                {"beta1_pow_acc", PaddleState::kBeta1Power},
                                {"beta2_pow_acc", PaddleState::kBeta2Power}};

// Removes "_0" or another number from the end.
bool RemoveNumber(std::string_view& text) {
  const size_t last = text.find_last_not_of("0123456789");
  if (last == text.npos || last + 1 == text.size() || text[last] != '_') return false;
  text = text.substr(0, last);
  return true;
}

bool RemoveEnd(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

bool RemoveSlice(std::string_view& text) {
  if (!text.starts_with(kSlice)) return false;
  text.remove_prefix(kSlice.size());
  return true;
}

}  // namespace

bool HasPaddleChunk(const std::string& name) { return WithoutChunk(name) != name; }

std::string CanonicalPaddleName(std::string_view name) {
  constexpr std::string_view kWrapper = "_layers.";
  if (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
  return WithoutChunk(std::string(name));
}

bool IsPaddleStateName(const std::string& name) {
  if (std::ranges::count(kNoStates, name) > 0) return false;
  return name.ends_with(kModelSuffix) || name.ends_with(kOptimizerSuffix);
}

absl::StatusOr<PaddleRankFiles> FindPaddleRankFiles(std::span<const std::string> names) {
  FilesOfKind models = {.suffix = kModelSuffix}, optimizers = {.suffix = kOptimizerSuffix};
  int64_t degrees[kAxes] = {1, 1, 1};
  for (const std::string& name : names) {
    if (!IsPaddleStateName(name)) continue;
    FilesOfKind& files = name.ends_with(kModelSuffix) ? models : optimizers;
    files.names.push_back(Parse(name, files.suffix));
    const ParsedName& parsed = files.names.back();
    for (size_t i = 0; i < parsed.axes.size(); ++i) {
      degrees[parsed.axes[i]] = std::max(degrees[parsed.axes[i]], parsed.ranks[i] + 1);
    }
  }
  std::vector<std::string> missing;
  PaddleRankFiles found = {.degrees = {degrees[0], degrees[1], degrees[2]}};
  TESSERA_ASSIGN_OR_RETURN(found.models, FilesOf(models, degrees, missing));
  TESSERA_ASSIGN_OR_RETURN(found.optimizers, FilesOf(optimizers, degrees, missing));
  // Tensor and pipeline ranks cut both kinds of states.
  for (const FilesOfKind* files : {&models, &optimizers}) {
    for (size_t axis = 0; axis < 2 && !files->names.empty(); ++axis) {
      if (degrees[axis] == 1 || std::ranges::count(files->names[0].axes, axis) > 0) continue;
      return InvalidArgument(files->names[0].name, " has no rank of ", kAxisNames[axis],
                             ", but other files name ", degrees[axis]);
    }
  }
  if (missing.empty()) return found;
  return DataLoss("missing: ", JoinFirst(missing, ", "));
}

absl::StatusOr<PaddleModelMeta> ParsePaddleModelMeta(std::string_view text) {
  const json root = ParseJson(text);
  if (!root.is_object()) return DataLoss("not a JSON object");
  PaddleModelMeta meta;
  if (root.contains("parallel_config")) {
    const json& config = Member(root, "parallel_config");
    meta.degrees.emplace();
    TESSERA_ASSIGN_OR_RETURN(meta.degrees->tensor, Degree(config, "mp_degree"));
    TESSERA_ASSIGN_OR_RETURN(meta.degrees->pipeline, Degree(config, "pp_degree"));
    TESSERA_ASSIGN_OR_RETURN(meta.degrees->sharding, Degree(config, "sharding_degree"));
    TESSERA_ASSIGN_OR_RETURN(meta.virtual_pipeline, Degree(config, "vpp_degree"));
  }
  for (const auto& [key, value] : Member(root, "sharding_metas").items()) {
    const std::optional<std::vector<int64_t>> ranks = RankKeys().Parse(key);
    if (!ranks || !value.is_object()) return DataLoss("sharding_metas: ", key, ": not tpXX_ppYY");
    TESSERA_ASSIGN_OR_RETURN((meta.ranks[{(*ranks)[0], (*ranks)[1]}]),
                             In(absl::StrCat("sharding_metas: ", key), ParseRank(value)));
  }
  return meta;
}

std::string PaddleRankKey(int64_t tensor, int64_t pipeline) {
  return RankKeys().Name(std::array{tensor, pipeline});
}

absl::StatusOr<std::map<std::string, std::string>> ParsePaddleParameterNames(
    std::string_view text) {
  const json root = ParseJson(text);
  if (!root.is_object() || root.empty()) {
    return InvalidArgument("no JSON object of names of parameters by names of tensors");
  }
  std::map<std::string, std::string> names;
  for (const auto& [key, value] : root.items()) {
    if (value.is_string()) {
      names[key] = value;
      continue;
    }
    if (!value.is_object() || !RankKeys().Parse(key)) {
      return InvalidArgument(key,
                             ": expected the name of a parameter, or a tpXX_ppYY with an object");
    }
    for (const auto& [tensor_name, name] : value.items()) {
      if (!name.is_string()) {
        return InvalidArgument(key, ": ", tensor_name, ": expected the name of a parameter");
      }
      names[absl::StrCat(key, "/", tensor_name)] = name;
    }
  }
  return names;
}

std::string_view PaddleStateName(PaddleState state) {
  if (state == PaddleState::kMasterWeight) return "master_weights";
  return std::ranges::find(kSuffixes, state, &Suffix::state)->text;
}

std::optional<PaddleStateKey> ParsePaddleStateKey(std::string_view key) {
  PaddleStateKey parsed;
  parsed.sliced = RemoveSlice(key);
  if (!RemoveNumber(key)) return std::nullopt;
  for (const Suffix& suffix : kSuffixes) {
    // A name of a parameter ends with a point (sharded_state_dict()).
    if (!RemoveEnd(key, suffix.text) || !(RemoveEnd(key, "_") || RemoveEnd(key, "."))) continue;
    // States of master weights are named after those.
    std::string_view owner = key;
    if (RemoveNumber(owner) && RemoveEnd(owner, kMaster)) key = owner;
    if (key.empty()) return std::nullopt;
    parsed.tensor_name = std::string(key);
    parsed.state = suffix.state;
    return parsed;
  }
  return std::nullopt;
}

PaddleStateKey ParsePaddleMasterKey(std::string_view key) {
  const bool sliced = RemoveSlice(key);
  return {std::string(key), PaddleState::kMasterWeight, sliced};
}

}  // namespace tessera::ckpt::convert
