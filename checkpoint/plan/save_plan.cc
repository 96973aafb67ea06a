#include "checkpoint/plan/save_plan.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/plan/assign_writers.h"
#include "checkpoint/plan/box_proto.h"
#include "checkpoint/plan/merge_rank_states.h"

namespace tessera::ckpt {
namespace {

// A data file before it has a name.
struct PendingFile {
  uint32_t rank;
  bool optimizer;
  std::vector<const Assignment*> items;
};

std::vector<PendingFile> GroupIntoFiles(const MergedState& state,
                                        const std::vector<Assignment>& assignments, size_t ranks,
                                        uint64_t max_file_bytes) {
  std::vector<std::vector<const Assignment*>> by_rank_and_kind(ranks * 2);
  for (const Assignment& a : assignments) {
    const bool optimizer = BelongsToOptimizer(state.DescriptionOf(state.tensors[a.tensor]).role());
    by_rank_and_kind[a.rank * 2 + optimizer].push_back(&a);
  }
  std::vector<PendingFile> files;
  for (size_t i = 0; i < by_rank_and_kind.size(); ++i) {
    uint64_t bytes = 0;
    for (const Assignment* a : by_rank_and_kind[i]) {
      if (bytes == 0 || bytes + a->bytes > max_file_bytes) {
        files.push_back({static_cast<uint32_t>(i / 2), i % 2 == 1, {}});
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
    const LocalTensor& tensor = tensor_of(i);
    const Box& box = box_of(i);
    header.entries.push_back(
        {ShardKey(tensor.name(), GlobalShape(tensor), box), tensor.dtype(), box.shape});
  }
  return BuildSafetensorsHeader(header);
}

void AppendTensors(const MergedState& state, Manifest& manifest) {
  manifest.mutable_tensors()->Reserve(static_cast<int>(state.tensors.size()));
  for (const MergedTensor& t : state.tensors) {
    const LocalTensor& description = state.DescriptionOf(t);
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name(description.name());
    tensor.set_role(description.role());
    tensor.set_dtype(description.dtype());
    tensor.set_alias_of(description.alias_of());
    *tensor.mutable_global_shape() = description.global_shape();
    *tensor.mutable_padded_shape() = description.padded_shape();
    if (description.has_partition()) *tensor.mutable_partition() = description.partition();
  }
}

void SetItem(const Assignment& assignment, uint64_t file_offset, WriteItem& item) {
  item.set_local_tensor(assignment.local_tensor);
  item.set_local_shard(assignment.local_shard);
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
            [&](size_t k) -> const LocalTensor& {
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
      [&](size_t k) -> const LocalTensor& { return local.tensors(file.items(k).local_tensor()); },
      [&](size_t k) { return ItemBox(file.items(k)); }, header);
}

absl::StatusOr<SavePlan> PlanSave(std::span<const std::string> ranks,
                                  const SavePlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const MergedState state, MergeRankStates(ranks));
  const std::vector<Assignment> assignments =
      AssignWriters(state, ranks.size(), options.max_file_bytes, options.min_split_bytes);
  SavePlan plan;
  plan.ranks.resize(ranks.size());
  AppendTensors(state, plan.manifest);
  TESSERA_RETURN_IF_ERROR(
      LayOutFiles(state, GroupIntoFiles(state, assignments, ranks.size(), options.max_file_bytes),
                  options.checksum_chunk_bytes, plan));
  return plan;
}

}  // namespace tessera::ckpt
