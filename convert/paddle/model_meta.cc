#include "convert/paddle/model_meta.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

using nlohmann::json;

constexpr int64_t kMaxDegree = 1 << 16;

// An object's member, or an empty object.
const json& Member(const json& object, const char* name) {
  static const json empty = json::object();
  const auto member = object.find(name);
  return member == object.end() || !member->is_object() ? empty : *member;
}

absl::StatusOr<int64_t> Degree(const json& config, const char* name) {
  const auto member = config.find(name);
  if (member == config.end()) return 1;
  if (!member->is_number_integer() || *member < 1 || *member > kMaxDegree) {
    return absl::DataLossError(absl::StrCat("parallel_config: ", name, " is no degree"));
  }
  return member->get<int64_t>();
}

// The rank of "tp00" or "pp00".
std::optional<int64_t> RankOf(std::string_view text, std::string_view axis) {
  int64_t rank = 0;
  if (!text.starts_with(axis)) return std::nullopt;
  text.remove_prefix(axis.size());
  if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != text.npos ||
      !absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &rank)) {
    return std::nullopt;
  }
  return rank;
}

std::optional<std::pair<int64_t, int64_t>> RanksOf(std::string_view key) {
  const size_t middle = key.find('_');
  if (middle == key.npos) return std::nullopt;
  const std::optional<int64_t> tensor = RankOf(key.substr(0, middle), "tp");
  const std::optional<int64_t> pipeline = RankOf(key.substr(middle + 1), "pp");
  if (!tensor || !pipeline) return std::nullopt;
  return std::pair(*tensor, *pipeline);
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

absl::StatusOr<PaddleShardingMeta> ParseRank(const json& value) {
  PaddleShardingMeta meta;
  const auto strategy = value.find("sharding_strategy");
  if (strategy != value.end() && strategy->is_string()) meta.strategy = *strategy;
  for (const auto& [structured, name] : Member(value, "structure_name_mapping").items()) {
    if (!name.is_string()) {
      return absl::DataLossError(
          absl::StrCat("structure_name_mapping: ", structured, ": not a name"));
    }
    if (!meta.structured_names.emplace(name.get<std::string>(), structured).second) {
      return absl::DataLossError(absl::StrCat("structure_name_mapping: two parameters are called ",
                                              name.get<std::string>()));
    }
  }
  for (const auto& [name, rank] : Member(value, "param2rank").items()) {
    if (!rank.is_number_integer()) {
      return absl::DataLossError(absl::StrCat("param2rank: ", name, ": not a rank"));
    }
    meta.owners[name] = rank.get<int64_t>();
  }
  // [shape, dtype].
  for (const auto& [structured, description] : Member(value, "param_meta").items()) {
    std::optional<Shape> shape;
    if (description.is_array() && !description.empty()) shape = ShapeOf(description[0]);
    if (!shape) return absl::DataLossError(absl::StrCat("param_meta: ", structured, ": no shape"));
    meta.shapes[structured] = *std::move(shape);
  }
  return meta;
}

}  // namespace

absl::StatusOr<PaddleModelMeta> ParsePaddleModelMeta(std::string_view text) {
  const json root = ParseJson(text);
  if (!root.is_object()) return absl::DataLossError("not a JSON object");
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
    const std::optional<std::pair<int64_t, int64_t>> ranks = RanksOf(key);
    if (!ranks || !value.is_object()) {
      return absl::DataLossError(absl::StrCat("sharding_metas: ", key, ": not tpXX_ppYY"));
    }
    absl::StatusOr<PaddleShardingMeta> rank = ParseRank(value);
    if (!rank.ok()) {
      return absl::DataLossError(
          absl::StrCat("sharding_metas: ", key, ": ", rank.status().message()));
    }
    meta.ranks[*ranks] = *std::move(rank);
  }
  return meta;
}

}  // namespace tessera::ckpt::convert
