#include "checkpoint/load/compare.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/plan/rank_states.h"

namespace tessera::ckpt {
namespace {

// Returns whether devices convert these dtypes, to the bits to which FindCopy() does.
bool DeviceConverts(DType from, DType to) {
  const auto is_half = [](DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; };
  return (from == DType::kF32 && is_half(to)) || (is_half(from) && to == DType::kF32);
}

// The host memory into which a load places, where no element may get two values. Memory of devices
// is not compared: an address there may be any token. Cost: n log n in the runs of elements that
// are contiguous there.
class PlacedMemory {
 public:
  explicit PlacedMemory(const Manifest& manifest) : manifest_(manifest) {}

  // Adds a shard that is not empty, and gets elements of the saved tensor `saved`. `wanted` must
  // outlive this object. Returns a problem of the shard, or nothing.
  std::string Add(const ShardedTensor& wanted, const Shard& shard, uint32_t saved) {
    const uint64_t element_bytes = ElementSize(DTypeOf(wanted));
    auto begin = reinterpret_cast<uintptr_t>(shard.data);
    std::vector<std::pair<uint64_t, uint64_t>> steps;  // of each dim: the distance, and how many
    const std::vector<int64_t> strides = ShardStrides(shard);
    for (size_t d = 0; d < strides.size(); ++d) {
      const auto count = static_cast<uint64_t>(shard.box.shape[d] - 1);
      const uint64_t bytes = static_cast<uint64_t>(strides[d]) * element_bytes;
      if (strides[d] < 0) begin += count * bytes;
      if (count > 0) steps.emplace_back(strides[d] < 0 ? -bytes : bytes, count);
    }
    std::ranges::sort(steps);
    uint64_t run_bytes = element_bytes;
    unsigned __int128 reach_bytes = element_bytes;
    for (const auto& [bytes, count] : steps) {
      if (bytes < reach_bytes) {
        return absl::StrCat("box ", ToString(shard.box), " has several elements in one place");
      }
      reach_bytes += static_cast<unsigned __int128>(bytes) * count;
      if (bytes == run_bytes) run_bytes *= count + 1;
    }
    if (shard.device != nullptr) return "";
    const size_t first = runs_.size();
    runs_.push_back({begin, begin + run_bytes, &wanted, &shard, saved});
    for (const auto& [bytes, count] : steps) {
      const size_t end = runs_.size();
      if (bytes < run_bytes) continue;  // within a run
      if (count >= kMaxRuns || (end - first) * count + end > kMaxRuns) break;
      for (uint64_t distance = bytes; distance <= bytes * count; distance += bytes) {
        for (size_t r = first; r < end; ++r) {
          Run& next = runs_.emplace_back(runs_[r]);
          next.begin += distance;
          next.end += distance;
        }
      }
    }
    return "";
  }

  // Calls report(wanted tensor, mismatch) for shards that share memory.
  template <typename Report>
  void Check(const Report& report) {
    std::ranges::sort(runs_, {}, [](const Run& r) { return std::tuple(r.begin, r.end); });
    const Run* last = nullptr;  // that ends last
    std::set<const Shard*> reported;
    for (const Run& run : runs_) {
      const bool behind = last == nullptr || run.begin >= last->end;
      if (!behind && run.shard != last->shard && !AreTied(*last, run) &&
          reported.insert(run.shard).second) {
        report(*run.wanted,
               absl::StrCat("box ", ToString(run.shard->box), " shares memory with box ",
                            ToString(last->shard->box), " of tensor ", last->wanted->name,
                            AreKnown(*last, run)
                                ? ", and the checkpoint has other elements for it"
                                : ", and the checkpoint does not tell that its elements are the "
                                  "same (allow_shared_memory)"));
      }
      if (behind || run.end > last->end) last = &run;
    }
  }

 private:
  struct Run {
    uintptr_t begin, end;
    const ShardedTensor* wanted;
    const Shard* shard;
    uint32_t saved;
  };
  static constexpr size_t kMaxRuns = size_t{1} << 20;  // others are not looked at

  const LogicalTensor& SavedOf(const Run& run) const {
    return manifest_.tensors(static_cast<int>(run.saved));
  }

  // Returns whether the checkpoint tells if two shards have the same elements.
  bool AreKnown(const Run& a, const Run& b) const {
    return a.saved == b.saved || (SavedOf(a).has_digest() && SavedOf(b).has_digest());
  }

  // Returns whether the checkpoint has the same elements for two shards of the same memory.
  bool AreTied(const Run& a, const Run& b) const {
    const LogicalTensor& first = SavedOf(a);
    const LogicalTensor& second = SavedOf(b);
    const bool same_elements =
        a.saved == b.saved ||
        (AreKnown(a, b) && FromProto(first.digest()) == FromProto(second.digest()) &&
         GlobalShape(first) == GlobalShape(second) && first.dtype() == second.dtype());
    return same_elements && a.shard->data == b.shard->data && a.shard->box == b.shard->box &&
           ShardStrides(*a.shard) == ShardStrides(*b.shard) &&
           DTypeOf(*a.wanted) == DTypeOf(*b.wanted);
  }

  const Manifest& manifest_;
  std::vector<Run> runs_;
};

class Comparer {
 public:
  Comparer(const Manifest& manifest, const LoadOptions& options)
      : manifest_(manifest), options_(options), masters_(MasterNames(manifest)), memory_(manifest) {
    result_.used.resize(manifest.tensors_size());
    for (int t = 0; t < manifest.tensors_size(); ++t) index_[manifest.tensors(t).name()] = t;
  }

  void Add(const ShardedTensor& wanted) {
    if (!wanted.alias_of.empty()) return AddAlias(wanted);
    std::optional<uint32_t> saved = Find(wanted.name);
    if (saved) {
      const LogicalTensor& tensor = manifest_.tensors(*saved);
      if (FromProto(tensor.role()) != wanted.role) {
        Mismatch(wanted, absl::StrCat("saved as ", RoleProto_Name(tensor.role()), ", wanted as ",
                                      ProtoName(wanted.role)));
      }
    } else if (wanted.role == TensorRole::kWeight && options_.weights_from_master) {
      saved = FindMaster(wanted.name);
      if (saved) result_.from_master.push_back(wanted.name);
    }
    if (!saved) {
      if (options_.allow_missing) {
        result_.missing.push_back(wanted.name);
      } else {
        Mismatch(wanted, "wanted, not in the checkpoint");
      }
      return;
    }
    AddShards(wanted, Resolve(*saved));
  }

  Comparison Finish() && {
    memory_.Check(
        [&](const ShardedTensor& wanted, const std::string& text) { Mismatch(wanted, text); });
    return std::move(result_);
  }

 private:
  void Mismatch(const ShardedTensor& wanted, absl::string_view text) {
    result_.mismatches.push_back(absl::StrCat("tensor ", wanted.name, ": ", text));
  }

  std::optional<uint32_t> Find(const std::string& name) const {
    const auto at = index_.find(name);
    if (at == index_.end()) return std::nullopt;
    return at->second;
  }

  std::optional<uint32_t> FindMaster(const std::string& weight) const {
    const auto master = masters_.find(weight);
    if (master == masters_.end()) return std::nullopt;
    return Find(std::string(master->second));
  }

  // Returns the tensor that holds the shards of a name, which may be an alias.
  uint32_t Resolve(uint32_t saved) {
    result_.used[saved] = true;
    const std::string& target = manifest_.tensors(saved).alias_of();
    if (target.empty()) return saved;
    const uint32_t resolved = *Find(target);
    result_.used[resolved] = true;
    return resolved;
  }

  // An alias has no memory. It must be saved as an alias of the same tensor.
  void AddAlias(const ShardedTensor& wanted) {
    const std::optional<uint32_t> saved = Find(wanted.name);
    if (!saved) return;
    result_.used[*saved] = true;
    const std::string& target = manifest_.tensors(*saved).alias_of();
    if (target == wanted.alias_of) return;
    Mismatch(wanted, absl::StrCat(target.empty() ? std::string("saved as a tensor of its own")
                                                 : "saved as an alias of " + target,
                                  ", wanted as an alias of ", wanted.alias_of));
  }

  void AddShards(const ShardedTensor& wanted, uint32_t saved) {
    const LogicalTensor& tensor = manifest_.tensors(saved);
    const Shape saved_shape = GlobalShape(tensor);
    const DType saved_dtype = FromProto(tensor.dtype()), wanted_dtype = DTypeOf(wanted);
    bool fits = true;
    if (saved_shape != wanted.global_shape) {
      Mismatch(wanted, absl::StrCat("saved with shape ", ShapeToString(saved_shape),
                                    ", wanted with shape ", ShapeToString(wanted.global_shape)));
      fits = false;
    }
    const CopyElements copy = FindCopy(saved_dtype, wanted_dtype);
    if (copy == nullptr || (saved_dtype != wanted_dtype && !options_.convert_dtype)) {
      Mismatch(wanted, absl::StrCat("saved as ", DTypeProto_Name(tensor.dtype()), ", wanted as ",
                                    ProtoName(wanted_dtype),
                                    copy == nullptr ? ", and there is no conversion"
                                                    : ", and conversion is not allowed"));
      fits = false;
    }
    if (const absl::Status covered = ValidateCoverage(tensor); !covered.ok()) {
      Mismatch(wanted, covered.message());
      fits = false;
    }
    if (!fits) return;
    for (const Shard& shard : wanted.shards) {
      if (shard.box.empty()) continue;
      if (!options_.allow_shared_memory) {
        const std::string problem = memory_.Add(wanted, shard, saved);
        if (!problem.empty()) Mismatch(wanted, problem);
      }
      result_.wanted.push_back({saved, shard.box});
      result_.destinations.push_back(
          {.box = shard.box,
           .data = static_cast<std::byte*>(shard.data),
           .strides = ShardStrides(shard),
           .element_bytes = static_cast<size_t>(ElementSize(wanted_dtype)),
           .copy = copy,
           .dtype = wanted_dtype,
           .find_overflow =
               options_.allow_overflow ? nullptr : FindOverflowOf(saved_dtype, wanted_dtype)});
      Destination& to = result_.destinations.back();
      if (shard.device == nullptr) continue;
      to.strides = ContiguousStrides(shard.box.shape);
      to.device = shard.device;
      to.handle = shard.handle;
      to.device_converts = DeviceConverts(saved_dtype, wanted_dtype);
      to.host_dtype = to.device_converts ? saved_dtype : wanted_dtype;
      to.element_bytes = ElementSize(to.host_dtype);
      to.copy = FindCopy(saved_dtype, to.host_dtype);
    }
  }

  const Manifest& manifest_;
  const LoadOptions& options_;
  std::map<std::string, uint32_t> index_;
  const std::map<std::string_view, std::string_view> masters_;
  PlacedMemory memory_;
  Comparison result_;
};

}  // namespace

Comparison Compare(const Manifest& manifest, const StateDict& state, const LoadOptions& options) {
  Comparer comparer(manifest, options);
  for (const ShardedTensor& tensor : state.tensors) comparer.Add(tensor);
  return std::move(comparer).Finish();
}

std::vector<std::string> UnexpectedTensors(const Manifest& manifest,
                                           const std::vector<bool>& used) {
  std::vector<std::string> names;
  for (int t = 0; t < manifest.tensors_size(); ++t) {
    const LogicalTensor& tensor = manifest.tensors(t);
    if (!used[t] && tensor.alias_of().empty()) names.push_back(tensor.name());
  }
  return names;
}

}  // namespace tessera::ckpt
