#include "checkpoint/plan/rank_states.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/plan/box_index.h"
#include "layout/coverage.h"

namespace tessera::ckpt {
namespace {

absl::Status ProblemsStatus(absl::string_view what, const std::vector<std::string>& problems) {
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ":\n  ", JoinFirst(problems, "\n  ")));
}

class Checker {
 public:
  explicit Checker(bool check_writable) : check_writable_(check_writable) {}

  void Check(const ShardedTensor& tensor) {
    name_ = tensor.name;
    if (tensor.name.empty()) Report("a tensor has no name");
    if (!names_.insert(tensor.name).second) Report("described twice");
    const TensorRole role = tensor.role;
    if (role == TensorRole::kUnspecified || !RoleProto_IsValid(ToProto(role))) {
      Report(absl::StrCat("unknown role ", static_cast<int>(role)));
    }
    const DType dtype = DTypeOf(tensor);
    const size_t element_bytes = ElementSize(dtype);
    if (element_bytes == 0) {
      Report(dtype == DType::kUnspecified
                 ? std::string("no dtype: neither the tensor nor a shard of it has one")
                 : absl::StrCat("unknown dtype ", static_cast<int>(dtype)));
      return;
    }
    const auto bytes = CheckedByteCount(tensor.global_shape, element_bytes);
    if (!bytes.ok()) {
      Report(bytes.status().message());
      return;
    }
    if (!tensor.padded_shape.empty() && tensor.padded_shape.size() != tensor.global_shape.size()) {
      Report(absl::StrCat("padded shape ", ShapeToString(tensor.padded_shape),
                          " has another rank than global shape ",
                          ShapeToString(tensor.global_shape)));
    }
    if (!tensor.alias_of.empty() && !tensor.shards.empty()) Report("an alias carries no shards");
    if (tensor.partition) {
      if (!tensor.alias_of.empty()) Report("an alias carries no partition");
      const absl::Status fits = CheckPartition(*tensor.partition, tensor.global_shape);
      if (!fits.ok()) Report(fits.message());
    }
    if (CheckShards(tensor)) CheckDisjoint(tensor);
  }

  absl::Status Finish() { return ProblemsStatus("the state dict is not valid", problems_); }

 private:
  void Report(absl::string_view problem) {
    problems_.push_back(absl::StrCat("tensor ", name_, ": ", problem));
  }

  bool CheckShards(const ShardedTensor& tensor) {
    bool all_inside = true;
    for (const Shard& shard : tensor.shards) {
      const absl::Status inside = CheckBoxInside(tensor.global_shape, shard.box);
      if (!inside.ok()) {
        Report(inside.message());
        all_inside = false;
        continue;
      }
      if (shard.data == nullptr && !shard.box.empty()) {
        Report(absl::StrCat("no memory for box ", ToString(shard.box)));
      }
      if (!shard.strides.empty() && shard.strides.size() != shard.box.shape.size()) {
        Report(
            absl::StrCat("box ", ToString(shard.box), " has ", shard.strides.size(), " strides"));
        continue;
      }
      CheckMemory(shard, DTypeOf(tensor));
    }
    return all_inside;
  }

  void CheckMemory(const Shard& shard, DType dtype) {
    const DType in_memory = shard.dtype;
    if (in_memory != DType::kUnspecified && in_memory != dtype) {
      Report(absl::StrCat("box ", ToString(shard.box), " is ", DTypeText(in_memory),
                          " in memory, the tensor is ", DTypeText(dtype)));
    }
    if (check_writable_ && shard.read_only) {
      Report(absl::StrCat("box ", ToString(shard.box), " is to be loaded into read-only memory"));
    }
    if (shard.memory_elements < 0 || shard.box.empty()) return;
    // The offsets of the elements farthest before and behind the first element. They have 128 bits,
    // as strides may be anything.
    __int128 first = 0, last = 0;
    const std::vector<int64_t> strides = ShardStrides(shard);
    for (size_t d = 0; d < strides.size(); ++d) {
      const __int128 reach = static_cast<__int128>(strides[d]) * (shard.box.shape[d] - 1);
      (reach < 0 ? first : last) += reach;
    }
    if (first >= 0 && last < shard.memory_elements) return;
    Report(absl::StrCat("box ", ToString(shard.box), " does not fit into its memory of ",
                        shard.memory_elements, " elements"));
  }

  static std::string DTypeText(DType dtype) {
    return DTypeProto_IsValid(ToProto(dtype)) ? ProtoName(dtype)
                                              : absl::StrCat(static_cast<int>(dtype));
  }

  void CheckDisjoint(const ShardedTensor& tensor) {
    if (tensor.shards.size() < 2) return;
    std::vector<Box> boxes;
    for (const Shard& shard : tensor.shards) boxes.push_back(shard.box);
    const BoxIndex index(boxes);
    for (size_t i = 0; i < boxes.size(); ++i) {
      index.ForEachOverlap(boxes[i], [&](size_t other, const Box&) {
        if (other <= i) return;
        Report(absl::StrCat("boxes ", ToString(boxes[i]), " and ", ToString(boxes[other]),
                            " of one process overlap"));
      });
    }
  }

  const bool check_writable_;
  std::string name_;
  // Not a table of Abseil, whose destructor frees what it does not have after a growth that threw.
  std::unordered_set<std::string_view> names_;
  std::vector<std::string> problems_;
};

absl::Status Check(const StateDict& state, bool check_writable) {
  Checker checker(check_writable);
  for (const ShardedTensor& tensor : state.tensors) checker.Check(tensor);
  return checker.Finish();
}

std::string Describe(const LogicalTensor& tensor) {
  std::string text =
      absl::StrCat(RoleProto_Name(tensor.role()), " ", DTypeProto_Name(tensor.dtype()), " ",
                   ShapeToString(GlobalShape(tensor)));
  if (tensor.padded_shape_size() > 0) {
    absl::StrAppend(&text, " padded to ",
                    ShapeToString({tensor.padded_shape().begin(), tensor.padded_shape().end()}));
  }
  if (!tensor.alias_of().empty()) absl::StrAppend(&text, " alias of ", tensor.alias_of());
  if (tensor.has_partition()) {
    absl::StrAppend(&text, " partition {", tensor.partition().ShortDebugString(), "}");
  }
  return text;
}

bool Agree(const LogicalTensor& a, const LogicalTensor& b) {
  return a.role() == b.role() && a.dtype() == b.dtype() && a.alias_of() == b.alias_of() &&
         std::ranges::equal(a.global_shape(), b.global_shape()) &&
         std::ranges::equal(a.padded_shape(), b.padded_shape()) &&
         a.has_partition() == b.has_partition() &&
         FromProto(a.partition()) == FromProto(b.partition());
}

bool ColumnsFit(const LogicalTensor& tensor) {
  const int64_t numbers = ShardCount(tensor) * tensor.global_shape_size();
  return tensor.shards().global_offset_size() == numbers && tensor.shards().shape_size() == numbers;
}

// Calls fn(serialized LogicalTensor) for each tensor of a serialized RankState. Returns false if it
// cannot be parsed. Copies nothing: few of the descriptions of thousands of ranks differ.
template <typename Function>
bool ForEachTensor(const std::string& description, Function&& fn) {
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(description.data()),
                                            static_cast<int>(description.size()));
  // A field of the wire format begins with its number, and with 2 for bytes of a given length.
  constexpr uint32_t kTensors = RankState::kTensorsFieldNumber << 3 | 2;
  while (const uint32_t tag = in.ReadTag()) {
    uint32_t length;
    if (tag != kTensors || !in.ReadVarint32(&length)) return false;
    const size_t begin = in.CurrentPosition();
    if (!in.Skip(static_cast<int>(length))) return false;
    fn(std::string_view(description).substr(begin, length));
  }
  return in.ConsumedEntireMessage();
}

class Merger {
 public:
  absl::Status AddRank(uint32_t rank, const std::string& description) {
    uint32_t local_tensor = 0;
    bool readable = true;
    const bool complete = ForEachTensor(description, [&](std::string_view bytes) {
      const auto [at, is_new] =
          by_bytes_.try_emplace(bytes, static_cast<uint32_t>(state_.descriptions.size()));
      if (is_new) {
        LogicalTensor& tensor = state_.descriptions.emplace_back().tensor;
        readable &= tensor.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) &&
                    ColumnsFit(tensor);
      }
      std::vector<Describer>& describers = state_.descriptions[at->second].describers;
      if (is_new || describers.back().rank != rank) describers.push_back({rank, local_tensor});
      ++local_tensor;
    });
    if (complete && readable) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("rank ", rank, " sent a description that cannot be parsed"));
  }

  MergedState Finish(std::vector<std::string>& problems) && {
    for (uint32_t d = 0; d < state_.descriptions.size(); ++d) MergeDescription(d, problems);
    for (MergedTensor& tensor : state_.tensors) {
      for (HeldBox& held : tensor.boxes) held.rank_set = RankSetOf(held);
    }
    state_.rank_sets = std::move(rank_sets_.sets);
    return std::move(state_);
  }

 private:
  using BoxMap = std::pmr::unordered_map<Box, size_t, BoxHash>;

  void MergeDescription(uint32_t d, std::vector<std::string>& problems) {
    Description& description = state_.descriptions[d];
    const LogicalTensor& tensor = description.tensor;
    const auto [at, is_new] = by_name_.try_emplace(tensor.name(), state_.tensors.size());
    if (is_new) {
      state_.tensors.push_back({d,
                                GlobalShape(tensor),
                                static_cast<size_t>(ElementSize(FromProto(tensor.dtype()))),
                                {}});
      boxes_.emplace_back(&nodes_);
    }
    const Description& first = state_.descriptions[state_.tensors[at->second].description];
    if (!is_new && !Agree(first.tensor, tensor)) {
      problems.push_back(absl::StrCat("tensor ", tensor.name(), ": rank ", first.describers[0].rank,
                                      " has ", Describe(first.tensor), ", rank ",
                                      description.describers[0].rank, " has ", Describe(tensor)));
      return;
    }
    std::vector<uint32_t> ranks;
    ranks.reserve(description.describers.size());
    for (const Describer& describer : description.describers) ranks.push_back(describer.rank);
    description.rank_set = rank_sets_.Add(std::move(ranks));
    AddShards(d, tensor, at->second);
  }

  void AddShards(uint32_t description, const LogicalTensor& tensor, size_t merged) {
    std::vector<HeldBox>& boxes = state_.tensors[merged].boxes;
    for (uint32_t s = 0; s < ShardCount(tensor); ++s) {
      Box box = ShardBox(tensor, s);
      if (box.empty()) continue;
      const auto [at, is_new] = boxes_[merged].try_emplace(box, boxes.size());
      if (is_new) boxes.push_back({std::move(box), {}, 0});
      boxes[at->second].shards.push_back({description, s});
    }
  }

  uint32_t RankSetOf(const HeldBox& held) {
    if (held.shards.size() == 1) return state_.descriptions[held.shards[0].description].rank_set;
    std::vector<uint32_t> ranks;
    for (const ShardRef& shard : held.shards) {
      const auto& more = rank_sets_.sets[state_.descriptions[shard.description].rank_set];
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    std::ranges::sort(ranks);
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return rank_sets_.Add(std::move(ranks));
  }

  MergedState state_;
  std::pmr::monotonic_buffer_resource nodes_;  // of the tables, which are never as small again
  std::pmr::unordered_map<std::string_view, uint32_t> by_bytes_{
      &nodes_};                                                         // indices of descriptions
  std::pmr::unordered_map<std::string_view, size_t> by_name_{&nodes_};  // indices of tensors
  RankSets rank_sets_;
  std::vector<BoxMap> boxes_;  // per tensor
};

std::vector<Box> BoxesOf(const MergedTensor& tensor) {
  std::vector<Box> boxes;
  boxes.reserve(tensor.boxes.size());
  for (const HeldBox& held : tensor.boxes) boxes.push_back(held.box);
  return boxes;
}

// Merges replicas that ranks have split differently (for example a tied embedding in the buckets of
// two pipeline stages): keeps the largest boxes whole and removes from the others what a larger one
// holds.
void RemovePartialOverlaps(MergedTensor& tensor) {
  std::ranges::stable_sort(tensor.boxes, std::greater(),
                           [](const HeldBox& b) { return ElementCount(b.box.shape); });
  const BoxIndex index(BoxesOf(tensor));
  std::vector<HeldBox> kept;
  for (size_t i = 0; i < tensor.boxes.size(); ++i) {
    const HeldBox& candidate = tensor.boxes[i];
    std::vector<Box> rest = {candidate.box};
    index.ForEachOverlap(candidate.box, [&](size_t other, const Box& common) {
      if (other >= i) return;
      std::vector<Box> next;
      for (const Box& box : rest) SubtractBox(box, common, next);
      rest = std::move(next);
    });
    for (Box& box : rest) kept.push_back({std::move(box), candidate.shards, candidate.rank_set});
  }
  tensor.boxes = std::move(kept);
}

uint32_t FirstRank(const MergedState& state, const HeldBox& held) {
  return state.rank_sets[held.rank_set][0];
}

std::string DescribeCoverageProblem(const MergedState& state, const MergedTensor& tensor,
                                    const CoverageProblem& problem, const std::vector<Box>& boxes) {
  std::string message =
      absl::StrCat("tensor ", state.DescriptionOf(tensor).name(), " ",
                   ShapeToString(tensor.global_shape), ": ", ToString(problem, boxes));
  if (problem.kind != CoverageProblem::Kind::kGap) {
    absl::StrAppend(&message, " (rank ", FirstRank(state, tensor.boxes[problem.first]), ")");
    return message;
  }
  std::vector<std::string> held;
  for (const HeldBox& box : tensor.boxes) {
    held.push_back(absl::StrCat("rank ", FirstRank(state, box), " ", ToString(box.box)));
  }
  absl::StrAppend(&message, "; held: ", held.empty() ? "nothing" : JoinFirst(held, ", "));
  return message;
}

// Proves that the tensor's boxes hold every element exactly once, after removing partial overlaps
// between ranks.
void ProveCoverage(const MergedState& state, MergedTensor& tensor,
                   std::vector<std::string>& problems) {
  const LogicalTensor& description = state.DescriptionOf(tensor);
  if (!description.alias_of().empty()) {
    if (!tensor.boxes.empty()) {
      problems.push_back(
          absl::StrCat("tensor ", description.name(), ": an alias carries no shards"));
    }
    return;
  }
  std::vector<Box> boxes = BoxesOf(tensor);
  std::optional<CoverageProblem> problem = FindCoverageProblem(tensor.global_shape, boxes);
  if (problem && problem->kind == CoverageProblem::Kind::kOverlap) {
    RemovePartialOverlaps(tensor);
    boxes = BoxesOf(tensor);
    problem = FindCoverageProblem(tensor.global_shape, boxes);
  }
  if (problem) problems.push_back(DescribeCoverageProblem(state, tensor, *problem, boxes));
}

void CheckAliases(const MergedState& state, std::vector<std::string>& problems) {
  std::map<std::string_view, const LogicalTensor*> by_name;
  for (const MergedTensor& t : state.tensors) {
    by_name[state.DescriptionOf(t).name()] = &state.DescriptionOf(t);
  }
  for (const auto& t : state.tensors) {
    const std::string& target = state.DescriptionOf(t).alias_of();
    if (target.empty()) continue;
    const auto at = by_name.find(target);
    if (at == by_name.end() || !at->second->alias_of().empty()) {
      problems.push_back(absl::StrCat(
          "tensor ", state.DescriptionOf(t).name(), ": alias of ", target,
          at == by_name.end() ? ", which no rank describes" : ", which is an alias itself"));
    }
  }
}

}  // namespace

DType DTypeOf(const ShardedTensor& tensor) {
  if (tensor.dtype != DType::kUnspecified) return tensor.dtype;
  for (const Shard& shard : tensor.shards) {
    if (shard.dtype != DType::kUnspecified) return shard.dtype;
  }
  return DType::kUnspecified;
}

absl::Status CheckStateDict(const StateDict& state) {
  return Check(state, /*check_writable=*/false);
}

absl::Status CheckDestinations(const StateDict& state) {
  return Check(state, /*check_writable=*/true);
}

RankState DescribeState(const StateDict& state) {
  RankState description;
  for (const ShardedTensor& tensor : state.tensors) {
    LogicalTensor& local = *description.add_tensors();
    local.set_name(tensor.name);
    local.set_role(ToProto(tensor.role));
    local.set_dtype(ToProto(DTypeOf(tensor)));
    local.set_alias_of(tensor.alias_of);
    local.mutable_global_shape()->Add(tensor.global_shape.begin(), tensor.global_shape.end());
    local.mutable_padded_shape()->Add(tensor.padded_shape.begin(), tensor.padded_shape.end());
    if (tensor.partition) *local.mutable_partition() = ToProto(*tensor.partition);
    Shards& shards = *local.mutable_shards();
    for (const Shard& shard : tensor.shards) {
      const auto& [offset, shape] = shard.box;
      shards.mutable_global_offset()->Add(offset.begin(), offset.end());
      shards.mutable_shape()->Add(shape.begin(), shape.end());
      shards.add_file_index(0);
    }
  }
  return description;
}

std::vector<int64_t> ShardStrides(const Shard& shard) {
  return shard.strides.empty() ? ContiguousStrides(shard.box.shape) : shard.strides;
}

absl::StatusOr<LocalShard> FindHeldShard(const MergedState& state, const HeldBox& held,
                                         uint32_t rank) {
  for (const ShardRef& shard : held.shards) {
    const std::vector<Describer>& describers = state.descriptions[shard.description].describers;
    const auto at = std::ranges::lower_bound(describers, rank, {}, &Describer::rank);
    if (at != describers.end() && at->rank == rank)
      return LocalShard{at->local_tensor, shard.shard};
  }
  return absl::InternalError(absl::StrCat(
      "tensor ", state.descriptions[held.shards[0].description].tensor.name(), ": rank ", rank,
      " is to write box ", ToString(held.box), ", which it does not hold"));
}

absl::StatusOr<MergedState> MergeRankStates(std::span<const std::string> ranks) {
  Merger merger;
  for (uint32_t r = 0; r < ranks.size(); ++r) TESSERA_RETURN_IF_ERROR(merger.AddRank(r, ranks[r]));
  std::vector<std::string> problems;
  MergedState state = std::move(merger).Finish(problems);
  for (MergedTensor& tensor : state.tensors) ProveCoverage(state, tensor, problems);
  CheckAliases(state, problems);
  TESSERA_RETURN_IF_ERROR(ProblemsStatus("the state cannot be saved", problems));
  return state;
}

}  // namespace tessera::ckpt
