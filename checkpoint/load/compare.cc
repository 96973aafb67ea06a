#include "checkpoint/load/compare.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
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

// The memory into which a load places, in which no element may get two values. n log n in the
// shards and, where strided ones interleave, in their runs of elements.
class PlacedMemory {
 public:
  explicit PlacedMemory(const Manifest& manifest) : manifest_(manifest) {}

  // Adds a shard that is not empty, and gets elements of the saved tensor `saved`. `wanted` must
  // outlive this object. Returns a problem of the shard, or nothing.
  std::string Add(const ShardedTensor& wanted, const Shard& shard, uint32_t saved) {
    Part part = {.wanted = &wanted, .shard = &shard, .saved = saved};
    const auto element_bytes = static_cast<uint64_t>(ElementSize(DTypeOf(wanted)));
    part.run_bytes = element_bytes;
    part.begin = reinterpret_cast<uintptr_t>(shard.data);
    const std::vector<int64_t> strides = ShardStrides(shard);
    for (size_t d = 0; d < strides.size(); ++d) {
      const auto more = static_cast<uint64_t>(shard.box.shape[d] - 1);
      uint64_t step = static_cast<uint64_t>(strides[d]) * element_bytes;
      if (strides[d] < 0) part.begin += more * step;
      if (strides[d] < 0) step = -step;
      if (more > 0) part.steps.push_back({step, more});
    }
    std::ranges::sort(part.steps);
    unsigned __int128 size_bytes = element_bytes;
    for (const auto& [step, more] : part.steps) {
      if (step < size_bytes) {
        return absl::StrCat("box ", ToString(shard.box), " has several elements in one place");
      }
      size_bytes += static_cast<unsigned __int128>(step) * more;
    }
    part.end = part.begin + static_cast<uint64_t>(size_bytes);
    size_t inner = 0;
    for (; inner < part.steps.size() && part.steps[inner].first == part.run_bytes; ++inner) {
      part.run_bytes *= part.steps[inner].second + 1;
    }
    part.steps.erase(part.steps.begin(), part.steps.begin() + static_cast<std::ptrdiff_t>(inner));
    parts_.push_back(std::move(part));
    return "";
  }

  // Calls report(wanted tensor, mismatch) for parts that overlap.
  template <typename Report>
  void Check(const Report& report) {
    std::ranges::sort(parts_, {}, [](const Part& part) {
      return std::tuple(part.shard->device.get(), part.begin, part.end);
    });
    for (size_t first = 0, next = 0; first < parts_.size(); first = next) {
      uintptr_t end = parts_[first].end;
      for (++next; next < parts_.size() && parts_[next].begin < end &&
                   parts_[next].shard->device == parts_[first].shard->device;
           ++next) {
        end = std::max(end, parts_[next].end);
      }
      const auto overlap = FindOverlap(std::span(parts_).subspan(first, next - first));
      if (!overlap.has_value()) continue;
      const auto& [a, b] = *overlap;
      report(*b->wanted, absl::StrCat("box ", ToString(b->shard->box), " shares memory with box ",
                                      ToString(a->shard->box), " of tensor ", a->wanted->name,
                                      ", and the checkpoint has other elements for it"));
    }
  }

 private:
  struct Part {
    const ShardedTensor* wanted;
    const Shard* shard;
    uint32_t saved;
    uintptr_t begin = 0, end = 0;
    uint64_t run_bytes = 0;
    // The distances of the runs, ascending, and how many there are of each after the first run.
    std::vector<std::pair<uint64_t, uint64_t>> steps;
  };
  struct Run {
    uintptr_t begin, end;
    const Part* part;
  };
  static constexpr size_t kMaxRuns = size_t{1} << 20;

  // Returns whether the checkpoint has the same elements for two parts of the same memory, as of
  // tied weights.
  bool AreTied(const Part& a, const Part& b) const {
    const LogicalTensor& first = manifest_.tensors(static_cast<int>(a.saved));
    const LogicalTensor& second = manifest_.tensors(static_cast<int>(b.saved));
    const bool same_elements =
        a.saved == b.saved ||
        (first.has_digest() && second.has_digest() &&
         FromProto(first.digest()) == FromProto(second.digest()) &&
         GlobalShape(first) == GlobalShape(second) && first.dtype() == second.dtype());
    return same_elements && a.shard->data == b.shard->data && a.shard->box == b.shard->box &&
           ShardStrides(*a.shard) == ShardStrides(*b.shard) &&
           DTypeOf(*a.wanted) == DTypeOf(*b.wanted);
  }

  // Returns two parts that have a byte in common and are not tied. Gives up on too many runs.
  std::optional<std::pair<const Part*, const Part*>> FindOverlap(std::span<const Part> parts) {
    if (parts.size() == 1) return std::nullopt;
    std::vector<Run> runs;
    for (const Part& part : parts) {
      size_t begin = runs.size();
      runs.push_back({part.begin, part.begin + part.run_bytes, &part});
      for (const auto& [step, more] : part.steps) {
        const size_t end = runs.size();
        if (more >= kMaxRuns || (end - begin) * more + end > kMaxRuns) return std::nullopt;
        for (uint64_t times = 1; times <= more; ++times) {
          for (size_t r = begin; r < end; ++r) {
            runs.push_back({runs[r].begin + times * step, runs[r].end + times * step, &part});
          }
        }
      }
    }
    std::ranges::sort(runs, {}, [](const Run& run) { return std::pair(run.begin, run.end); });
    const Run* last = &runs.front();
    for (const Run& run : runs) {
      if (run.begin < last->end && run.part != last->part && !AreTied(*last->part, *run.part)) {
        return std::pair(last->part, run.part);
      }
      if (run.end > last->end) last = &run;
    }
    return std::nullopt;
  }

  const Manifest& manifest_;
  std::vector<Part> parts_;
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

  // An alias has no memory of its own; the only check is that the checkpoint has the same alias.
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
    const DType wanted_dtype = DTypeOf(wanted);
    bool fits = true;
    if (saved_shape != wanted.global_shape) {
      Mismatch(wanted, absl::StrCat("saved with shape ", ShapeToString(saved_shape),
                                    ", wanted with shape ", ShapeToString(wanted.global_shape)));
      fits = false;
    }
    const CopyElements copy = FindCopy(FromProto(tensor.dtype()), wanted_dtype);
    if (copy == nullptr || (FromProto(tensor.dtype()) != wanted_dtype && !options_.convert_dtype)) {
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
           .dtype = wanted_dtype});
      Destination& to = result_.destinations.back();
      if (!options_.allow_overflow) {
        to.find_overflow = FindOverflowOf(FromProto(tensor.dtype()), wanted_dtype);
      }
      if (shard.device == nullptr) continue;
      to.strides = ContiguousStrides(shard.box.shape);
      to.device = shard.device;
      to.handle = shard.handle;
      to.device_converts = DeviceConverts(FromProto(tensor.dtype()), wanted_dtype);
      to.host_dtype = to.device_converts ? FromProto(tensor.dtype()) : wanted_dtype;
      to.element_bytes = ElementSize(to.host_dtype);
      to.copy = FindCopy(FromProto(tensor.dtype()), to.host_dtype);
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
