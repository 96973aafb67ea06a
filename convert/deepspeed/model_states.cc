#include "convert/deepspeed/model_states.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "convert/pickle/budget.h"
#include "convert/pickle/value.h"
#include "convert/torch/torch_file.h"
#include "layout/bounds.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

std::string Shown(std::string_view name) {
  return absl::CHexEscape(absl::string_view(name.data(), std::min<size_t>(name.size(), 200)));
}

absl::StatusOr<std::string> NameOf(const Value& key, pickle::Budget& budget) {
  const std::string_view text = key.AsText().value_or("");
  TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(TorchTensor) + text.size()));
  const std::string name(text);
  if (!name.empty() && IsValidUtf8(name)) return name;
  return absl::DataLossError("a tensor whose name is empty or not valid UTF-8");
}

absl::StatusOr<NamedShapes> ReadShapes(const Value& dict, pickle::Budget& budget) {
  NamedShapes shapes;
  for (size_t i = 0; i < dict.entry_count(); ++i) {
    const auto [key, value] = dict.entry(i);
    TESSERA_ASSIGN_OR_RETURN(std::string name, NameOf(key, budget));
    std::optional<std::vector<int64_t>> shape = TorchIntegers(value);
    if (!shape || shape->size() > kMaxRank || !CheckedByteCount(*shape, sizeof(double)).ok()) {
      return absl::DataLossError(
          absl::StrCat("parameter ", Shown(name), ": no shape, or one that is too large"));
    }
    shapes.emplace_back(std::move(name), *std::move(shape));
  }
  return shapes;
}

// Tensors of other dtypes and kinds than are known here are left out.
absl::StatusOr<NamedTensors> ReadTensors(const TorchArchive& archive, const Value& dict,
                                         pickle::Budget& budget) {
  NamedTensors tensors;
  for (size_t i = 0; i < dict.entry_count(); ++i) {
    const auto [key, value] = dict.entry(i);
    if (!IsTorchTensor(value)) continue;
    TESSERA_ASSIGN_OR_RETURN(const std::string name, NameOf(key, budget));
    absl::StatusOr<TorchTensor> tensor = ResolveTorchTensor(archive, value);
    if (absl::IsUnimplemented(tensor.status())) continue;
    if (!tensor.ok()) {
      return absl::DataLossError(
          absl::StrCat("tensor ", Shown(name), ": ", tensor.status().message()));
    }
    tensors[name] = *std::move(tensor);
  }
  return tensors;
}

absl::StatusOr<DeepSpeedModelStates> Read(const TorchArchive& archive) {
  const Value root = archive.contents.root();
  pickle::Budget budget(archive.contents);
  DeepSpeedModelStates states;
  const Value groups = root.Find("param_shapes");
  for (size_t i = 0; i < groups.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(budget.Take(sizeof(NamedShapes)));
    TESSERA_ASSIGN_OR_RETURN(NamedShapes shapes, ReadShapes(groups[i], budget));
    states.groups.push_back(std::move(shapes));
  }
  TESSERA_ASSIGN_OR_RETURN(states.frozen, ReadShapes(root.Find("frozen_param_shapes"), budget));
  TESSERA_ASSIGN_OR_RETURN(states.frozen_fragments,
                           ReadTensors(archive, root.Find("frozen_param_fragments"), budget));
  TESSERA_ASSIGN_OR_RETURN(states.module, ReadTensors(archive, root.Find("module"), budget));
  const Value shared = root.Find("shared_params");
  for (size_t i = 0; i < shared.entry_count(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(std::string second, NameOf(shared.entry(i).first, budget));
    TESSERA_ASSIGN_OR_RETURN(std::string first, NameOf(shared.entry(i).second, budget));
    states.shared.emplace_back(std::move(second), std::move(first));
  }
  states.data_parallel_size = root.Find("dp_world_size").AsInt();
  // Steps that were skipped because a gradient overflowed change nothing.
  if (const std::optional<int64_t> steps = root.Find("global_steps").AsInt()) {
    const int64_t skipped = root.Find("skipped_steps").AsInt().value_or(0);
    if (skipped >= 0 && skipped <= *steps) states.steps = *steps - skipped;
  }
  states.samples = root.Find("global_samples").AsInt();
  states.version = Shown(root.Find("ds_version").AsText().value_or(""));
  return states;
}

}  // namespace

absl::StatusOr<DeepSpeedModelStates> ReadDeepSpeedModelStates(Storage& storage,
                                                              const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchFile(storage, path));
  return InFile(storage, path, Read(archive));
}

}  // namespace tessera::ckpt::convert
