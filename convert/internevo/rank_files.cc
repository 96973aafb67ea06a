#include "convert/internevo/rank_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/join_first.h"
#include "base/status_macros.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kSuffix = ".pt";
constexpr std::string_view kModel = "model";
constexpr std::string_view kOptimizer = "optimizer";
constexpr std::string_view kPlan = "gpus";
constexpr size_t kMaxDigits = 6;
constexpr int64_t kMaxFiles = int64_t{1} << 17;

// "optimizer_tp0_pp1_zo0.pt": what it is of, and the rank on each axis.
struct ParsedName {
  std::string kind;
  std::map<std::string, int64_t, std::less<>> ranks;

  int64_t Rank(std::string_view axis) const {
    const auto found = ranks.find(axis);
    return found == ranks.end() ? 0 : found->second;
  }
  bool HasAxes(const std::set<std::string>& axes) const {
    return std::ranges::equal(ranks, axes, {}, [](const auto& rank) { return rank.first; });
  }
};

// "tp0" or "tp-0".
bool ParseRank(std::string_view text, ParsedName& parsed) {
  size_t letters = 0;
  while (letters < text.size() && text[letters] >= 'a' && text[letters] <= 'z') ++letters;
  std::string_view digits = text.substr(letters);
  if (digits.starts_with('-')) digits.remove_prefix(1);
  if (letters == 0 || digits.empty() || digits.size() > kMaxDigits) return false;
  int64_t rank = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return false;
    rank = 10 * rank + (digit - '0');
  }
  return parsed.ranks.emplace(text.substr(0, letters), rank).second;
}

std::optional<ParsedName> Parse(const std::string& name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  const std::string_view stem = std::string_view(name).substr(0, name.size() - kSuffix.size());
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(stem.data(), stem.size()), '_');
  ParsedName parsed = {.kind = parts[0].substr(0, parts[0].find('-'))};
  if (parsed.kind != kModel && parsed.kind != kOptimizer && parsed.kind != kPlan) {
    return std::nullopt;
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    if (!ParseRank(parts[i], parsed)) return std::nullopt;
  }
  if (parsed.ranks.empty()) return std::nullopt;
  return parsed;
}

bool IsOfExperts(const std::string& name) {
  return name.starts_with("model_moe_layer") || name.starts_with("optimizer_ep");
}

absl::Status Unsupported(const std::string& name, std::string_view what) {
  return absl::UnimplementedError(absl::StrCat(
      name, " is a file of ", absl::string_view(what.data(), what.size()), ", which is not read"));
}

absl::Status CheckAxes(const std::string& name, const ParsedName& parsed) {
  const bool is_model = parsed.kind == kModel;
  for (const char* part : {"tp", "wp"}) {
    if (parsed.HasAxes(is_model ? std::set<std::string>{part, "pp"}
                                : std::set<std::string>{part, "pp", "zo"})) {
      return absl::OkStatus();
    }
  }
  if (parsed.ranks.contains("tp") && parsed.ranks.contains("wp")) {
    return Unsupported(name, "a rank that is both tensor-parallel and weight-parallel");
  }
  if (is_model && (parsed.ranks.contains("dp") || parsed.ranks.contains("zo"))) {
    return Unsupported(name, "FSDP");
  }
  return Unsupported(name, "an unknown parallel mode");
}

std::string NameOf(std::string_view kind, bool weight_parallel, const InternEvoRankFile& file) {
  std::string name = absl::StrCat(absl::string_view(kind.data(), kind.size()),
                                  weight_parallel ? "_wp" : "_tp", file.part, "_pp", file.pipeline);
  if (kind == kOptimizer) absl::StrAppend(&name, "_zo", file.zero);
  return name + std::string(kSuffix);
}

// All files of a kind; those that are absent are added to `missing`.
std::vector<InternEvoRankFile> Grid(std::string_view kind, const InternEvoRankFiles& files,
                                    const std::set<std::string>& present,
                                    std::vector<std::string>& missing) {
  std::vector<InternEvoRankFile> grid;
  for (int64_t stage = 0; stage < files.stages; ++stage) {
    for (int64_t part = 0; part < files.parts; ++part) {
      for (int64_t zero = 0; zero < (kind == kOptimizer ? files.zero_ranks : 1); ++zero) {
        InternEvoRankFile file = {.part = part, .pipeline = stage, .zero = zero};
        file.name = NameOf(kind, files.weight_parallel, file);
        if (!present.contains(file.name)) missing.push_back(file.name);
        grid.push_back(std::move(file));
      }
    }
  }
  return grid;
}

}  // namespace

bool IsInternEvoModelName(const std::string& name) {
  const std::optional<ParsedName> parsed = Parse(name);
  return parsed && parsed->kind == kModel &&
         (parsed->ranks.contains("tp") || parsed->ranks.contains("wp")) &&
         parsed->ranks.contains("pp");
}

absl::StatusOr<InternEvoRankFiles> FindInternEvoRankFiles(std::span<const std::string> names) {
  InternEvoRankFiles files;
  std::set<std::string> present, parts;
  bool has_optimizers = false;
  for (const std::string& name : names) {
    if (IsOfExperts(name)) return Unsupported(name, "experts");
    const std::optional<ParsedName> parsed = Parse(name);
    if (!parsed) continue;
    InternEvoRankFile file = {.name = name,
                              .part = std::max(parsed->Rank("tp"), parsed->Rank("wp")),
                              .pipeline = parsed->Rank("pp"),
                              .zero = parsed->Rank("zo")};
    if (parsed->kind == kPlan) {
      files.plans.push_back(std::move(file));
      continue;
    }
    TESSERA_RETURN_IF_ERROR(CheckAxes(name, *parsed));
    parts.insert(parsed->ranks.contains("wp") ? "wp" : "tp");
    has_optimizers = has_optimizers || parsed->kind == kOptimizer;
    files.parts = std::max(files.parts, file.part + 1);
    files.stages = std::max(files.stages, file.pipeline + 1);
    files.zero_ranks = std::max(files.zero_ranks, file.zero + 1);
    present.insert(name);
  }
  if (parts.size() > 1) {
    return absl::DataLossError(
        "there are files of tensor-parallel ranks (tp) and of weight-parallel ones (wp): leave "
        "those of one checkpoint in the folder");
  }
  files.weight_parallel = parts.contains("wp");
  if (files.parts * files.stages > kMaxFiles / files.zero_ranks) {
    return absl::DataLossError(absl::StrCat("the names of the files span ", files.parts, " x ",
                                            files.stages, " x ", files.zero_ranks, " ranks"));
  }
  std::vector<std::string> missing;
  files.models = Grid(kModel, files, present, missing);
  if (has_optimizers) files.optimizers = Grid(kOptimizer, files, present, missing);
  if (missing.empty()) return files;
  return absl::DataLossError(absl::StrCat("missing: ", JoinFirst(missing, ", ")));
}

}  // namespace tessera::ckpt::convert
