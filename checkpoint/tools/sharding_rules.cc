#include "checkpoint/tools/sharding_rules.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::ckpt {
namespace {

using Place = Sharding::Place;

struct Rule {
  std::string_view suffix;  // of the name, behind a dot or as a whole
  int dim;
  int sections = 1;
  std::string_view fused = {};
};

// Inside layers. What is not here and has one dim (norms, biases of row-parallel matrices) is
// whole.
constexpr Rule kLayerRules[] = {
    // GPT-2. Its matrices are stored input first.
    {"attn.c_attn.weight", 1, 3},
    {"attn.c_attn.bias", 0, 3},
    {"attn.c_proj.weight", 0},
    {"mlp.c_fc.weight", 1},
    {"mlp.c_fc.bias", 0},
    {"mlp.c_proj.weight", 0},
    // Llama, and those that name their parts alike. Stored output first.
    {"self_attn.q_proj.weight", 0, 1, "qkv"},
    {"self_attn.k_proj.weight", 0, 1, "qkv"},
    {"self_attn.v_proj.weight", 0, 1, "qkv"},
    {"self_attn.q_proj.bias", 0, 1, "qkv.bias"},
    {"self_attn.k_proj.bias", 0, 1, "qkv.bias"},
    {"self_attn.v_proj.bias", 0, 1, "qkv.bias"},
    {"self_attn.o_proj.weight", 1},
    {"mlp.gate_proj.weight", 0, 1, "gate_up"},
    {"mlp.up_proj.weight", 0, 1, "gate_up"},
    {"mlp.down_proj.weight", 1},
};

struct OuterRule {
  std::string_view suffix;
  Place place;
  bool is_vocabulary;
};

// Before the first layer and after the last.
constexpr OuterRule kOuterRules[] = {
    {"wte.weight", Place::kFirstStage, true},  {"embed_tokens.weight", Place::kFirstStage, true},
    {"wpe.weight", Place::kFirstStage, false}, {"lm_head.weight", Place::kLastStage, true},
    {"ln_f.weight", Place::kLastStage, false}, {"ln_f.bias", Place::kLastStage, false},
    {"norm.weight", Place::kLastStage, false},
};

bool HasSuffix(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  return name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.';
}

// "transformer.h.7.ln_1.weight": 7, the first part that is a number and has parts around it.
std::optional<int64_t> LayerOf(std::string_view name) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::string_view(name.data(), name.size()), '.');
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    int64_t layer = 0;
    const bool digits =
        !parts[i].empty() && parts[i].find_first_not_of("0123456789") == absl::string_view::npos;
    if (digits && absl::SimpleAtoi(parts[i], &layer)) return layer;
  }
  return std::nullopt;
}

Sharding FromName(std::string_view name, const Shape& shape) {
  Sharding sharding;
  const int unknown_dim = shape.size() >= 2 ? 0 : -1;
  if (const std::optional<int64_t> layer = LayerOf(name)) {
    sharding.place = Place::kLayer;
    sharding.layer = *layer;
    const auto rule =
        std::ranges::find_if(kLayerRules, [&](const Rule& r) { return HasSuffix(name, r.suffix); });
    sharding.dim = unknown_dim;
    if (rule == std::end(kLayerRules)) return sharding;
    if (static_cast<size_t>(rule->dim) >= shape.size()) return sharding;
    sharding.dim = rule->dim;
    sharding.sections = shape[rule->dim] % rule->sections == 0 ? rule->sections : 1;
    sharding.fused = rule->fused;
    return sharding;
  }
  const auto rule = std::ranges::find_if(
      kOuterRules, [&](const OuterRule& r) { return HasSuffix(name, r.suffix); });
  if (rule == std::end(kOuterRules)) {
    sharding.dim = unknown_dim;
    return sharding;
  }
  sharding.place = rule->place;
  sharding.is_vocabulary = rule->is_vocabulary && shape.size() == 2;
  sharding.dim = sharding.is_vocabulary ? 0 : -1;
  return sharding;
}

}  // namespace

absl::StatusOr<SplitOverride> ParseSplitOverride(std::string_view text) {
  const size_t equals = text.rfind('=');
  SplitOverride split;
  if (equals != std::string_view::npos && equals > 0) {
    split.pattern = std::string(text.substr(0, equals));
    const std::string_view dim = text.substr(equals + 1);
    if (dim == "whole") return split;
    if (absl::SimpleAtoi(absl::string_view(dim.data(), dim.size()), &split.dim) && split.dim >= 0 &&
        split.dim < kMaxRank) {
      return split;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", std::string(text),
                   "\" is not PATTERN=DIM, where DIM is the number of a dim or \"whole\""));
}

bool MatchesPattern(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

absl::StatusOr<Sharding> FindSharding(std::string_view name, const Shape& shape,
                                      const std::vector<SplitOverride>& overrides) {
  Sharding sharding = FromName(name, shape);
  for (const SplitOverride& split : overrides) {
    if (!MatchesPattern(split.pattern, name)) continue;
    if (split.dim >= static_cast<int>(shape.size())) {
      return absl::InvalidArgumentError(absl::StrCat("--split=", split.pattern, "=", split.dim,
                                                     ": tensor ", std::string(name), " has shape ",
                                                     ShapeToString(shape)));
    }
    sharding = {.place = sharding.place, .layer = sharding.layer, .dim = split.dim};
  }
  return sharding;
}

}  // namespace tessera::ckpt
