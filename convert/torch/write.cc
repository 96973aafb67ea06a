#include "convert/torch/write.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "convert/pickle/write.h"
#include "convert/torch/archive.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

bool IsFloating(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return true;
    default:
      return false;
  }
}

// Parameters with both moments, by group, in the order of the modules.
std::vector<TorchOutputGroup> FindGroups(const Manifest& manifest,
                                         const std::vector<TorchOutputTensor>& all,
                                         const std::vector<std::string>& module_order) {
  std::map<std::string, size_t> indices, ranks;
  for (size_t i = 0; i < all.size(); ++i) indices[all[i].logical->name()] = i;
  for (size_t i = 0; i < module_order.size(); ++i) ranks.emplace(module_order[i], i);
  std::map<uint32_t, TorchOutputGroup> groups;
  const auto index_of = [&](const OptimizerParameter& parameter, const char* state) {
    const auto name = parameter.states().find(state);
    const auto at = name == parameter.states().end() ? indices.end() : indices.find(name->second);
    return at == indices.end() ? all.size() : at->second;
  };
  for (const OptimizerParameter& parameter : manifest.optimizer().parameters()) {
    const size_t first = index_of(parameter, "exp_avg"), second = index_of(parameter, "exp_avg_sq");
    if (first == all.size() || second == all.size()) continue;
    groups[parameter.group()].states.push_back({parameter.parameter(), first, second});
  }
  std::vector<TorchOutputGroup> found;
  for (auto& [number, group] : groups) {
    group.decays = number == 0;
    if (number < static_cast<uint32_t>(manifest.optimizer().groups_size())) {
      group.options = &manifest.optimizer().groups(static_cast<int>(number));
    }
    std::ranges::stable_sort(group.states, {}, [&](const TorchOutputState& state) {
      const auto rank = ranks.find(state.parameter);
      return rank == ranks.end() ? module_order.size() : rank->second;
    });
    found.push_back(std::move(group));
  }
  return found;
}

// Gives the tensors of a model and its optimizer their keys.
void SetKeys(const Manifest& manifest, TorchOutputTensors& tensors) {
  std::set<std::string> weights;
  for (TorchOutputTensor& tensor : tensors.all) {
    if (FromProto(tensor.logical->role()) != TensorRole::kWeight &&
        FromProto(tensor.logical->role()) != TensorRole::kBuffer)
      continue;
    weights.insert(tensor.logical->name());
    tensor.key = absl::StrCat("model.", tensor.logical->name());
  }
  std::map<std::string, std::string> parameters;  // that have only a master weight, by its name
  for (const OptimizerParameter& parameter : manifest.optimizer().parameters()) {
    const auto master = parameter.states().find("master");
    if (master == parameter.states().end() || weights.contains(parameter.parameter())) continue;
    parameters[master->second] = parameter.parameter();
  }
  for (TorchOutputTensor& tensor : tensors.all) {
    const auto master = parameters.find(tensor.logical->name());
    if (master != parameters.end()) tensor.key = absl::StrCat("model.", master->second);
  }
  for (const TorchOutputGroup& group : tensors.groups) {
    for (const TorchOutputState& state : group.states) {
      const std::string prefix = absl::StrCat("optimizer.state.", state.parameter, ".");
      tensors.all[state.exp_avg].key = prefix + "exp_avg";
      tensors.all[state.exp_avg_sq].key = prefix + "exp_avg_sq";
    }
  }
}

}  // namespace

uint64_t StoredBytes(const TorchOutputTensor& tensor) {
  return static_cast<uint64_t>(ElementCount(GlobalShape(*tensor.logical))) *
         ElementSize(tensor.dtype);
}

OutputTensor ToOutputTensor(const TorchOutputTensor& tensor, uint64_t offset_bytes) {
  const Shape shape = GlobalShape(*tensor.logical);
  const size_t size = ElementSize(tensor.dtype);
  return {.name = tensor.logical->name(),
          .source_name = tensor.logical->name(),
          .role = FromProto(tensor.logical->role()),
          .dtype = tensor.dtype,
          .shape = shape,
          .offset_bytes = offset_bytes,
          .elements = ElementCount(shape),
          .pieces = [shape, size](int64_t begin, int64_t end) {
            return RowMajorPieces(shape, size, begin, end);
          }};
}

TorchOutputTensors SelectTensors(const Manifest& manifest, const TorchOutputOptions& options) {
  TorchOutputTensors tensors;
  std::map<std::string, size_t> stored;
  const auto is_wanted = [&](const LogicalTensor& tensor) {
    return !options.weights_only || FromProto(tensor.role()) == TensorRole::kWeight ||
           FromProto(tensor.role()) == TensorRole::kBuffer;
  };
  const auto dtype_of = [&](const LogicalTensor& tensor) {
    const bool converts =
        options.dtype != DType::kUnspecified && FromProto(tensor.role()) == TensorRole::kWeight;
    return converts && IsFloating(FromProto(tensor.dtype())) ? options.dtype
                                                             : FromProto(tensor.dtype());
  };
  for (const LogicalTensor& tensor : manifest.tensors()) {
    if (!is_wanted(tensor) || !tensor.alias_of().empty()) continue;
    stored.emplace(tensor.name(), tensors.stored.size());
    tensors.stored.push_back({&tensor, tensor.name(), dtype_of(tensor), tensors.stored.size()});
  }
  for (const LogicalTensor& tensor : manifest.tensors()) {
    const auto at = stored.find(tensor.alias_of().empty() ? tensor.name() : tensor.alias_of());
    if (!is_wanted(tensor) || at == stored.end()) continue;
    tensors.all.push_back({&tensor, tensor.name(), tensors.stored[at->second].dtype, at->second});
  }
  tensors.groups = FindGroups(manifest, tensors.all, options.module_order);
  if (!tensors.groups.empty()) SetKeys(manifest, tensors);
  return tensors;
}

bool HasRoles(const TorchOutputTensors& tensors) {
  return std::ranges::any_of(tensors.all, [](const TorchOutputTensor& tensor) {
    return FromProto(tensor.logical->role()) != TensorRole::kWeight;
  });
}

void WriteRoles(const TorchOutputTensors& tensors, pickle::Writer& writer) {
  writer.BeginDict();
  for (const TorchOutputTensor& tensor : tensors.all) {
    if (FromProto(tensor.logical->role()) == TensorRole::kWeight) continue;
    writer.Text(tensor.key);
    writer.Text(RoleProto_Name(tensor.logical->role()));
  }
  writer.EndDict();
}

bool HasNames(const TorchOutputTensors& tensors) { return !tensors.groups.empty(); }

void WriteNames(const TorchOutputTensors& tensors, std::span<const std::string> hidden,
                pickle::Writer& writer) {
  writer.BeginDict();
  for (const std::string& key : hidden) {
    writer.Text(key);
    writer.Text("");
  }
  for (const TorchOutputTensor& tensor : tensors.all) {
    if (tensor.key == tensor.logical->name()) continue;
    writer.Text(tensor.key);
    writer.Text(tensor.logical->name());
  }
  writer.EndDict();
}

std::vector<TorchSetting> SettingsOf(const TorchOutputGroup& group, const Manifest& manifest) {
  const auto option = [&](const char* name, double by_default) {
    if (group.options == nullptr) return by_default;
    const auto at = group.options->options().find(name);
    return at == group.options->options().end() ? by_default : at->second;
  };
  const auto real = [](double value) {
    return [value](pickle::Writer& writer) { writer.Float(value); };
  };
  const auto truth = [](bool value) {
    return [value](pickle::Writer& writer) { writer.Bool(value); };
  };
  const auto none = [](pickle::Writer& writer) { writer.None(); };
  const double beta1 = option("beta1", 0.9), beta2 = option("beta2", 0.999);
  const bool has_rate = manifest.trainer().has_schedule();
  return {{"lr", real(has_rate ? manifest.trainer().schedule().learning_rate() : 1e-3)},
          {"betas",
           [=](pickle::Writer& writer) {
             writer.BeginTuple();
             writer.Float(beta1);
             writer.Float(beta2);
             writer.EndTuple();
           }},
          {"eps", real(option("epsilon", 1e-8))},
          {"weight_decay", real(option("weight_decay", group.decays ? 1e-2 : 0))},
          {"amsgrad", truth(false)},
          {"maximize", truth(false)},
          {"foreach", none},
          {"capturable", truth(false)},
          {"differentiable", truth(false)},
          {"fused", none},
          {"decoupled_weight_decay", truth(true)}};
}

// A trainer that skips steps counts its updates apart.
double UpdatesOf(const Manifest& manifest) {
  const auto updates = manifest.trainer().extra().find("optimizer_updates");
  int64_t count = 0;
  const bool is_known =
      updates != manifest.trainer().extra().end() && absl::SimpleAtoi(updates->second, &count);
  return static_cast<double>(is_known ? count : manifest.trainer().step());
}

bool HasTrainer(const Manifest& manifest, const TorchOutputOptions& options) {
  return manifest.has_trainer() && !options.weights_only;
}

void WriteTrainer(const TrainerState& trainer, pickle::Writer& writer) {
  writer.BeginDict();
  writer.Text("step");
  writer.Int(trainer.step());
  if (trainer.has_data()) {
    writer.Text("consumed_samples");
    writer.Int(trainer.data().consumed_samples());
  }
  writer.EndDict();
}

namespace {

constexpr std::string_view kModelPrefix = "model.", kOptimizerPrefix = "optimizer.";

void WriteTensor(const TorchOutputTensor& tensor, pickle::Writer& writer) {
  WriteTorchTensor(tensor.dtype, GlobalShape(*tensor.logical), tensor.stored, writer);
}

// The tensors of the model, or of no place.
void WriteTensors(const TorchOutputTensors& tensors, bool of_model, pickle::Writer& writer) {
  const bool is_nested = !tensors.groups.empty();
  for (const TorchOutputTensor& tensor : tensors.all) {
    const std::string_view key = tensor.key;
    const bool in_model = is_nested && key.starts_with(kModelPrefix);
    if (in_model != of_model || (is_nested && key.starts_with(kOptimizerPrefix))) continue;
    writer.Text(of_model ? key.substr(kModelPrefix.size()) : key);
    WriteTensor(tensor, writer);
  }
}

// What AdamW.load_state_dict() takes. Parameters have numbers, group by group.
void WriteOptimizer(const TorchOutputTensors& tensors, const Manifest& manifest,
                    pickle::Writer& writer) {
  writer.BeginDict();
  writer.Text("state");
  writer.BeginDict();
  int64_t number = 0;
  for (const TorchOutputGroup& group : tensors.groups) {
    for (const TorchOutputState& state : group.states) {
      writer.Int(number++);
      writer.BeginDict();
      writer.Text("step");
      writer.Float(UpdatesOf(manifest));
      writer.Text("exp_avg");
      WriteTensor(tensors.all[state.exp_avg], writer);
      writer.Text("exp_avg_sq");
      WriteTensor(tensors.all[state.exp_avg_sq], writer);
      writer.EndDict();
    }
  }
  writer.EndDict();
  writer.Text("param_groups");
  writer.BeginList();
  number = 0;
  for (const TorchOutputGroup& group : tensors.groups) {
    writer.BeginDict();
    for (const TorchSetting& setting : SettingsOf(group, manifest)) {
      writer.Text(setting.name);
      setting.write(writer);
    }
    writer.Text("params");
    writer.BeginList();
    for (size_t i = 0; i < group.states.size(); ++i) writer.Int(number++);
    writer.EndList();
    writer.EndDict();
  }
  writer.EndList();
  writer.EndDict();
}

}  // namespace

std::vector<OutputFile> PlanTorch(const Manifest& manifest, const TorchOutputOptions& options) {
  TorchOutputTensors tensors = SelectTensors(manifest, options);
  pickle::Writer writer;
  writer.BeginDict();
  if (!tensors.groups.empty()) {
    writer.Text("model");
    writer.BeginDict();
    WriteTensors(tensors, /*of_model=*/true, writer);
    writer.EndDict();
    writer.Text("optimizer");
    WriteOptimizer(tensors, manifest, writer);
    // Readers see the number of a parameter, not its name.
    int64_t number = 0;
    for (const TorchOutputGroup& group : tensors.groups) {
      for (const TorchOutputState& state : group.states) {
        const std::string prefix = absl::StrCat("optimizer.state.", number++, ".");
        tensors.all[state.exp_avg].key = prefix + "exp_avg";
        tensors.all[state.exp_avg_sq].key = prefix + "exp_avg_sq";
      }
    }
  }
  WriteTensors(tensors, /*of_model=*/false, writer);
  if (HasNames(tensors)) {
    writer.Text(kTorchNamesKey);
    WriteNames(tensors, {}, writer);
  }
  if (HasRoles(tensors)) {
    writer.Text(kTorchRolesKey);
    WriteRoles(tensors, writer);
  }
  if (HasTrainer(manifest, options)) {
    writer.Text(kTorchTrainerKey);
    WriteTrainer(manifest.trainer(), writer);
  }
  writer.EndDict();
  std::vector<uint64_t> bytes;
  for (const TorchOutputTensor& tensor : tensors.stored) bytes.push_back(StoredBytes(tensor));
  const auto layout = std::make_shared<const TorchArchiveLayout>(std::move(writer).Finish(), bytes);
  OutputFile file = {.name = "checkpoint.pt", .size_bytes = layout->size_bytes()};
  for (size_t i = 0; i < tensors.stored.size(); ++i) {
    file.tensors.push_back(ToOutputTensor(tensors.stored[i], layout->storage_offset(i)));
  }
  file.records = [layout](size_t tensor, uint32_t crc32) {
    return std::vector{layout->StorageHeader(tensor, crc32, 0)};
  };
  file.finish = [layout](std::span<const uint32_t> crc32) {
    return layout->OtherRecords(crc32, 0);
  };
  return {std::move(file)};
}

}  // namespace tessera::ckpt::convert
