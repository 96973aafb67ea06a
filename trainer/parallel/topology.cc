#include "trainer/parallel/topology.h"

#include <array>
#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

namespace tessera {
namespace {

absl::Status Refuse(std::string_view what, int64_t value, std::string_view by, int64_t divisor) {
  return absl::InvalidArgumentError(
      absl::StrCat(absl::string_view(what.data(), what.size()), " = ", value, " is no multiple of ",
                   absl::string_view(by.data(), by.size()), " = ", divisor));
}

absl::Status ValidateSizes(const Topology& topology) {
  for (const auto& [name, size] : std::array<std::pair<const char*, int>, 4>{
           {{"tensor_model_parallel_size", topology.tensor},
            {"data_parallel_size", topology.data},
            {"pipeline_model_parallel_size", topology.pipeline},
            {"num_virtual_stages_per_pipeline_rank", topology.virtual_pipeline}}}) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat(name, " = ", size, " is below 1"));
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
  return absl::OkStatus();
}

absl::Status ValidateModel(const Topology& topology, const ModelConfig& model) {
  const int64_t tensor = topology.tensor;
  constexpr char kTensor[] = "tensor_model_parallel_size";
  for (const auto& [name, size] : std::array<std::pair<const char*, int64_t>, 3>{
           {{"num_attention_heads", model.num_attention_heads()},
            {"num_query_groups", model.num_query_groups()},
            {"ffn_hidden_size", model.ffn_hidden_size()}}}) {
    if (size % tensor != 0) return Refuse(name, size, kTensor, tensor);
  }
  const int64_t chunks = int64_t{topology.pipeline} * topology.virtual_pipeline;
  if (model.num_layers() < chunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_layers = ", model.num_layers(), " is fewer than the ", chunks,
                     " pipeline chunks (pipeline_model_parallel_size = ", topology.pipeline,
                     ", num_virtual_stages_per_pipeline_rank = ", topology.virtual_pipeline, ")"));
  }
  return absl::OkStatus();
}

absl::Status ValidateBatch(const Topology& topology, const BatchSizes& batch) {
  const int64_t pass = batch.micro_batch * topology.data;
  if (batch.global_batch % pass != 0) {
    return Refuse("global_batch_size", batch.global_batch, "micro_batch_size * data_parallel_size",
                  pass);
  }
  const int64_t micro_batches = batch.global_batch / pass;
  if (topology.virtual_pipeline > 1 && micro_batches % topology.pipeline != 0) {
    return Refuse("the number of micro-batches of a step (with virtual stages)", micro_batches,
                  "pipeline_model_parallel_size", topology.pipeline);
  }
  if (topology.sequence_parallel && batch.sequence_length % topology.tensor != 0) {
    return Refuse("seq_length (with sequence_parallel)", batch.sequence_length,
                  "tensor_model_parallel_size", topology.tensor);
  }
  return absl::OkStatus();
}

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
      return pipeline;
  }
  LOG(FATAL) << "no such axis: " << static_cast<int>(axis);
}

Coordinate Topology::CoordinateOf(int rank) const {
  CHECK(rank >= 0 && rank < world_size()) << rank << " of " << world_size();
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
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '_')) {
    if (!ApplyPart(part, topology)) {
      return absl::InvalidArgumentError(
          absl::StrCat("topology \"", absl::string_view(text.data(), text.size()), "\": \"", part,
                       "\" is none of dpN, zeroN, tpN, ppN, vppN, sp"));
    }
  }
  const absl::Status valid = ValidateSizes(topology);
  if (!valid.ok()) return valid;
  return topology;
}

absl::Status ValidateTopology(const Topology& topology, const ModelConfig& model,
                              const BatchSizes& batch) {
  // In this order: later checks divide by what earlier ones have found to be positive.
  absl::Status status = ValidateSizes(topology);
  if (status.ok()) status = ValidateModel(topology, model);
  if (status.ok()) status = ValidateBatch(topology, batch);
  return status;
}

}  // namespace tessera
