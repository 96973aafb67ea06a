#include "operations/partition_rules.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"
#include "layout/box.h"

namespace tessera::ckpt {
namespace {

using Place = PartitionRule::Place;

// Parses "0" or "1/3".
bool ParseCut(absl::string_view part, PartitionRule& rule) {
  const std::vector<absl::string_view> numbers = absl::StrSplit(part, '/');
  int dim = 0;
  if (numbers.size() > 2 || !absl::SimpleAtoi(numbers[0], &dim) || dim < 0 || dim >= kMaxDims) {
    return false;
  }
  rule.dim = dim;
  return numbers.size() == 1 || (absl::SimpleAtoi(numbers[1], &rule.sections) && rule.sections > 0);
}

bool ParsePart(absl::string_view part, PartitionRule& rule) {
  static constexpr std::pair<std::string_view, Place> kPlaces[] = {{"layer", Place::kLayer},
                                                                   {"first", Place::kBeforeLayers},
                                                                   {"last", Place::kAfterLayers},
                                                                   {"both", Place::kBothEnds}};
  for (const auto& [name, place] : kPlaces) {
    if (part != View(name)) continue;
    if (rule.place != Place::kUnchanged && rule.place != place) return false;
    rule.place = place;
    return place != Place::kLayer || rule.pattern.find('#') != std::string::npos;
  }
  if (part == "padded") return rule.padded = true;
  if (rule.dim) return false;
  if (part == "whole") {
    rule.dim = -1;
    return true;
  }
  return ParseCut(part, rule);
}

void Apply(const PartitionRule& rule, int64_t layer, bool is_cuttable, PartitionedTensor& tensor) {
  Partition& partition = tensor.partition;
  if (rule.dim && is_cuttable) {
    partition.dim = *rule.dim;
    partition.sections = rule.sections;
    partition.padded = rule.padded;
    tensor.cut_is_known = true;
  } else if (rule.padded && is_cuttable) {
    partition.padded = true;
  }
  if (rule.place == Place::kUnchanged) return;
  partition.place.layer = rule.place == Place::kLayer ? layer : -1;
  partition.place.before_layers =
      rule.place == Place::kBeforeLayers || rule.place == Place::kBothEnds;
  partition.place.after_layers =
      rule.place == Place::kAfterLayers || rule.place == Place::kBothEnds;
}

Partition GuessPartition(const LogicalTensor& tensor) {
  const bool padded =
      tensor.padded_shape_size() > 0 && tensor.padded_shape(0) > tensor.global_shape(0);
  if (tensor.global_shape_size() < 2) return {};
  return {.dim = 0, .padded = padded};
}

// The parameters of tensors of optimizer state.
class Owners {
 public:
  explicit Owners(const Manifest& manifest) {
    std::map<std::string, std::string> target;  // of an alias
    for (const LogicalTensor& tensor : manifest.tensors()) {
      tensors_[tensor.name()] = &tensor;
      if (!tensor.alias_of().empty()) target[tensor.name()] = tensor.alias_of();
    }
    for (const OptimizerParameter& parameter : manifest.optimizer().parameters()) {
      const auto at = target.find(parameter.parameter());
      const std::string& name = at == target.end() ? parameter.parameter() : at->second;
      const std::map<std::string, std::string> states(parameter.states().begin(),
                                                      parameter.states().end());
      int number = 0;
      for (const auto& [state, tensor] : states) owner_[tensor] = {name, number++};
    }
  }

  // Returns a tensor's parameter, and the number of its state; its own name and -1 for others.
  std::pair<std::string, int> OwnerOf(const LogicalTensor& tensor) const {
    const auto at = owner_.find(tensor.name());
    return at == owner_.end() ? std::pair(tensor.name(), -1) : at->second;
  }

  // Null if the parameter itself was not saved.
  const LogicalTensor* Find(const std::string& name) const {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? nullptr : at->second;
  }

 private:
  std::map<std::string, const LogicalTensor*> tensors_;
  std::map<std::string, std::pair<std::string, int>> owner_;
};

PartitionedTensor FromManifest(const LogicalTensor& tensor, const LogicalTensor* owner,
                               bool is_cuttable) {
  PartitionedTensor result = {.tensor = &tensor};
  if (tensor.has_partition()) {
    result.partition = FromProto(tensor.partition());
    result.cut_is_known = true;
    return result;
  }
  if (is_cuttable) result.partition = GuessPartition(tensor);
  if (owner == nullptr || !owner->has_partition()) return result;
  const Partition of_owner = FromProto(owner->partition());
  if (is_cuttable) {
    result.partition = of_owner;
    result.cut_is_known = true;
  } else {
    result.partition.place = of_owner.place;
  }
  return result;
}

}  // namespace

absl::StatusOr<PartitionRule> ParsePartitionRule(std::string_view text) {
  const size_t equals = text.rfind('=');
  PartitionRule rule;
  rule.text = std::string(text);
  bool is_valid = equals != std::string_view::npos && equals > 0;
  if (is_valid) {
    rule.pattern = std::string(text.substr(0, equals));
    const std::string_view parts = text.substr(equals + 1);
    for (const absl::string_view part : absl::StrSplit(View(parts), ',')) {
      is_valid = is_valid && ParsePart(part, rule);
    }
    if (rule.place == Place::kUnchanged && rule.pattern.find('#') != std::string::npos) {
      rule.place = Place::kLayer;
    }
  }
  if (is_valid) return rule;
  return InvalidArgument(
      "\"", rule.text,
      "\" is not PATTERN=PART,..., where a PART is the number of a dim, a dim in "
      "sections (1/3), whole, padded, first, last, both, or, with a # in PATTERN, layer");
}

bool MatchesPattern(std::string_view pattern, std::string_view text, int64_t& layer) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (size_t skip = 0; skip <= text.size(); ++skip) {
      if (MatchesPattern(pattern.substr(1), text.substr(skip), layer)) return true;
    }
    return false;
  }
  if (pattern[0] != '#') {
    return !text.empty() && text[0] == pattern[0] &&
           MatchesPattern(pattern.substr(1), text.substr(1), layer);
  }
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  int32_t number = 0;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), digits), &number)) return false;
  int64_t later = number;
  if (!MatchesPattern(pattern.substr(1), text.substr(digits), later)) return false;
  layer = later;
  return true;
}

absl::StatusOr<std::vector<PartitionedTensor>> PartitionTensors(
    const Manifest& manifest, const std::vector<PartitionRule>& rules) {
  const Owners owners(manifest);
  std::vector<PartitionedTensor> result;
  for (const LogicalTensor& tensor : manifest.tensors()) {
    if (!tensor.alias_of().empty()) continue;
    const auto [name, state] = owners.OwnerOf(tensor);
    const LogicalTensor* const owner = owners.Find(name);
    const Shape shape = GlobalShape(tensor);
    // State of another shape than its parameter's is not cut like it.
    const bool is_cuttable =
        owner == nullptr ? !shape.empty() : state < 0 || shape == GlobalShape(*owner);
    PartitionedTensor partitioned = FromManifest(tensor, owner, is_cuttable);
    partitioned.state = state;
    for (const PartitionRule& rule : rules) {
      int64_t layer = -1;
      if (!MatchesPattern(rule.pattern, name, layer)) continue;
      Apply(rule, layer, is_cuttable, partitioned);
      if (const absl::Status fits = CheckPartition(partitioned.partition, shape); !fits.ok()) {
        return InvalidArgument("--split=", rule.text, ": tensor ", name, " has shape ",
                               ShapeToString(shape), ": ", fits.message());
      }
    }
    result.push_back(partitioned);
  }
  return result;
}

}  // namespace tessera::ckpt
