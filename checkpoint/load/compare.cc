#include "checkpoint/load/compare.h"

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/plan/rank_states.h"

namespace tessera::ckpt {
namespace {

// The name under which an optimizer state holds a parameter's master weight.
constexpr char kMasterState[] = "master";

// Returns whether devices convert these dtypes, to the bits to which FindCopy() does.
bool DeviceConverts(DType from, DType to) {
  const auto is_half = [](DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; };
  return (from == DType::kF32 && is_half(to)) || (is_half(from) && to == DType::kF32);
}

class Comparer {
 public:
  Comparer(const Manifest& manifest, const LoadOptions& options)
      : manifest_(manifest), options_(options) {
    result_.used.resize(manifest.tensors_size());
    for (int t = 0; t < manifest.tensors_size(); ++t) index_[manifest.tensors(t).name()] = t;
    for (const OptimizerParameter& parameter : manifest.optimizer().parameters()) {
      const auto master = parameter.states().find(kMasterState);
      if (master != parameter.states().end()) master_[parameter.parameter()] = master->second;
    }
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

  Comparison Finish() && { return std::move(result_); }

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
    const auto master = master_.find(weight);
    if (master == master_.end()) return std::nullopt;
    return Find(master->second);
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
      result_.wanted.push_back({saved, shard.box});
      result_.destinations.push_back(
          {shard.box, static_cast<std::byte*>(shard.data), ShardStrides(shard),
           static_cast<size_t>(ElementSize(wanted_dtype)), copy, wanted_dtype});
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
  std::map<std::string, std::string> master_;  // weight -> its master
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
