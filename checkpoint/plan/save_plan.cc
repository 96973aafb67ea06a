#include "checkpoint/plan/save_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/layout/coverage.h"

namespace tessera::ckpt {
namespace {

constexpr size_t kMaxReportedProblems = 50;

// Where the elements of a box can be had.
struct Holder {
  uint32_t rank;
  uint32_t local_tensor;
  uint32_t local_shard;
};

struct HeldBox {
  Box box;
  std::vector<Holder> holders;  // ascending by rank
};

struct MergedTensor {
  const LocalTensor* description;  // of the first rank that has it
  uint32_t first_rank;
  Shape global_shape;
  std::vector<HeldBox> boxes;  // distinct
};

// A box with its writer.
struct Assignment {
  uint32_t tensor;  // into the merged tensors
  Box box;
  Holder writer;
};

template <typename Repeated>
std::vector<int64_t> ToVector(const Repeated& values) {
  return {values.begin(), values.end()};
}

std::string Describe(const LocalTensor& tensor) {
  std::string text = absl::StrCat(Role_Name(tensor.role()), " ", DType_Name(tensor.dtype()), " ",
                                  ShapeToString(ToVector(tensor.global_shape())));
  if (tensor.padded_shape_size() > 0) {
    absl::StrAppend(&text, " padded to ", ShapeToString(ToVector(tensor.padded_shape())));
  }
  if (!tensor.alias_of().empty()) absl::StrAppend(&text, " alias of ", tensor.alias_of());
  return text;
}

bool Agree(const LocalTensor& a, const LocalTensor& b) {
  return a.role() == b.role() && a.dtype() == b.dtype() && a.alias_of() == b.alias_of() &&
         std::ranges::equal(a.global_shape(), b.global_shape()) &&
         std::ranges::equal(a.padded_shape(), b.padded_shape());
}

std::vector<int64_t> BoxKey(const Box& box) {
  std::vector<int64_t> key = box.global_offset;
  key.insert(key.end(), box.shape.begin(), box.shape.end());
  return key;
}

// Joins the ranks' descriptions by name, in order of first appearance, and equal boxes by who holds them.
class Merger {
 public:
  void AddRank(uint32_t rank, const LocalPlan& local, std::vector<std::string>& problems) {
    for (int t = 0; t < local.tensors_size(); ++t) {
      const LocalTensor& tensor = local.tensors(t);
      const auto [at, is_new] = index_.try_emplace(tensor.name(), merged_.size());
      if (is_new) {
        merged_.push_back({&tensor, rank, ToVector(tensor.global_shape()), {}});
        box_index_.emplace_back();
      }
      MergedTensor& merged = merged_[at->second];
      if (!is_new && !Agree(*merged.description, tensor)) {
        problems.push_back(absl::StrCat("tensor ", tensor.name(), ": rank ", merged.first_rank,
                                        " says ", Describe(*merged.description), ", rank ", rank,
                                        " says ", Describe(tensor)));
        continue;
      }
      AddShards(rank, t, tensor, at->second);
    }
  }

  std::vector<MergedTensor> Finish() && { return std::move(merged_); }

 private:
  void AddShards(uint32_t rank, uint32_t local_tensor, const LocalTensor& tensor, size_t merged) {
    for (uint32_t s = 0; s < tensor.shard_count(); ++s) {
      Box box = LocalShardBox(tensor, s);
      if (box.empty()) continue;
      std::vector<HeldBox>& boxes = merged_[merged].boxes;
      const auto [at, is_new] = box_index_[merged].try_emplace(BoxKey(box), boxes.size());
      if (is_new) boxes.push_back({std::move(box), {}});
      boxes[at->second].holders.push_back({rank, local_tensor, s});
    }
  }

  std::vector<MergedTensor> merged_;
  absl::flat_hash_map<std::string, size_t> index_;
  std::vector<absl::flat_hash_map<std::vector<int64_t>, size_t>> box_index_;
};

// Appends to `out` what is left of `box` without `hole`: at most two boxes per dim.
void Subtract(const Box& box, const Box& hole, std::vector<Box>& out) {
  const std::optional<Box> common = Intersect(box, hole);
  if (!common) {
    out.push_back(box);
    return;
  }
  Box rest = box;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    const int64_t begin = rest.global_offset[d], end = begin + rest.shape[d];
    const int64_t hole_begin = common->global_offset[d], hole_end = hole_begin + common->shape[d];
    if (begin < hole_begin) {
      Box below = rest;
      below.shape[d] = hole_begin - begin;
      out.push_back(std::move(below));
    }
    if (hole_end < end) {
      Box above = rest;
      above.global_offset[d] = hole_end;
      above.shape[d] = end - hole_end;
      out.push_back(std::move(above));
    }
    rest.global_offset[d] = hole_begin;
    rest.shape[d] = hole_end - hole_begin;
  }
}

// Replicas that were cut differently on different ranks (a tied embedding in the buckets of two pipeline stages, for example):
// keeps the largest boxes whole and cuts from the others what is already there.
void RemovePartialOverlaps(std::vector<HeldBox>& boxes) {
  std::ranges::stable_sort(boxes, std::greater(),
                           [](const HeldBox& b) { return ElementCount(b.box.shape); });
  std::vector<HeldBox> kept;
  for (const HeldBox& candidate : boxes) {
    std::vector<Box> rest = {candidate.box};
    for (size_t k = 0; k < kept.size() && !rest.empty(); ++k) {
      if (!Intersect(kept[k].box, candidate.box)) continue;
      std::vector<Box> next;
      for (const Box& box : rest) Subtract(box, kept[k].box, next);
      rest = std::move(next);
    }
    for (Box& box : rest) kept.push_back({std::move(box), candidate.holders});
  }
  boxes = std::move(kept);
}

std::vector<Box> BoxesOf(const MergedTensor& tensor) {
  std::vector<Box> boxes;
  boxes.reserve(tensor.boxes.size());
  for (const HeldBox& held : tensor.boxes) boxes.push_back(held.box);
  return boxes;
}

// Proves that the tensor's boxes hold every element exactly once, after making it so where ranks overlap in part.
void ProveCoverage(MergedTensor& tensor, std::vector<std::string>& problems) {
  const std::string& name = tensor.description->name();
  if (!tensor.description->alias_of().empty()) {
    if (!tensor.boxes.empty()) {
      problems.push_back(absl::StrCat("tensor ", name, ": an alias carries no shards"));
    }
    return;
  }
  std::vector<Box> boxes = BoxesOf(tensor);
  std::optional<CoverageProblem> problem = FindCoverageProblem(tensor.global_shape, boxes);
  if (problem && problem->kind == CoverageProblem::Kind::kOverlap) {
    RemovePartialOverlaps(tensor.boxes);
    boxes = BoxesOf(tensor);
    problem = FindCoverageProblem(tensor.global_shape, boxes);
  }
  if (!problem) return;
  std::string message = absl::StrCat("tensor ", name, " ", ShapeToString(tensor.global_shape), ": ",
                                     ToString(*problem, boxes));
  if (problem->kind == CoverageProblem::Kind::kGap) {
    std::vector<std::string> held;
    for (const HeldBox& box : tensor.boxes) {
      if (held.size() == 8) {
        held.push_back(absl::StrCat("and ", tensor.boxes.size() - 8, " more"));
        break;
      }
      held.push_back(absl::StrCat("rank ", box.holders[0].rank, " ", ToString(box.box)));
    }
    absl::StrAppend(&message, "; held: ", held.empty() ? "nothing" : absl::StrJoin(held, ", "));
  } else {
    absl::StrAppend(&message, " (rank ", tensor.boxes[problem->first].holders[0].rank, ")");
  }
  problems.push_back(std::move(message));
}

void CheckAliases(const std::vector<MergedTensor>& tensors, std::vector<std::string>& problems) {
  absl::flat_hash_map<std::string, const LocalTensor*> by_name;
  for (const MergedTensor& t : tensors) by_name[t.description->name()] = t.description;
  for (const MergedTensor& t : tensors) {
    const std::string& target = t.description->alias_of();
    if (target.empty()) continue;
    const auto at = by_name.find(target);
    if (at == by_name.end() || !at->second->alias_of().empty()) {
      problems.push_back(absl::StrCat(
          "tensor ", t.description->name(), ": alias of ", target,
          at == by_name.end() ? ", which no rank describes" : ", which is an alias itself"));
    }
  }
}

// Cuts a box along its first dim into pieces of at most `limit` bytes, as far as its rows allow.
void AppendCut(const HeldBox& held, uint64_t bytes, uint64_t limit, std::vector<HeldBox>& out) {
  const int64_t rows = held.box.shape.empty() ? 1 : held.box.shape[0];
  const int64_t pieces = std::min<int64_t>(rows, (bytes + limit - 1) / limit);
  for (int64_t p = 0; p < pieces; ++p) {
    HeldBox piece = held;
    if (pieces > 1) {
      const int64_t begin = rows * p / pieces, end = rows * (p + 1) / pieces;
      piece.box.global_offset[0] += begin;
      piece.box.shape[0] = end - begin;
    }
    out.push_back(std::move(piece));
  }
}

void CutLargeBoxes(std::vector<MergedTensor>& tensors, size_t ranks,
                   const SavePlanOptions& options) {
  uint64_t total = 0;
  for (const MergedTensor& t : tensors) {
    for (const HeldBox& held : t.boxes) {
      total += ElementCount(held.box.shape) * DTypeSize(t.description->dtype());
    }
  }
  // A sixteenth of a rank's share: the last box given to a rank then lifts it above the others by no more.
  const uint64_t replica_limit =
      std::max<uint64_t>(options.min_split_bytes, total / std::max<size_t>(ranks, 1) / 16);
  for (MergedTensor& t : tensors) {
    std::vector<HeldBox> cut;
    for (const HeldBox& held : t.boxes) {
      const uint64_t bytes = ElementCount(held.box.shape) * DTypeSize(t.description->dtype());
      uint64_t limit = std::max<uint64_t>(options.max_file_bytes, 1);
      if (held.holders.size() > 1) limit = std::min(limit, replica_limit);
      AppendCut(held, bytes, limit, cut);
    }
    t.boxes = std::move(cut);
  }
}

// Boxes with one holder first, then the others by size, each to its least loaded holder.
std::vector<Assignment> AssignWriters(const std::vector<MergedTensor>& tensors, size_t ranks) {
  std::vector<uint64_t> load(ranks, 0);
  struct Open {
    uint64_t bytes;
    size_t assignment;
    const std::vector<Holder>* holders;
  };
  std::vector<Open> open;
  std::vector<Assignment> assignments;
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    for (const HeldBox& held : tensors[t].boxes) {
      const uint64_t bytes =
          ElementCount(held.box.shape) * DTypeSize(tensors[t].description->dtype());
      if (held.holders.size() == 1) {
        load[held.holders[0].rank] += bytes;
      } else {
        open.push_back({bytes, assignments.size(), &held.holders});
      }
      assignments.push_back({t, held.box, held.holders[0]});
    }
  }
  std::ranges::stable_sort(open, std::greater(), &Open::bytes);
  for (const Open& o : open) {
    const Holder& writer =
        *std::ranges::min_element(*o.holders, {}, [&](const Holder& h) { return load[h.rank]; });
    load[writer.rank] += o.bytes;
    assignments[o.assignment].writer = writer;
  }
  return assignments;
}

bool IsOptimizer(Role role) { return role == MASTER_WEIGHT || role == OPTIMIZER_STATE; }

// A data file before it has a name.
struct PendingFile {
  uint32_t rank;
  bool optimizer;
  std::vector<const Assignment*> items;
};

std::vector<PendingFile> GroupIntoFiles(const std::vector<MergedTensor>& tensors,
                                        const std::vector<Assignment>& assignments, size_t ranks,
                                        uint64_t max_file_bytes) {
  std::vector<std::vector<const Assignment*>> by_rank_and_kind(ranks * 2);
  for (const Assignment& a : assignments) {
    const bool optimizer = IsOptimizer(tensors[a.tensor].description->role());
    by_rank_and_kind[a.writer.rank * 2 + optimizer].push_back(&a);
  }
  std::vector<PendingFile> files;
  for (size_t i = 0; i < by_rank_and_kind.size(); ++i) {
    uint64_t bytes = 0;
    for (const Assignment* a : by_rank_and_kind[i]) {
      const uint64_t more =
          ElementCount(a->box.shape) * DTypeSize(tensors[a->tensor].description->dtype());
      if (bytes == 0 || bytes + more > max_file_bytes) {
        files.push_back({static_cast<uint32_t>(i / 2), i % 2 == 1, {}});
        bytes = 0;
      }
      files.back().items.push_back(a);
      bytes += more;
    }
  }
  std::ranges::stable_sort(files, {}, &PendingFile::optimizer);  // model files come first
  return files;
}

absl::StatusOr<SafetensorsHeader> LayOut(const LocalPlan& local, const FilePlan& file,
                                         std::string* bytes) {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";  // what transformers asks for before it loads a file
  for (const WriteItem& item : file.items()) {
    const LocalTensor& tensor = local.tensors(item.local_tensor());
    const Box box = ItemBox(item);
    header.entries.push_back(
        {ShardKey(tensor.name(), ToVector(tensor.global_shape()), box), tensor.dtype(), box.shape});
  }
  TESSERA_ASSIGN_OR_RETURN(std::string text, BuildSafetensorsHeader(header));
  if (bytes != nullptr) *bytes = std::move(text);
  return header;
}

void AppendTensors(const std::vector<MergedTensor>& tensors, Manifest& manifest) {
  for (const MergedTensor& t : tensors) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name(t.description->name());
    tensor.set_role(t.description->role());
    tensor.set_dtype(t.description->dtype());
    tensor.set_alias_of(t.description->alias_of());
    for (int64_t extent : t.global_shape) tensor.add_global_shape(extent);
    *tensor.mutable_padded_shape() = t.description->padded_shape();
  }
}

// Names the files, assigns offsets and fills in the manifest's shards.
absl::Status LayOutFiles(std::span<const LocalPlan> ranks, const std::vector<PendingFile>& files,
                         uint32_t chunk_bytes, SavePlan& plan) {
  int64_t count[2] = {0, 0}, next[2] = {0, 0};
  for (const PendingFile& f : files) ++count[f.optimizer];
  for (uint32_t i = 0; i < files.size(); ++i) {
    const PendingFile& pending = files[i];
    FilePlan& file = *plan.ranks[pending.rank].add_files();
    file.set_file_index(i);
    file.set_path(DataFileName(pending.optimizer ? "optimizer" : "model", next[pending.optimizer]++,
                               count[pending.optimizer]));
    for (const Assignment* a : pending.items) {
      WriteItem& item = *file.add_items();
      item.set_local_tensor(a->writer.local_tensor);
      item.set_local_shard(a->writer.local_shard);
      item.set_manifest_tensor(a->tensor);
      for (int64_t x : a->box.global_offset) item.add_offset(x);
      for (int64_t x : a->box.shape) item.add_shape(x);
    }
    TESSERA_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                             LayOut(ranks[pending.rank], file, nullptr));
    file.set_size_bytes(header.file_size_bytes);
    for (int k = 0; k < file.items_size(); ++k) {
      file.mutable_items(k)->set_file_offset(header.entries[k].file_offset);
      AddShard(pending.items[k]->box, i, header.entries[k].file_offset,
               *plan.manifest.mutable_tensors(pending.items[k]->tensor));
    }
    DataFile& data_file = *plan.manifest.add_files();
    data_file.set_path(file.path());
    data_file.set_size_bytes(file.size_bytes());
    data_file.set_chunk_bytes(chunk_bytes);
  }
  return absl::OkStatus();
}

absl::Status ProblemsStatus(std::vector<std::string> problems) {
  if (problems.empty()) return absl::OkStatus();
  const size_t count = problems.size();
  if (count > kMaxReportedProblems) {
    problems.resize(kMaxReportedProblems);
    problems.push_back(absl::StrCat("and ", count - kMaxReportedProblems, " more"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the state cannot be saved:\n  ", absl::StrJoin(problems, "\n  ")));
}

}  // namespace

Box LocalShardBox(const LocalTensor& tensor, uint32_t shard) {
  const int rank = tensor.global_shape_size();
  const size_t at = size_t{shard} * rank;
  return {{tensor.shard_offset().begin() + at, tensor.shard_offset().begin() + at + rank},
          {tensor.shard_shape().begin() + at, tensor.shard_shape().begin() + at + rank}};
}

Box ItemBox(const WriteItem& item) { return {ToVector(item.offset()), ToVector(item.shape())}; }

absl::StatusOr<std::string> DataFileHeader(const LocalPlan& local, const FilePlan& file) {
  std::string bytes;
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsHeader header, LayOut(local, file, &bytes));
  return bytes;
}

absl::StatusOr<SavePlan> PlanSave(std::span<const std::string> descriptions,
                                  const SavePlanOptions& options) {
  std::vector<LocalPlan> ranks(descriptions.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].ParseFromString(descriptions[r])) {
      return absl::InternalError(absl::StrCat("rank ", r, " sent a plan that cannot be parsed"));
    }
  }
  std::vector<std::string> problems;
  Merger merger;
  for (uint32_t r = 0; r < ranks.size(); ++r) merger.AddRank(r, ranks[r], problems);
  std::vector<MergedTensor> tensors = std::move(merger).Finish();
  for (MergedTensor& tensor : tensors) ProveCoverage(tensor, problems);
  CheckAliases(tensors, problems);
  TESSERA_RETURN_IF_ERROR(ProblemsStatus(std::move(problems)));

  CutLargeBoxes(tensors, ranks.size(), options);
  const std::vector<Assignment> assignments = AssignWriters(tensors, ranks.size());
  SavePlan plan;
  plan.ranks.resize(ranks.size());
  AppendTensors(tensors, plan.manifest);
  TESSERA_RETURN_IF_ERROR(
      LayOutFiles(ranks, GroupIntoFiles(tensors, assignments, ranks.size(), options.max_file_bytes),
                  options.checksum_chunk_bytes, plan));
  return plan;
}

}  // namespace tessera::ckpt
