#include "checkpoint/load/verify_loaded.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/elements/device_copies.h"
#include "checkpoint/elements/digest_elements.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/load/load_messages.pb.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/plan/save_plan.h"
#include "layout/box.h"
#include "layout/coverage.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt {
namespace {

// Bytes that a thread digests at a time.
constexpr uint64_t kTaskBytes = uint64_t{4} << 20;
// Overlaps of boxes are computed pair by pair.
constexpr size_t kMaxOverlappingBoxes = 4096;

// A box of a saved tensor in this process's memory.
struct Held {
  const Destination* destination;
  uint32_t saved_tensor;
  Box box;                               // within the destination's box
  const PlacedDigest* digest = nullptr;  // null: not computed yet
};

// A part of a held box, for one thread.
struct Task {
  size_t held;
  Box box;
  LogicalDigest digest;
};

absl::StatusOr<LogicalDigest> DigestPart(const Shape& shape, const Destination& destination,
                                         const Box& box) {
  if (destination.device != nullptr) {
    const uint64_t bytes = ElementCount(box.shape) * destination.element_bytes;
    TESSERA_ASSIGN_OR_RETURN(const PageLockedMemory memory,
                             AllocatePageLocked(destination.device, bytes));
    DeviceCopies copies;
    copies.Add(destination.device.get(), destination.handle, destination.box.global_offset, {box},
               memory.get(), destination.host_dtype);
    TESSERA_RETURN_IF_ERROR(copies.Start(DeviceMemory::Direction::kToHost));
    TESSERA_RETURN_IF_ERROR(copies.Wait());
    return DigestBox(shape, box, memory.get(), ContiguousStrides(box.shape),
                     destination.element_bytes);
  }
  int64_t first = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    first += (box.global_offset[d] - destination.box.global_offset[d]) * destination.strides[d];
  }
  const int64_t size = static_cast<int64_t>(destination.element_bytes);
  return DigestBox(shape, box, destination.data + first * size, destination.strides,
                   destination.element_bytes);
}

// Returns the digests of all held boxes, serialized for rank 0.
absl::StatusOr<std::string> DigestAll(const Manifest& manifest, const std::vector<Held>& all,
                                      int threads) {
  std::vector<Task> tasks;
  std::vector<LogicalDigest> sums(all.size());
  for (size_t h = 0; h < all.size(); ++h) {
    if (all[h].digest != nullptr) {
      sums[h] = all[h].digest->sum();
      continue;
    }
    const uint64_t bytes = ElementCount(all[h].box.shape) * all[h].destination->element_bytes;
    ForEachPiece(all[h].box, bytes, kTaskBytes, [&](const Box& box, uint64_t) {
      tasks.push_back({h, box, {}});
    });
  }
  TESSERA_RETURN_IF_ERROR(RunTasks(threads, tasks.size(), [&](int, size_t i) {
    const Held& held = all[tasks[i].held];
    TESSERA_ASSIGN_OR_RETURN(tasks[i].digest,
                             DigestPart(GlobalShape(manifest.tensors(held.saved_tensor)),
                                        *held.destination, tasks[i].box));
    return absl::OkStatus();
  }));
  for (const Task& task : tasks) sums[task.held] += task.digest;
  LoadedBoxes report;
  for (size_t h = 0; h < all.size(); ++h) {
    LoadedBox& box = *report.add_boxes();
    box.set_saved_tensor(all[h].saved_tensor);
    ToProto(all[h].box, *box.mutable_box());
    *box.mutable_digest() = ToProto(sums[h]);
  }
  return report.SerializeAsString();
}

// The reports of all ranks about one tensor, on rank 0.
class LoadedTensor {
 public:
  void Add(uint32_t rank, Box box, const LogicalDigest& digest) {
    const auto [at, is_new] = index_.try_emplace(box, boxes_.size());
    if (is_new) {
      boxes_.push_back(std::move(box));
      found_.emplace_back();
    }
    std::vector<Found>& found = found_[at->second];
    const auto same = std::ranges::find(found, digest, &Found::digest);
    if (same == found.end()) {
      found.push_back({digest, {rank}});
    } else {
      same->ranks.push_back(rank);
    }
  }

  const std::vector<Box>& boxes() const { return boxes_; }

  // Splits the boxes into parts that either coincide or do not overlap.
  std::vector<Box> DisjointParts() const {
    std::vector<Box> parts;
    for (const Box& box : boxes_) {
      std::vector<Box> rest = {box}, next_parts;
      for (const Box& part : parts) {
        const std::optional<Box> common = Intersect(part, box);
        if (!common) {
          next_parts.push_back(part);
          continue;
        }
        next_parts.push_back(*common);
        SubtractBox(part, *common, next_parts);
        std::vector<Box> next_rest;
        for (const Box& r : rest) SubtractBox(r, *common, next_rest);
        rest = std::move(next_rest);
      }
      parts = std::move(next_parts);
      parts.insert(parts.end(), rest.begin(), rest.end());
    }
    return parts;
  }

  // Returns "" if replicas agree, else the ranks that disagree and, if known, which one is wrong.
  std::string FindDisagreement(const LogicalDigest& expected) const {
    LogicalDigest others;
    const std::vector<Found>* open = nullptr;
    size_t disagreements = 0, at = 0;
    for (size_t b = 0; b < boxes_.size(); ++b) {
      if (found_[b].size() == 1) {
        others += found_[b][0].digest;
        continue;
      }
      ++disagreements;
      open = &found_[b];
      at = b;
    }
    if (disagreements == 0) return "";
    std::vector<std::string> good, bad;
    for (const Found& found : *open) {
      LogicalDigest sum = others;
      sum += found.digest;
      const bool right = disagreements == 1 && sum == expected;
      (right ? good : bad).push_back(NameRanks(found.ranks));
    }
    if (good.empty()) {
      return absl::StrCat("box ", ToString(boxes_[at]), " is not the same on ",
                          absl::StrJoin(bad, " and "));
    }
    return absl::StrCat("box ", ToString(boxes_[at]), " is wrong on ", absl::StrJoin(bad, " and "),
                        " and right on ", good[0]);
  }

  LogicalDigest Sum() const {
    LogicalDigest sum;
    for (const std::vector<Found>& found : found_) sum += found[0].digest;
    return sum;
  }

  std::string Holders() const {
    std::set<uint32_t> ranks;
    for (const std::vector<Found>& found : found_) {
      for (const Found& f : found) ranks.insert(f.ranks.begin(), f.ranks.end());
    }
    return NameRanks({ranks.begin(), ranks.end()});
  }

 private:
  struct Found {
    LogicalDigest digest;
    std::vector<uint32_t> ranks;
  };

  std::unordered_map<Box, size_t, BoxHash> index_;
  std::vector<Box> boxes_;                 // distinct
  std::vector<std::vector<Found>> found_;  // for each box, one entry per digest
};

// Describes the damage of a tensor; empty if it is intact, or if that cannot be determined. Adds to
// the verdict, also parts that must be digested again.
std::string CheckTensor(const Manifest& manifest, uint32_t t, const LoadedTensor& loaded,
                        LoadedVerdict& verdict) {
  const LogicalTensor& tensor = manifest.tensors(static_cast<int>(t));
  const LogicalDigest expected = FromProto(tensor.digest());
  const std::string disagreement = loaded.FindDisagreement(expected);
  if (!disagreement.empty()) return absl::StrCat("tensor ", tensor.name(), ": ", disagreement);
  const auto unverified = [&](absl::string_view why) {
    verdict.add_unverified(absl::StrCat(tensor.name(), ": ", why));
    return std::string();
  };
  if (!tensor.has_digest()) return unverified("saved without a digest");
  const auto problem = FindCoverageProblem(GlobalShape(tensor), loaded.boxes());
  if (problem && problem->kind == CoverageProblem::Kind::kOverlap) {
    if (loaded.boxes().size() > kMaxOverlappingBoxes) return unverified("too many overlaps");
    for (const Box& part : loaded.DisjointParts()) {
      LoadedBox& again = *verdict.add_again();
      again.set_saved_tensor(t);
      ToProto(part, *again.mutable_box());
    }
    return "";
  }
  if (problem) return unverified("loaded in part");
  const LogicalDigest found = loaded.Sum();
  if (found == expected) {
    verdict.set_verified(verdict.verified() + 1);
    return "";
  }
  return absl::StrCat("tensor ", tensor.name(), " on ", loaded.Holders(), ": ",
                      DescribeMismatch(expected, found));
}

// Evaluates the reports of all ranks, on rank 0. Returns a LoadedVerdict.
absl::StatusOr<std::string> JudgeLoaded(const Manifest& manifest,
                                        const std::vector<std::string>& payloads) {
  std::map<uint32_t, LoadedTensor> tensors;
  for (uint32_t rank = 0; rank < payloads.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(const auto report, MessageFrom<LoadedBoxes>(rank, payloads[rank]));
    for (const LoadedBox& box : report.boxes()) {
      tensors[box.saved_tensor()].Add(rank, FromProto(box.box()), FromProto(box.digest()));
    }
  }
  LoadedVerdict verdict;
  std::vector<std::string> wrong;
  for (const auto& [t, loaded] : tensors) {
    std::string problem = CheckTensor(manifest, t, loaded, verdict);
    if (!problem.empty()) wrong.push_back(std::move(problem));
  }
  if (wrong.empty()) return verdict.SerializeAsString();
  return WithDamagedParts(
      absl::DataLossError(
          absl::StrCat("what was loaded is not what was saved:\n  ", absl::StrJoin(wrong, "\n  "))),
      {});
}

bool KeepsDType(const LogicalTensor& tensor, const Destination& destination) {
  return !destination.device_converts &&
         destination.copy == FindCopy(FromProto(tensor.dtype()), FromProto(tensor.dtype()));
}

// Returns the shape of an array that begins with this box in memory, and whose row-major order is
// the order of the memory. nullopt if the strides of the box do not belong to such an array.
std::optional<Shape> ArrayAround(const Destination& to) {
  const Shape& shape = to.box.shape;
  Shape array(shape.size(), 1);
  std::optional<size_t> inner;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1) continue;
    if (inner.has_value()) {
      array[*inner] = to.strides[d] / to.strides[*inner];
      const bool fits = array[*inner] >= shape[*inner] && to.strides[d] % to.strides[*inner] == 0;
      if (!fits) return std::nullopt;
    } else if (to.strides[d] != 1) {
      return std::nullopt;
    }
    array[d] = shape[d];
    inner = d;
  }
  return array;
}

// Returns all boxes that this process can digest; adds the others' tensors to `converted`.
std::vector<Held> CollectHeld(const Manifest& manifest, const Comparison& comparison,
                              std::set<std::string>& converted) {
  std::vector<Held> all;
  for (size_t i = 0; i < comparison.wanted.size(); ++i) {
    const uint32_t t = comparison.wanted[i].saved_tensor;
    const LogicalTensor& tensor = manifest.tensors(t);
    const Destination& destination = comparison.destinations[i];
    if (destination.box.empty()) continue;
    if (!KeepsDType(tensor, destination)) {
      converted.insert(absl::StrCat(tensor.name(), ": converted to another dtype"));
      continue;
    }
    all.push_back({&destination, t, destination.box, destination.digest.get()});
  }
  return all;
}

// This process's share of the parts that must be digested again.
std::vector<Held> HeldParts(const std::vector<Held>& all, const LoadedVerdict& verdict) {
  std::map<uint32_t, std::vector<const Held*>> by_tensor;
  for (const Held& held : all) by_tensor[held.saved_tensor].push_back(&held);
  std::vector<Held> parts;
  for (const LoadedBox& again : verdict.again()) {
    const Box box = FromProto(again.box());
    for (const Held* held : by_tensor[again.saved_tensor()]) {
      if (Contains(held->box, box)) parts.push_back({held->destination, held->saved_tensor, box});
    }
  }
  return parts;
}

}  // namespace

void DigestWhilePlacing(const Manifest& manifest, Comparison& comparison) {
  for (size_t i = 0; i < comparison.wanted.size(); ++i) {
    const LogicalTensor& tensor = manifest.tensors(comparison.wanted[i].saved_tensor);
    Destination& to = comparison.destinations[i];
    if (to.box.empty() || !KeepsDType(tensor, to)) continue;
    const std::optional<Shape> array = ArrayAround(to);
    if (!array.has_value()) continue;
    to.digest =
        std::make_shared<PlacedDigest>(GlobalShape(tensor), to.box, *array, to.element_bytes);
  }
}

absl::StatusOr<LoadedDigests> VerifyLoaded(const Manifest& manifest, const Comparison& comparison,
                                           ProcessGroup& group, int threads,
                                           absl::Duration timeout) {
  std::set<std::string> converted;
  const std::vector<Held> all = CollectHeld(manifest, comparison, converted);
  const auto judge = [&](const std::vector<Held>& held) -> absl::StatusOr<LoadedVerdict> {
    const absl::StatusOr<std::string> mine = CatchExceptions(
        "digest what was loaded", [&] { return DigestAll(manifest, held, threads); });
    const Combine combine = [&](const std::vector<std::string>& payloads) {
      return JudgeLoaded(manifest, payloads);
    };
    TESSERA_ASSIGN_OR_RETURN(const std::string reply, Agree(group, mine, combine, timeout));
    return AnswerFrom<LoadedVerdict>(group, reply);
  };
  TESSERA_ASSIGN_OR_RETURN(LoadedVerdict verdict, judge(all));
  LoadedDigests result;
  result.verified = verdict.verified();
  result.unverified.assign(verdict.unverified().begin(), verdict.unverified().end());
  if (verdict.again_size() > 0) {
    TESSERA_ASSIGN_OR_RETURN(verdict, judge(HeldParts(all, verdict)));
    result.verified += verdict.verified();
    result.unverified.insert(result.unverified.end(), verdict.unverified().begin(),
                             verdict.unverified().end());
  }
  result.unverified.insert(result.unverified.end(), converted.begin(), converted.end());
  return result;
}

}  // namespace tessera::ckpt
