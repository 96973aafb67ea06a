#include "convert/deepspeed/zero_shard.h"

#include <cstddef>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "convert/pickle/budget.h"
#include "convert/pickle/value.h"
#include "convert/torch/torch_file.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

int64_t PartitionCount(const Value& count) {
  if (count.size() == 0) return count.AsInt().value_or(0);
  for (size_t i = 1; i < count.size(); ++i) {
    if (count[i].AsInt() != count[0].AsInt()) return 0;
  }
  return count[0].AsInt().value_or(0);
}

absl::Status AddVector(const TorchArchive& archive, const ForeignKind& kind, const Value& value,
                       ZeroGroup& group) {
  if (!IsTorchTensor(value)) return absl::DataLossError("no tensor");
  TESSERA_ASSIGN_OR_RETURN(TorchTensor tensor, ResolveTorchTensor(archive, value));
  if (tensor.shape.size() != 1 || (tensor.strides[0] != 1 && tensor.shape[0] > 1)) {
    return absl::DataLossError(
        absl::StrCat("shape ", ShapeToString(tensor.shape), ", expected a contiguous vector"));
  }
  group.vectors.emplace_back(kind, std::move(tensor));
  return absl::OkStatus();
}

absl::Status AddSlices(const Value& slices, pickle::Budget& budget, ZeroGroup& group) {
  for (size_t i = 0; i < slices.entry_count(); ++i) {
    const auto [key, slice] = slices.entry(i);
    const std::string_view text = key.AsText().value_or("");
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(ZeroSlice) + text.size()));
    const std::string name(text);
    const std::optional<int64_t> start = slice.state().Find("start").AsInt();
    const std::optional<int64_t> count = slice.state().Find("numel").AsInt();
    if (name.empty() || !start || !count) {
      return absl::DataLossError(absl::StrCat("a malformed entry of param_slice_mappings: ",
                                              absl::CHexEscape(name.substr(0, 200))));
    }
    group.slices.push_back({name, *start, *count});
  }
  return absl::OkStatus();
}

// The moments of a group: the base optimizer's state has one tensor for each group, by number.
absl::Status AddMoments(const TorchArchive& archive, const Value& base, size_t index,
                        ZeroGroup& group) {
  const Value in_list = base[index];  // of an elastic checkpoint
  const Value state =
      in_list.present() ? in_list : FindNumber(base.Find("state"), static_cast<int64_t>(index));
  for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq}) {
    const Value moment = state.Find(kind.state);
    if (moment.present()) TESSERA_RETURN_IF_ERROR(AddVector(archive, kind, moment, group));
  }
  return absl::OkStatus();
}

absl::StatusOr<ZeroShard> Read(const TorchArchive& archive) {
  const Value state = archive.contents.root().Find("optimizer_state_dict");
  const Value partitions = state.Find("single_partition_of_fp32_groups");
  ZeroShard shard = {.cuts_parameters = !partitions.present(),
                     .ranks = PartitionCount(state.Find("partition_count"))};
  const Value fp32 = shard.cuts_parameters ? state.Find("fp32_flat_groups") : partitions;
  const Value base =
      state.Find(shard.cuts_parameters ? "optimizer_state_dict" : "base_optimizer_state");
  const Value slices = state.Find("param_slice_mappings");
  if (!fp32.present()) return absl::DataLossError("not written by ZeRO: no groups of fp32 weights");
  if (!shard.cuts_parameters && !slices.present()) {
    return absl::UnimplementedError(
        "no param_slice_mappings, which tell where each parameter is: load and save it with a "
        "later DeepSpeed");
  }
  if (!shard.cuts_parameters && slices.size() != fp32.size()) {
    return absl::DataLossError(absl::StrCat(fp32.size(), " groups of fp32 weights, ", slices.size(),
                                            " of param_slice_mappings"));
  }
  pickle::Budget budget(archive.contents);
  for (size_t i = 0; i < fp32.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(ZeroGroup) + 3 * sizeof(TorchTensor)));
    ZeroGroup& group = shard.groups.emplace_back();
    absl::Status status = AddVector(archive, kForeignWeight, fp32[i], group);
    if (status.ok()) status = AddMoments(archive, base, i, group);
    if (status.ok() && !shard.cuts_parameters) status = AddSlices(slices[i], budget, group);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("group ", i, ": ", status.message()));
    }
  }
  return shard;
}

}  // namespace

absl::StatusOr<ZeroShard> ReadZeroShard(Storage& storage, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchFile(storage, path));
  return InFile(storage, path, Read(archive));
}

}  // namespace tessera::ckpt::convert
