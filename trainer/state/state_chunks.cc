#include "trainer/state/state_chunks.h"

#include <cstddef>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera {
namespace {

// Collects shards by logical name, in order of first appearance.
class StateDictBuilder {
 public:
  // Adds elements [begin, begin + values.elements()) of a parameter; `suffix` is empty for the
  // weight itself.
  void Add(const Parameter& parameter, int64_t begin, const TensorView& values,
           ckpt::TensorRole role, std::string_view suffix) {
    const int64_t element_size = ElementSize(values.dtype());
    void* origin = values.as<char>() - begin * element_size;
    const int64_t end = begin + (values.empty() ? 0 : values.elements());
    for (LogicalShards& logical : ShardsOfRange(parameter, begin, end, origin, element_size)) {
      ckpt::ShardedTensor& tensor =
          Find(suffix.empty() ? logical.piece->name : StateName(logical.piece->name, suffix));
      tensor.role = role;
      tensor.dtype = values.dtype();
      tensor.global_shape = logical.piece->global_shape;
      tensor.padded_shape = logical.piece->padded_global_shape;
      tensor.partition = logical.piece->partition;
      for (ckpt::Shard& shard : logical.shards) tensor.shards.push_back(std::move(shard));
    }
  }

  void AddAlias(const Parameter& parameter) {
    const ckpt::ShardedTensor original = Find(parameter.pieces[0].name);
    ckpt::ShardedTensor& alias = Find(parameter.tied_name);
    alias.role = original.role;
    alias.dtype = original.dtype;
    alias.global_shape = original.global_shape;
    alias.alias_of = original.name;
  }

  ckpt::StateDict Take() { return std::move(state_); }

 private:
  ckpt::ShardedTensor& Find(const std::string& name) {
    const auto [entry, is_new] = index_.emplace(name, state_.tensors.size());
    if (is_new) state_.tensors.push_back({.name = name});
    return state_.tensors[entry->second];
  }

  ckpt::StateDict state_;
  std::unordered_map<std::string, size_t> index_;
};

TensorView OnHost(const StateChunk& chunk, const TensorView& memory) {
  return chunk.mirror == nullptr ? memory : chunk.mirror->OnHost(memory);
}

struct NamedParameter {
  std::string name;
  bool weight_decay = true;
};

// Returns a rank's description of its logical parameters: one line each, "chunk decays name".
std::string DescribeParameters(StateChunks chunks) {
  std::string lines;
  for (size_t c = 0; c < chunks.size(); ++c) {
    std::unordered_set<std::string> seen;
    for (const Parameter* parameter : chunks[c].parameters->parameters()) {
      for (const ParameterPiece& piece : parameter->pieces) {
        if (!seen.insert(piece.name).second) continue;
        absl::StrAppend(&lines, c, parameter->weight_decay ? " 1 " : " 0 ", piece.name, "\n");
      }
    }
  }
  return lines;
}

// Returns every logical parameter once, in the model's order: by chunk, and within a chunk by rank,
// because pipeline stages are in the order of ranks.
absl::StatusOr<std::vector<NamedParameter>> MergeParameters(const std::vector<std::string>& ranks) {
  std::map<int, std::vector<NamedParameter>> by_chunk;
  for (const std::string& lines : ranks) {
    for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 2));
      int chunk = 0;
      if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &chunk)) {
        return absl::InternalError(absl::StrCat("a rank describes a parameter as \"", line, "\""));
      }
      by_chunk[chunk].push_back({.name = std::string(fields[2]), .weight_decay = fields[1] == "1"});
    }
  }
  std::vector<NamedParameter> merged;
  std::unordered_set<std::string> seen;
  for (auto& [chunk, parameters] : by_chunk) {
    for (NamedParameter& parameter : parameters) {
      if (seen.insert(parameter.name).second) merged.push_back(std::move(parameter));
    }
  }
  return merged;
}

// Converts a box from the coordinates of the local buffer to those of the piece's logical tensor.
Box ToLogical(const Box& local, const ParameterPiece& piece) {
  Box logical = local;
  for (size_t dim = 0; dim < logical.global_offset.size(); ++dim) {
    logical.global_offset[dim] += piece.global_offset[dim] - piece.local_offset[dim];
  }
  return logical;
}

int64_t FlatIndex(const std::vector<int64_t>& offset, const std::vector<int64_t>& strides) {
  int64_t index = 0;
  for (size_t dim = 0; dim < offset.size(); ++dim) index += offset[dim] * strides[dim];
  return index;
}

}  // namespace

std::string StateName(std::string_view parameter, std::string_view state) {
  return std::string(parameter) + "." + std::string(state);
}

std::vector<TensorView> StateBuffers(const StateChunk& chunk) {
  std::vector<TensorView> buffers = {chunk.parameters->values()};
  if (chunk.optimizer == nullptr) return buffers;
  for (const TensorView& buffer : chunk.optimizer->StateBuffers()) buffers.push_back(buffer);
  return buffers;
}

ckpt::StateDict WeightState(StateChunks chunks) {
  StateDictBuilder builder;
  for (const StateChunk& chunk : chunks) {
    for (const Parameter* parameter : chunk.parameters->parameters()) {
      builder.Add(*parameter, 0, OnHost(chunk, parameter->value), ckpt::TensorRole::kWeight, "");
      if (!parameter->tied_name.empty()) builder.AddAlias(*parameter);
    }
  }
  return builder.Take();
}

ckpt::StateDict OptimizerTensors(StateChunks chunks) {
  struct Kind {
    TensorView AdamW::ParameterState::*memory;
    ckpt::TensorRole role;
    std::string_view name;
  };
  constexpr Kind kKinds[] = {
      {&AdamW::ParameterState::master, ckpt::TensorRole::kMasterWeight, kMaster},
      {&AdamW::ParameterState::exp_avg, ckpt::TensorRole::kOptimizerState, kExpAvg},
      {&AdamW::ParameterState::exp_avg_sq, ckpt::TensorRole::kOptimizerState, kExpAvgSq}};
  StateDictBuilder builder;
  // Files have the order of this description. It is the order of memory, so that a save writes the
  // optimizer's buffers as they lie.
  for (const StateChunk& chunk : chunks) {
    const std::vector<Parameter*>& all = chunk.parameters->parameters();
    for (const Kind& kind : kKinds) {
      if (kind.role == ckpt::TensorRole::kMasterWeight && !chunk.optimizer->has_master()) continue;
      for (size_t i = 0; i < all.size(); ++i) {
        const AdamW::ParameterState state = chunk.optimizer->State(static_cast<int>(i));
        builder.Add(*all[i], state.begin, OnHost(chunk, state.*kind.memory), kind.role, kind.name);
      }
    }
  }
  return builder.Take();
}

absl::StatusOr<ckpt::OptimizerState> OptimizerNames(StateChunks chunks,
                                                    const OptimizerConfig& config,
                                                    ckpt::ProcessGroup& group,
                                                    absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                           group.Gather(DescribeParameters(chunks), timeout));
  ckpt::OptimizerState names;
  if (group.rank() != 0) return names;
  names.set_algorithm("adamw");
  for (const bool decays : {true, false}) {
    auto& options = *names.add_groups()->mutable_options();
    options["weight_decay"] = decays ? config.weight_decay() : 0;
    options["beta1"] = config.adam_beta1();
    options["beta2"] = config.adam_beta2();
    options["epsilon"] = config.adam_eps();
  }
  const bool has_master = chunks.front().optimizer->has_master();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<NamedParameter> parameters, MergeParameters(ranks));
  for (const NamedParameter& parameter : parameters) {
    ckpt::OptimizerParameter& entry = *names.add_parameters();
    entry.set_parameter(parameter.name);
    entry.set_group(parameter.weight_decay ? 0 : 1);
    auto& states = *entry.mutable_states();
    for (const std::string_view state : {kExpAvg, kExpAvgSq}) {
      states[std::string(state)] = StateName(parameter.name, state);
    }
    if (has_master) states[std::string(kMaster)] = StateName(parameter.name, kMaster);
  }
  return names;
}

void KeepForeignNames(const ckpt::Manifest& manifest, ckpt::OptimizerState& names) {
  std::unordered_map<std::string, std::string> first_names;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    if (!tensor.alias_of().empty()) first_names[tensor.name()] = tensor.alias_of();
  }
  std::unordered_map<std::string, const ckpt::OptimizerParameter*> known;
  for (const ckpt::OptimizerParameter& parameter : manifest.optimizer().parameters()) {
    const auto first = first_names.find(parameter.parameter());
    known[first == first_names.end() ? parameter.parameter() : first->second] = &parameter;
  }
  for (ckpt::OptimizerParameter& parameter : *names.mutable_parameters()) {
    const auto at = known.find(parameter.parameter());
    if (at != known.end()) *parameter.mutable_foreign_names() = at->second->foreign_names();
  }
}

std::vector<LogicalShards> ShardsOfRange(const Parameter& parameter, int64_t begin, int64_t end,
                                         void* origin, int64_t element_size_bytes) {
  const std::vector<int64_t> strides = ContiguousStrides(parameter.shape);
  const std::vector<Box> boxes = FlatRangeToBoxes(WholeBox(parameter.shape), begin, end);
  std::vector<LogicalShards> result;
  for (const ParameterPiece& piece : parameter.pieces) {
    LogicalShards logical{.piece = &piece, .shards = {}};
    const Box piece_box{piece.local_offset, piece.shape};
    for (const Box& box : boxes) {
      const std::optional<Box> common = Intersect(box, piece_box);
      if (!common.has_value()) continue;
      logical.shards.push_back(
          {.box = ToLogical(*common, piece),
           .data = static_cast<char*>(origin) +
                   FlatIndex(common->global_offset, strides) * element_size_bytes,
           .strides = strides});
    }
    result.push_back(std::move(logical));
  }
  return result;
}

}  // namespace tessera
