#include "checkpoint/plan/rank_state.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/join_first.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/layout_proto.h"
#include "checkpoint/plan/box_index.h"
#include "layout/bounds.h"

namespace tessera::ckpt {
namespace {

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

  absl::Status Finish() {
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the state dict is not valid:\n  ", JoinFirst(problems_, "\n  ")));
  }

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
    return DTypeProto_IsValid(ToProto(dtype)) ? DTypeProto_Name(ToProto(dtype))
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
  absl::flat_hash_set<std::string> names_;
  std::vector<std::string> problems_;
};

absl::Status Check(const StateDict& state, bool check_writable) {
  Checker checker(check_writable);
  for (const ShardedTensor& tensor : state.tensors) checker.Check(tensor);
  return checker.Finish();
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
  RankState plan;
  for (const ShardedTensor& tensor : state.tensors) {
    LocalTensor& local = *plan.add_tensors();
    local.set_name(tensor.name);
    local.set_role(ToProto(tensor.role));
    local.set_dtype(ToProto(DTypeOf(tensor)));
    local.set_alias_of(tensor.alias_of);
    local.mutable_global_shape()->Add(tensor.global_shape.begin(), tensor.global_shape.end());
    local.mutable_padded_shape()->Add(tensor.padded_shape.begin(), tensor.padded_shape.end());
    if (tensor.partition) *local.mutable_partition() = ToProto(*tensor.partition);
    local.set_shard_count(tensor.shards.size());
    for (const Shard& shard : tensor.shards) {
      local.mutable_shard_offset()->Add(shard.box.global_offset.begin(),
                                        shard.box.global_offset.end());
      local.mutable_shard_shape()->Add(shard.box.shape.begin(), shard.box.shape.end());
    }
  }
  return plan;
}

std::vector<int64_t> ShardStrides(const Shard& shard) {
  return shard.strides.empty() ? ContiguousStrides(shard.box.shape) : shard.strides;
}

}  // namespace tessera::ckpt
