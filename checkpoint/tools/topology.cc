#include "checkpoint/tools/topology.h"

#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::ckpt {
namespace {

// Where plans are made for every rank, a slip of the finger should not ask for billions.
constexpr int64_t kMostRanks = 1 << 20;

// Sets what a part such as "dp4" names.
bool ApplyPart(absl::string_view part, ParallelSizes& sizes) {
  if (part == "sp") return true;
  const size_t digits = part.find_first_of("0123456789");
  int value = 0;
  if (digits == absl::string_view::npos || !absl::SimpleAtoi(part.substr(digits), &value)) {
    return false;
  }
  const absl::string_view name = part.substr(0, digits);
  for (const auto& [known, size] :
       std::array<std::pair<absl::string_view, int*>, 5>{{{"dp", &sizes.data},
                                                          {"tp", &sizes.tensor},
                                                          {"pp", &sizes.pipeline},
                                                          {"vpp", &sizes.virtual_pipeline},
                                                          {"zero", &sizes.zero_stage}}}) {
    if (name != known) continue;
    *size = value;
    return true;
  }
  return false;
}

// What is wrong with the sizes; empty if nothing is.
std::string FindProblem(const ParallelSizes& sizes) {
  for (const auto& [name, size] :
       std::array<std::pair<const char*, int>, 4>{{{"dp", sizes.data},
                                                   {"tp", sizes.tensor},
                                                   {"pp", sizes.pipeline},
                                                   {"vpp", sizes.virtual_pipeline}}}) {
    if (size < 1) return absl::StrCat(name, size, " is below 1");
  }
  if (sizes.zero_stage > 2) return absl::StrCat("zero", sizes.zero_stage, " is none of 0, 1, 2");
  if (sizes.virtual_pipeline > 1 && sizes.pipeline == 1) return "vpp needs pp above 1";
  // Of factors of at most kMostRanks, two by two, so that nothing overflows.
  int64_t ranks = 1;
  for (const int size : {sizes.data, sizes.tensor, sizes.pipeline}) {
    ranks *= size;
    if (size > kMostRanks || ranks > kMostRanks) {
      return absl::StrCat("more than ", kMostRanks, " ranks");
    }
  }
  if (sizes.virtual_pipeline > kMostRanks / sizes.pipeline) {
    return absl::StrCat("more than ", kMostRanks, " pipeline chunks");
  }
  return "";
}

}  // namespace

absl::StatusOr<ParallelSizes> ParseTopology(std::string_view text) {
  ParallelSizes sizes;
  if (text == "single") return sizes;
  const absl::string_view all(text.data(), text.size());
  for (const absl::string_view part : absl::StrSplit(all, '_')) {
    if (!ApplyPart(part, sizes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "topology \"", all, "\": \"", part, "\" is none of dpN, zeroN, tpN, ppN, vppN, sp"));
    }
  }
  const std::string problem = FindProblem(sizes);
  if (problem.empty()) return sizes;
  return absl::InvalidArgumentError(absl::StrCat("topology \"", all, "\": ", problem));
}

Topology ToManifest(const ParallelSizes& sizes) {
  Topology topology;
  topology.set_data_parallel(sizes.data);
  topology.set_tensor_parallel(sizes.tensor);
  topology.set_pipeline_parallel(sizes.pipeline);
  topology.set_virtual_pipeline(sizes.virtual_pipeline);
  topology.set_zero_stage(sizes.zero_stage);
  topology.set_rank_order("tp-dp-pp");
  return topology;
}

}  // namespace tessera::ckpt
