#ifndef TESSERA_CHECKPOINT_TOOLS_SHARDING_RULES_H_
#define TESSERA_CHECKPOINT_TOOLS_SHARDING_RULES_H_

// How a parameter is shared out, by its name: the names of Hugging Face for GPT-2 and Llama and
// what follows them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/layout/box.h"

namespace tessera::ckpt {

// How tensor parallelism cuts a parameter, and which pipeline stage has it.
struct Sharding {
  enum class Place { kFirstStage, kLayer, kLastStage };
  Place place = Place::kFirstStage;
  int64_t layer = -1;  // global index, in a layer
  int dim = -1;        // that is cut; -1: every rank has the whole
  int sections = 1;    // equal parts of the dim, each of which is cut: q, k and v in one matrix
  bool is_vocabulary = false;  // rows are padded before they are cut
  std::string_view fused;      // neighbours in a layer with the same text are one buffer in memory
};

// "PATTERN=DIM": parameters that PATTERN matches, where * is any text, are cut along DIM, or stay
// whole where it is "whole".
struct SplitOverride {
  std::string pattern;
  int dim = -1;
};

// InvalidArgument: one sentence.
absl::StatusOr<SplitOverride> ParseSplitOverride(std::string_view text);

// True if `text` is `pattern` with something in the place of each *.
bool MatchesPattern(std::string_view pattern, std::string_view text);

// The rule for a name; the last override that matches counts. Of unknown names those with two dims
// or more are cut along the first. InvalidArgument for an override with a dim that the parameter
// does not have.
absl::StatusOr<Sharding> FindSharding(std::string_view name, const Shape& shape,
                                      const std::vector<SplitOverride>& overrides);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TOOLS_SHARDING_RULES_H_
