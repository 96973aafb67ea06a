#ifndef TESSERA_OPERATIONS_PARTITION_RULES_H_
#define TESSERA_OPERATIONS_PARTITION_RULES_H_

// The ways in which the tensors of a checkpoint may be cut: by its manifest, by rules from the
// command line or, without either, by a guess.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "layout/partition.h"

namespace tessera::ckpt {

// A rule for the parameters whose names match its pattern, and for their optimizer state.
struct PartitionRule {
  enum class Place { kUnchanged, kLayer, kBeforeLayers, kAfterLayers, kBothEnds };
  std::string text;        // as given, for messages
  std::string pattern;     // * is any text, # the number of the layer
  std::optional<int> dim;  // the dim to cut; -1: none; unset: unchanged
  int sections = 1;        // of `dim`
  bool padded = false;     // rows of `dim` 0 are padded in memory
  Place place = Place::kUnchanged;
};

// Parses "PATTERN=PART,PART,...", where a PART is the number of a dim ("0"), a dim in equal
// sections ("1/3"), "whole", "padded", "first", "last", "both", or "layer", which a # in PATTERN
// implies. InvalidArgument: one sentence.
absl::StatusOr<PartitionRule> ParsePartitionRule(std::string_view text);

// Returns whether `text` is `pattern` with some text for each * and a number for each #. The last
// number is the layer.
bool MatchesPattern(std::string_view pattern, std::string_view text, int64_t& layer);

// A tensor that holds elements, and how it may be cut.
struct PartitionedTensor {
  const LogicalTensor* tensor = nullptr;
  Partition partition;
  bool cut_is_known = false;  // otherwise guessed: along the first dim if there are two or more
  int state = -1;             // index of this state of its parameter's optimizer; -1: no such state
};

// Returns the tensors of a manifest, without aliases, in its order. Rules apply in their order, and
// take precedence over the manifest. Precondition: a valid manifest, which must outlive the result.
// InvalidArgument for a rule that does not fit a parameter that it matches.
absl::StatusOr<std::vector<PartitionedTensor>> PartitionTensors(
    const Manifest& manifest, const std::vector<PartitionRule>& rules);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_PARTITION_RULES_H_
