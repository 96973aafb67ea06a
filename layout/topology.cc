#include "layout/topology.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

// Sets the field that a part such as "dp4" or "sp" names.
bool ApplyPart(absl::string_view part, Topology& topology) {
  if (part == "sp") {
    topology.sequence_parallel = true;
    return true;
  }
  const size_t digits = part.find_first_of("0123456789");
  int value = 0;
  if (digits == absl::string_view::npos || !absl::SimpleAtoi(part.substr(digits), &value)) {
    return false;
  }
  const absl::string_view name = part.substr(0, digits);
  if (name == "dp")
    topology.data = value;
  else if (name == "tp")
    topology.tensor = value;
  else if (name == "pp")
    topology.pipeline = value;
  else if (name == "vpp")
    topology.virtual_pipeline = value;
  else if (name == "zero")
    topology.zero_stage = value;
  else
    return false;
  return true;
}

}  // namespace

int Topology::size(Axis axis) const {
  switch (axis) {
    case Axis::kTensor:
      return tensor;
    case Axis::kData:
      return data;
    case Axis::kPipeline:
      break;
  }
  return pipeline;
}

Coordinate Topology::CoordinateOf(int rank) const {
  assert(rank >= 0 && rank < world_size());
  return {
      .tensor = rank % tensor, .data = rank / tensor % data, .pipeline = rank / (tensor * data)};
}

int Topology::RankOf(const Coordinate& coordinate) const {
  return (coordinate.pipeline * data + coordinate.data) * tensor + coordinate.tensor;
}

std::vector<int> Topology::GroupOf(int rank, Axis axis) const {
  Coordinate coordinate = CoordinateOf(rank);
  int& moving = axis == Axis::kTensor ? coordinate.tensor
                : axis == Axis::kData ? coordinate.data
                                      : coordinate.pipeline;
  std::vector<int> group;
  for (moving = 0; moving < size(axis); ++moving) group.push_back(RankOf(coordinate));
  return group;
}

std::string ToString(const Topology& topology) {
  std::string text;
  const auto add = [&text](absl::string_view name, int value, int unsaid) {
    if (value != unsaid) absl::StrAppend(&text, text.empty() ? "" : "_", name, value);
  };
  add("dp", topology.data, 1);
  add("zero", topology.zero_stage, 0);
  add("tp", topology.tensor, 1);
  add("pp", topology.pipeline, 1);
  add("vpp", topology.virtual_pipeline, 1);
  if (topology.sequence_parallel) absl::StrAppend(&text, text.empty() ? "" : "_", "sp");
  return text.empty() ? "single" : text;
}

absl::StatusOr<Topology> ParseTopology(std::string_view text) {
  Topology topology;
  if (text == "single") return topology;
  const absl::string_view whole(text.data(), text.size());
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("topology \"", whole, "\": ", why...));
  };
  std::set<absl::string_view> names;
  for (const absl::string_view part : absl::StrSplit(whole, '_')) {
    if (!ApplyPart(part, topology)) {
      return refuse("\"", part,
                    "\" is unknown: expected dpN, zeroN, tpN, ppN, vppN, sp joined by _, ",
                    "or single, or auto");
    }
    const absl::string_view name = part.substr(0, part.find_first_of("0123456789"));
    if (!names.insert(name).second) return refuse(name, " is given twice");
  }
  const absl::Status valid = ValidateSizes(topology);
  if (!valid.ok()) return refuse(valid.message());
  return topology;
}

absl::Status ValidateSizes(const Topology& topology) {
  constexpr int kMaxRanks = 1 << 24;
  for (const auto& [name, size] : std::array<std::pair<const char*, int>, 4>{
           {{"tensor_model_parallel_size", topology.tensor},
            {"data_parallel_size", topology.data},
            {"pipeline_model_parallel_size", topology.pipeline},
            {"num_virtual_stages_per_pipeline_rank", topology.virtual_pipeline}}}) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat(name, " = ", size, " is below 1"));
  }
  // Divided, since the product of mistyped sizes may overflow.
  if (topology.data > kMaxRanks / topology.tensor / topology.pipeline) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor_model_parallel_size = ", topology.tensor, " * data_parallel_size = ", topology.data,
        " * pipeline_model_parallel_size = ", topology.pipeline, " is more than ", kMaxRanks,
        " processes"));
  }
  if (topology.zero_stage < 0 || topology.zero_stage > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_stage = ", topology.zero_stage, " is none of 0, 1, 2"));
  }
  if (topology.virtual_pipeline > 1 && topology.pipeline == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_virtual_stages_per_pipeline_rank = ", topology.virtual_pipeline,
                     " needs pipeline_model_parallel_size above 1"));
  }
  if (topology.sequence_parallel && topology.tensor == 1) {
    return absl::InvalidArgumentError("sequence_parallel needs tensor_model_parallel_size above 1");
  }
  if (topology.virtual_pipeline > kMaxRanks / topology.pipeline) {
    return absl::InvalidArgumentError(
        absl::StrCat("pipeline_model_parallel_size = ", topology.pipeline,
                     " * num_virtual_stages_per_pipeline_rank = ", topology.virtual_pipeline,
                     " is more than ", kMaxRanks, " pipeline chunks"));
  }
  return absl::OkStatus();
}

ChunkLayers LayersOfChunk(int64_t num_layers, int64_t head_layers, const Topology& topology,
                          int pipeline, int chunk) {
  const int64_t stages = topology.stages();
  const int64_t stage = int64_t{chunk} * topology.pipeline + pipeline;
  assert(stage >= 0 && stage < stages && num_layers >= stages);
  ChunkLayers layers = {
      .first = 0, .last = num_layers, .has_embedding = stage == 0, .has_head = stage == stages - 1};
  if (stages == 1) return layers;
  const int64_t of_last = std::max<int64_t>((num_layers + head_layers) / stages - head_layers, 1);
  const int64_t others = stages - 1, of_others = num_layers - of_last;
  const int64_t each = of_others / others, left_over = of_others % others;
  // The virtual stages [others - left_over, others) have one layer more.
  const auto begin = [&](int64_t at) {
    return at * each + std::max<int64_t>(at - (others - left_over), 0);
  };
  layers.first = begin(stage);
  if (!layers.has_head) layers.last = begin(stage + 1);
  return layers;
}

}  // namespace tessera
