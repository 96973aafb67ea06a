#include "checkpoint/plan/save_plan.h"

#include <functional>
#include <unordered_map>

#include "base/status_macros.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/plan/least_loaded.h"
#include "checkpoint/plan/rank_states.h"

namespace tessera::ckpt {
namespace {

// A box and the rank that writes it.
struct Assignment {
  uint32_t tensor;  // into MergedState::tensors
  Box box;
  uint64_t bytes;
  uint32_t rank = 0;
  LocalShard local = {};  // of that rank; contains the box
};

uint64_t TotalBytes(const MergedState& state) {
  uint64_t total = 0;
  for (const MergedTensor& tensor : state.tensors) {
    for (const HeldBox& held : tensor.boxes) total += tensor.BytesOf(held);
  }
  return total;
}

absl::Status SetWriter(const MergedState& state, const HeldBox& held, uint32_t rank,
                       Assignment& out) {
  out.rank = rank;
  TESSERA_ASSIGN_OR_RETURN(out.local, FindHeldShard(state, held, rank));
  return absl::OkStatus();
}

// Splits boxes above `max_box_bytes`. Also splits replicas above the larger of `min_split_bytes`
// and 1/32 of a rank's fair share, so that the last assigned one lifts a rank above the others by
// no more than that. A box with a single holder is assigned to it, and a replica of at most 1/16 of
// `min_split_bytes` to its lowest holder. The others, largest first, are each assigned to the
// holder with the fewest bytes so far.
//
// The result is in the order of tensors and boxes, and a pure function of the input. Cost: n log n
// in the boxes after splitting, plus the ranks of each distinct set of holders once.
absl::StatusOr<std::vector<Assignment>> AssignWriters(const MergedState& state, size_t ranks,
                                                      uint64_t max_box_bytes,
                                                      uint64_t min_split_bytes) {
  const uint64_t replica_limit =
      std::min(max_box_bytes,
               std::max(min_split_bytes, TotalBytes(state) / std::max<size_t>(ranks, 1) / 32));
  struct Open {
    uint64_t bytes;
    size_t assignment;
    const HeldBox* held;
  };
  std::vector<uint64_t> load(ranks, 0);
  std::vector<Open> open;
  std::vector<Assignment> assignments;
  absl::Status status;
  for (uint32_t t = 0; t < state.tensors.size(); ++t) {
    for (const HeldBox& held : state.tensors[t].boxes) {
      const std::vector<uint32_t>& holders = state.rank_sets[held.rank_set];
      const uint64_t size = state.tensors[t].BytesOf(held);
      const bool balances = holders.size() > 1 && size > min_split_bytes / 16;
      ForEachPiece(held.box, size, std::max<uint64_t>(balances ? replica_limit : max_box_bytes, 1),
                   [&](const Box& box, uint64_t bytes) {
                     if (balances) open.push_back({bytes, assignments.size(), &held});
                     assignments.push_back({.tensor = t, .box = box, .bytes = bytes});
                     if (balances) return;
                     load[holders[0]] += bytes;
                     status.Update(SetWriter(state, held, holders[0], assignments.back()));
                   });
    }
  }
  std::ranges::stable_sort(open, std::greater(), &Open::bytes);
  std::unordered_map<uint32_t, LeastLoaded> queues;  // by rank set
  for (const Open& o : open) {
    const uint32_t set = o.held->rank_set;
    LeastLoaded& queue = queues.try_emplace(set, state.rank_sets[set], load).first->second;
    status.Update(SetWriter(state, *o.held, queue.Take(o.bytes, load), assignments[o.assignment]));
  }
  TESSERA_RETURN_IF_ERROR(status);
  return assignments;
}

// A data file before it has a name.
struct PendingFile {
  uint32_t rank;
  bool optimizer;
  std::vector<const Assignment*> items = {};
};

std::vector<PendingFile> GroupIntoFiles(const MergedState& state,
                                        const std::vector<Assignment>& assignments, size_t ranks,
                                        uint64_t max_file_bytes) {
  std::vector<std::vector<const Assignment*>> by_rank_and_kind(ranks * 2);
  for (const Assignment& a : assignments) {
    const bool optimizer =
        BelongsToOptimizer(FromProto(state.DescriptionOf(state.tensors[a.tensor]).role()));
    by_rank_and_kind[a.rank * 2 + optimizer].push_back(&a);
  }
  std::vector<PendingFile> files;
  for (size_t i = 0; i < by_rank_and_kind.size(); ++i) {
    uint64_t bytes = 0;
    for (const Assignment* a : by_rank_and_kind[i]) {
      if (bytes == 0 || bytes + a->bytes > max_file_bytes) {
        files.push_back({.rank = static_cast<uint32_t>(i / 2), .optimizer = i % 2 == 1});
        bytes = 0;
      }
      files.back().items.push_back(a);
      bytes += a->bytes;
    }
  }
  std::ranges::stable_sort(files, {}, &PendingFile::optimizer);  // model files come first
  return files;
}

// Lays out a file: tensor_of(i) and box_of(i) describe its items.
template <typename TensorOf, typename BoxOf>
absl::StatusOr<std::string> LayOut(size_t items, const TensorOf& tensor_of, const BoxOf& box_of,
                                   SafetensorsHeader& header) {
  header.metadata["format"] = "pt";  // transformers requires it
  header.entries.reserve(items);
  for (size_t i = 0; i < items; ++i) {
    const LogicalTensor& tensor = tensor_of(i);
    const Box& box = box_of(i);
    header.entries.push_back(
        {ShardKey(tensor.name(), GlobalShape(tensor), box), FromProto(tensor.dtype()), box.shape});
  }
  return BuildSafetensorsHeader(header);
}

void AppendTensors(const MergedState& state, Manifest& manifest) {
  manifest.mutable_tensors()->Reserve(static_cast<int>(state.tensors.size()));
  for (const MergedTensor& t : state.tensors) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor = state.DescriptionOf(t);
    tensor.clear_shards();
  }
}

void SetItem(const Assignment& assignment, uint64_t file_offset, WriteItem& item) {
  item.set_local_tensor(assignment.local.tensor);
  item.set_local_shard(assignment.local.shard);
  item.set_manifest_tensor(assignment.tensor);
  ToProto(assignment.box, *item.mutable_box());
  item.set_file_offset(file_offset);
}

// Names the files, assigns offsets and fills in the manifest's shards.
absl::Status LayOutFiles(const MergedState& state, const std::vector<PendingFile>& files,
                         uint32_t chunk_bytes, SavePlan& plan) {
  int64_t count[2] = {0, 0}, next[2] = {0, 0};
  for (const PendingFile& f : files) ++count[f.optimizer];
  plan.manifest.mutable_files()->Reserve(static_cast<int>(files.size()));
  for (uint32_t i = 0; i < files.size(); ++i) {
    const PendingFile& pending = files[i];
    SafetensorsHeader header;
    TESSERA_RETURN_IF_ERROR(
        LayOut(
            pending.items.size(),
            [&](size_t k) -> const LogicalTensor& {
              return state.DescriptionOf(state.tensors[pending.items[k]->tensor]);
            },
            [&](size_t k) -> const Box& { return pending.items[k]->box; }, header)
            .status());
    FilePlan& file = *plan.ranks[pending.rank].add_files();
    file.set_file_index(i);
    file.set_path(DataFileName(pending.optimizer ? "optimizer" : "model", next[pending.optimizer]++,
                               count[pending.optimizer]));
    file.set_size_bytes(header.file_size_bytes);
    file.mutable_items()->Reserve(static_cast<int>(pending.items.size()));
    for (size_t k = 0; k < pending.items.size(); ++k) {
      const Assignment& assignment = *pending.items[k];
      SetItem(assignment, header.entries[k].file_offset, *file.add_items());
      AddShard(assignment.box, i, header.entries[k].file_offset,
               *plan.manifest.mutable_tensors(assignment.tensor));
    }
    DataFile& data_file = *plan.manifest.add_files();
    data_file.set_path(file.path());
    data_file.set_size_bytes(file.size_bytes());
    data_file.set_chunk_bytes(chunk_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

Box ItemBox(const WriteItem& item) { return FromProto(item.box()); }

absl::StatusOr<std::string> DataFileHeader(const RankState& local, const FilePlan& file) {
  SafetensorsHeader header;
  return LayOut(
      file.items_size(),
      [&](size_t k) -> const LogicalTensor& { return local.tensors(file.items(k).local_tensor()); },
      [&](size_t k) { return ItemBox(file.items(k)); }, header);
}

absl::StatusOr<SavePlan> PlanSave(std::span<const std::string> ranks,
                                  const SavePlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const MergedState state, MergeRankStates(ranks));
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<Assignment> assignments,
      AssignWriters(state, ranks.size(), options.max_file_bytes, options.min_split_bytes));
  SavePlan plan;
  plan.ranks.resize(ranks.size());
  AppendTensors(state, plan.manifest);
  TESSERA_RETURN_IF_ERROR(
      LayOutFiles(state, GroupIntoFiles(state, assignments, ranks.size(), options.max_file_bytes),
                  options.checksum_chunk_bytes, plan));
  return plan;
}

}  // namespace tessera::ckpt
