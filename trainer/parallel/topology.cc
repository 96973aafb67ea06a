#include "trainer/parallel/topology.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "trainer/parallel/micro_batches.h"

namespace tessera {
namespace {

// "num_attention_heads = 8 is no multiple of tensor_model_parallel_size = 3".
absl::Status Refuse(absl::string_view what, int64_t value, absl::string_view by, int64_t divisor) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " = ", value, " is no multiple of ", by, " = ", divisor));
}

absl::Status ValidateShards(const Topology& topology, int exact_tp_shards) {
  if (exact_tp_shards == 0) return absl::OkStatus();
  if (!IsPowerOfTwo(exact_tp_shards)) {
    return absl::InvalidArgumentError(
        absl::StrCat("exact_tp_shards = ", exact_tp_shards, " is no power of two"));
  }
  if (exact_tp_shards % topology.tensor != 0) {  // also where there are fewer shards than ranks
    return Refuse("exact_tp_shards", exact_tp_shards, "tensor_model_parallel_size",
                  topology.tensor);
  }
  return absl::OkStatus();
}

// What the number of virtual shards comes from.
absl::string_view ShardsName(int exact_tp_shards) {
  return exact_tp_shards > 0 ? "exact_tp_shards" : "tensor_model_parallel_size";
}

absl::Status ValidateModel(const Topology& topology, const ModelConfig& model,
                           int exact_tp_shards) {
  const int shards = VirtualShards(topology, exact_tp_shards);
  for (const auto& [name, size] : std::array<std::pair<const char*, int64_t>, 3>{
           {{"num_attention_heads", model.num_attention_heads()},
            {"num_query_groups", model.num_query_groups()},
            {"ffn_hidden_size", model.ffn_hidden_size()}}}) {
    if (size % shards != 0) return Refuse(name, size, ShardsName(exact_tp_shards), shards);
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

absl::Status ValidateBatch(const Topology& topology, const BatchSizes& batch, int exact_tp_shards) {
  for (const auto& [name, size] :
       std::array<std::pair<const char*, int64_t>, 3>{{{"micro_batch_size", batch.micro_batch},
                                                       {"global_batch_size", batch.global_batch},
                                                       {"seq_length", batch.sequence_length}}}) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat(name, " = ", size, " is below 1"));
  }
  absl::Status status =
      CheckMicroBatches(batch.global_batch, batch.micro_batch, topology.data, topology.zero_stage,
                        /*exact=*/exact_tp_shards > 0);
  if (!status.ok()) return status;
  const int64_t micro_batches = batch.global_batch / (batch.micro_batch * topology.data);
  if (topology.virtual_pipeline > 1 && micro_batches % topology.pipeline != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_virtual_stages_per_pipeline_rank = ", topology.virtual_pipeline,
        " needs global_batch_size / (micro_batch_size * data_parallel_size) = ", micro_batches,
        " micro-batches to be a multiple of pipeline_model_parallel_size = ", topology.pipeline));
  }
  // Gradients of norms are added over this many blocks of rows; sequence parallelism gives each
  // rank its blocks.
  const int64_t rows = batch.micro_batch * batch.sequence_length;
  const int shards = VirtualShards(topology, exact_tp_shards);
  if (rows % shards != 0) {
    return Refuse("micro_batch_size * seq_length", rows, ShardsName(exact_tp_shards), shards);
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

int64_t HeadInLayers(const ModelConfig& model) {
  const double c = static_cast<double>(model.hidden_size());
  const double f = static_cast<double>(model.ffn_hidden_size());
  const double kv = c / static_cast<double>(model.num_attention_heads()) *
                    static_cast<double>(model.num_query_groups());
  const double mlp_matrices = model.architecture() == ModelConfig::LLAMA3 ? 3 : 2;
  const double layer = 2 * c * c + 2 * c * kv + mlp_matrices * c * f;
  return std::llround(static_cast<double>(model.vocab_size()) * c / layer);
}

ChunkLayers LayersOfChunk(int64_t num_layers, int64_t head_layers, const Topology& topology,
                          int pipeline, int chunk) {
  const int64_t stages = int64_t{topology.pipeline} * topology.virtual_pipeline;
  const int64_t stage = int64_t{chunk} * topology.pipeline + pipeline;
  CHECK(stage >= 0 && stage < stages && num_layers >= stages)
      << num_layers << " layers, stage " << stage << " of " << stages;
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

int VirtualShards(const Topology& topology, int exact_tp_shards) {
  return exact_tp_shards > 0 ? exact_tp_shards : topology.tensor;
}

absl::Status ValidateSizes(const Topology& topology) {
  constexpr int kMostRanks = 1 << 24;
  for (const auto& [name, size] : std::array<std::pair<const char*, int>, 4>{
           {{"tensor_model_parallel_size", topology.tensor},
            {"data_parallel_size", topology.data},
            {"pipeline_model_parallel_size", topology.pipeline},
            {"num_virtual_stages_per_pipeline_rank", topology.virtual_pipeline}}}) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat(name, " = ", size, " is below 1"));
  }
  // Divided, since the product of what a slip of the finger makes would overflow.
  if (topology.data > kMostRanks / topology.tensor / topology.pipeline) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor_model_parallel_size = ", topology.tensor, " * data_parallel_size = ", topology.data,
        " * pipeline_model_parallel_size = ", topology.pipeline, " is more than ", kMostRanks,
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
  return absl::OkStatus();
}

absl::Status ValidateTopology(const Topology& topology, const ModelConfig& model,
                              const BatchSizes& batch, int exact_tp_shards) {
  // In this order: later checks divide by what earlier ones have found to be positive.
  absl::Status status = ValidateSizes(topology);
  if (status.ok()) status = ValidateShards(topology, exact_tp_shards);
  if (status.ok()) status = ValidateModel(topology, model, exact_tp_shards);
  if (status.ok()) status = ValidateBatch(topology, batch, exact_tp_shards);
  return status;
}

}  // namespace tessera
