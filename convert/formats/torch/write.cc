#include "convert/formats/torch/write.h"

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/own_keys.h"
#include "convert/core/reading.h"
#include "convert/core/saved_weights.h"
#include "convert/pickle/torch_archive.h"

namespace tessera::ckpt::convert {
namespace {

bool IsOfModel(const LogicalTensor& tensor) {
  const TensorRole role = FromProto(tensor.role());
  return role == TensorRole::kWeight || role == TensorRole::kBuffer;
}

// Returns the parameters with both moments, by group, in the order of the modules.
std::vector<TorchOutputGroup> FindGroups(const Manifest& manifest,
                                         const TorchOutputTensors& tensors,
                                         const std::vector<std::string>& module_order) {
  std::map<std::string, size_t> ranks;
  for (size_t i = 0; i < module_order.size(); ++i) ranks.emplace(module_order[i], i);
  std::map<uint32_t, TorchOutputGroup> groups;
  for (const OptimizerParameter& parameter : manifest.optimizer().parameters()) {
    TorchOutputState state = {.parameter = parameter.parameter()};
    for (const auto& [name, tensor] : parameter.states()) {
      if (name != kForeignMaster.state && tensors.by_name.contains(tensor))
        state.tensors[name] = tensor;
    }
    if (!state.tensors.contains("exp_avg") || !state.tensors.contains("exp_avg_sq")) continue;
    groups[parameter.group()].states.push_back(std::move(state));
  }
  std::vector<TorchOutputGroup> found;
  for (auto& [number, group] : groups) {
    group.number = number;
    std::ranges::stable_sort(group.states, {}, [&](const TorchOutputState& state) {
      const auto rank = ranks.find(state.parameter);
      return rank == ranks.end() ? module_order.size() : rank->second;
    });
    found.push_back(std::move(group));
  }
  return found;
}

// Returns the tensors that the options select, with the aliases of those.
TorchOutputTensors SelectTensors(const Manifest& manifest, const PlanOptions& options,
                                 const std::vector<std::string>& module_order) {
  TorchOutputTensors tensors;
  std::map<std::string, size_t> stored;
  const auto is_wanted = [&](const LogicalTensor& tensor) {
    return !options.weights_only || IsOfModel(tensor);
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
    tensors.stored.push_back({&tensor, dtype_of(tensor), tensors.stored.size()});
  }
  for (const LogicalTensor& tensor : manifest.tensors()) {
    const auto at = stored.find(tensor.alias_of().empty() ? tensor.name() : tensor.alias_of());
    if (!is_wanted(tensor) || at == stored.end()) continue;
    tensors.all.push_back({&tensor, tensors.stored[at->second].dtype, at->second});
    tensors.by_name[tensor.name()] = tensors.all.back();
  }
  tensors.groups = FindGroups(manifest, tensors, module_order);
  return tensors;
}

SavedValue Text(std::string_view text) { return {std::string(text)}; }

// Returns the values of a group from its dict in "param_groups" of "optimizer"; null without one.
const SavedValue::Dict* ValuesOfGroup(const SavedValue* state, size_t number) {
  const auto* const root = state == nullptr ? nullptr : state->As<SavedValue::Dict>();
  const SavedValue* const optimizer = root == nullptr ? nullptr : root->Find("optimizer");
  const auto* const dict = optimizer == nullptr ? nullptr : optimizer->As<SavedValue::Dict>();
  const SavedValue* const groups = dict == nullptr ? nullptr : dict->Find("param_groups");
  const auto* const list = groups == nullptr ? nullptr : groups->As<SavedValue::List>();
  return list == nullptr || number >= list->items.size()
             ? nullptr
             : list->items[number].As<SavedValue::Dict>();
}

// The settings of a group as torch.optim.AdamW has them in its param_groups: those of the values,
// those that the manifest tells, and torch's defaults for the others.
SavedValue::Dict SettingsOf(const TorchOutputGroup& group, const Manifest& manifest,
                            const PlanOptions& options) {
  const auto option = [&](const char* name, double by_default) {
    return OptionOf(manifest, group.number, name, by_default);
  };
  SavedValue::Dict settings;
  const bool has_most = std::ranges::all_of(group.states, [](const TorchOutputState& state) {
    return state.tensors.contains("max_exp_avg_sq");
  });
  // What the program has saved, in its order. "params" are numbers of its own, and AMSGrad needs
  // its states.
  if (const SavedValue::Dict* const saved = ValuesOfGroup(options.state, group.number)) {
    for (size_t i = 0; i < saved->size(); ++i) {
      const auto* const key = saved->key(i).As<std::string>();
      if (key == nullptr || *key == "params") continue;
      settings.Add(saved->key(i),
                   *key == "amsgrad" && !has_most ? SavedValue{false} : saved->value(i));
    }
  }
  const auto add = [&](const char* name, SavedValue value) {
    if (settings.Find(name) == nullptr) settings.Add(Text(name), std::move(value));
  };
  const bool has_rate = manifest.trainer().has_schedule();
  add("lr", {has_rate ? manifest.trainer().schedule().learning_rate() : 1e-3});
  add("betas",
      {SavedValue::List{{{option("beta1", 0.9)}, {option("beta2", 0.999)}}, /*is_tuple=*/true}});
  add("eps", {option("epsilon", 1e-8)});
  add("weight_decay", {option("weight_decay", group.number == 0 ? 1e-2 : 0)});
  for (const char* const name : {"amsgrad", "maximize", "capturable", "differentiable"}) {
    add(name, {false});
  }
  for (const char* const name : {"foreach", "fused"}) add(name, {SavedValue::None{}});
  add("decoupled_weight_decay", {true});
  return settings;
}

SavedValue TensorLeaf(const std::string& name) { return {SavedValue::Tensor{name}}; }

// Returns the places of all tensors but those of groups: in "model" the model's, others at the top.
SavedValue::Dict ModelTree(const Manifest& manifest, const TorchOutputTensors& tensors) {
  std::set<std::string> states;
  for (const TorchOutputGroup& group : tensors.groups) {
    for (const TorchOutputState& state : group.states) {
      for (const auto& [unused, tensor] : state.tensors) states.insert(tensor);
    }
  }
  std::map<std::string, std::string> masters;  // of weights that were not saved: the parameters
  for (auto& [parameter, master] : MastersWithoutWeights(manifest)) masters[master] = parameter;
  SavedValue::Dict model, root;
  for (const TorchOutputTensor& tensor : tensors.all) {
    const std::string& name = tensor.logical->name();
    if (const auto master = masters.find(name); master != masters.end()) {
      model.Add(Text(master->second), TensorLeaf(name));
    } else if (IsOfModel(*tensor.logical)) {
      model.Add(Text(name), TensorLeaf(name));
    } else if (!states.contains(name)) {
      root.Add(Text(name), TensorLeaf(name));
    }
  }
  root.flat.insert(root.flat.begin(), {Text("model"), {std::move(model)}});
  return root;
}

// Returns the dict that AdamW.load_state_dict() takes. Parameters have numbers, group by group.
SavedValue::Dict NumberedOptimizer(const Manifest& manifest, const TorchOutputTensors& tensors,
                                   const PlanOptions& options) {
  SavedValue::Dict states;
  SavedValue::List groups;
  int64_t number = 0;
  for (const TorchOutputGroup& group : tensors.groups) {
    SavedValue::List numbers;
    for (const TorchOutputState& state : group.states) {
      SavedValue::Dict moments;
      moments.Add(Text("step"), {UpdatesOf(manifest)});
      for (const auto& [name, tensor] : state.tensors) moments.Add(Text(name), TensorLeaf(tensor));
      numbers.items.push_back({number});
      states.Add({number++}, {std::move(moments)});
    }
    SavedValue::Dict settings = SettingsOf(group, manifest, options);
    settings.Add(Text("params"), {std::move(numbers)});
    groups.items.push_back({std::move(settings)});
  }
  SavedValue::Dict optimizer;
  optimizer.Add(Text("state"), {std::move(states)});
  optimizer.Add(Text("param_groups"), {std::move(groups)});
  return optimizer;
}

// Returns the dict that get_optimizer_state_dict() of torch.distributed.checkpoint.state_dict
// returns with flatten_optimizer_state_dict: everything by the names of the parameters.
SavedValue::Dict FlatOptimizer(const Manifest& manifest, const TorchOutputTensors& tensors,
                               const PlanOptions& options) {
  SavedValue::Dict optimizer;
  for (const TorchOutputGroup& group : tensors.groups) {
    const SavedValue::Dict settings = SettingsOf(group, manifest, options);
    for (const TorchOutputState& state : group.states) {
      const std::string below = absl::StrCat("state.", state.parameter, ".");
      for (const auto& [name, tensor] : state.tensors)
        optimizer.Add(Text(below + name), TensorLeaf(tensor));
      optimizer.Add(Text(below + "step"), {SavedValue::Tensor{kUpdatesTensor}});
      for (size_t i = 0; i < settings.size(); ++i) {
        optimizer.Add(Text(absl::StrCat("param_groups.", state.parameter, ".",
                                        *settings.key(i).As<std::string>())),
                      settings.value(i));
      }
    }
  }
  return optimizer;
}

// Returns whether a value is in the settings of a group that is written.
bool IsInGroup(const std::string& name, const TorchOutputTensors& tensors,
               const SavedValue* state) {
  constexpr std::string_view kGroups = "optimizer.param_groups.";
  size_t number = 0;
  if (!name.starts_with(kGroups)) return false;
  const std::string rest = name.substr(kGroups.size());
  return absl::SimpleAtoi(rest.substr(0, rest.find('.')), &number) &&
         ValuesOfGroup(state, number) != nullptr &&
         std::ranges::any_of(tensors.groups,
                             [&](const TorchOutputGroup& group) { return group.number == number; });
}

// Adds the roles of tensors other than weights, the names that differ from the keys, and the rest
// of the manifest.
void AddOwnKeys(const Manifest& manifest, const PlanOptions& options, TorchStateDict& dict) {
  const auto& tensors = dict.tensors.by_name;
  SavedValue::Dict names, roles;
  for (const Leaf& leaf : LeavesOf(dict.root)) {
    const auto* const tensor = leaf.value->As<SavedValue::Tensor>();
    if (tensor == nullptr) continue;
    if (tensor->name != leaf.name) names.Add(Text(leaf.name), Text(tensor->name));
    const auto at = tensors.find(tensor->name);
    if (at == tensors.end()) continue;
    const RoleProto role = at->second.logical->role();
    if (FromProto(role) == TensorRole::kWeight) continue;
    roles.Add(Text(leaf.name), Text(RoleProto_Name(role)));
  }
  const bool is_model = !dict.tensors.groups.empty();
  if (is_model) dict.own_keys.emplace_back(kNamesKey, SavedValue{std::move(names)});
  if (roles.size() > 0) dict.own_keys.emplace_back(kRolesKey, SavedValue{std::move(roles)});
  if (options.weights_only || !(is_model || manifest.has_trainer())) return;
  // A model and its optimizer have torch's places: the description says where the values stood.
  dict.own_keys.emplace_back(kTrainerKey, TrainerValue(manifest, !is_model, options.state));
}

}  // namespace

OutputTensor ToOutputTensor(const TorchOutputTensor& tensor, uint64_t offset_bytes) {
  const Shape shape = GlobalShape(*tensor.logical);
  return {.name = tensor.logical->name(),
          .source_name = tensor.logical->name(),
          .role = FromProto(tensor.logical->role()),
          .dtype = tensor.dtype,
          .shape = shape,
          .offset_bytes = offset_bytes,
          .elements = ElementCount(shape),
          .pieces = RowMajorPieces(shape, tensor.dtype)};
}

TorchStateDict PlanStateDict(const Manifest& manifest, const PlanOptions& options,
                             OptimizerForm form, const std::vector<std::string>& module_order) {
  TorchStateDict dict = {.tensors = SelectTensors(manifest, options, module_order)};
  const TorchOutputTensors& tensors = dict.tensors;
  const bool is_model = !tensors.groups.empty();
  std::set<std::string> unplaced;
  for (const TorchOutputTensor& tensor : tensors.all) unplaced.insert(tensor.logical->name());
  SavedValue saved = options.state == nullptr ? SavedValue{SavedValue::Dict{}} : *options.state;
  Prune(saved, [&](const std::string& name, const SavedValue& leaf) {
    if (const auto* tensor = leaf.As<SavedValue::Tensor>()) {
      return !is_model && tensor->name == name && unplaced.erase(name) > 0;
    }
    return !options.weights_only && !(is_model && IsInGroup(name, tensors, options.state));
  });
  SavedValue::Dict root;
  if (is_model) {
    root = ModelTree(manifest, tensors);
    root.Add(Text("optimizer"),
             {form == OptimizerForm::kNumbered ? NumberedOptimizer(manifest, tensors, options)
                                               : FlatOptimizer(manifest, tensors, options)});
  }
  dict.root = {std::move(root)};
  std::vector<std::string> values = KeysOf(ValuesByName(saved));
  MergeInto(std::move(saved), dict.root);
  if (options.left_out != nullptr) {
    const auto written = ValuesByName(dict.root);
    for (std::string& name : values) {
      if (!written.contains(name)) options.left_out->push_back(std::move(name));
    }
  }
  for (const TorchOutputTensor& tensor : tensors.all) {
    if (is_model || !unplaced.contains(tensor.logical->name())) continue;
    dict.root.As<SavedValue::Dict>()->Add(Text(tensor.logical->name()),
                                          TensorLeaf(tensor.logical->name()));
  }
  AddOwnKeys(manifest, options, dict);
  return dict;
}

void WriteValue(const SavedValue& value, pickle::Writer& writer,
                const std::function<void(const std::string&)>& tensor) {
  if (value.As<SavedValue::None>() != nullptr) return writer.None();
  if (const auto* truth = value.As<bool>()) return writer.Bool(*truth);
  if (const auto* integer = value.As<int64_t>()) return writer.Int(*integer);
  if (const auto* number = value.As<double>()) return writer.Float(*number);
  if (const auto* text = value.As<std::string>()) return void(writer.Text(*text));
  if (const auto* bytes = value.As<SavedValue::Bytes>()) {
    if (!bytes->is_bytearray) return writer.Bytes(bytes->bytes);
    writer.Global("builtins", "bytearray");
    writer.BeginTuple();
    writer.Bytes(bytes->bytes);
    writer.EndTuple();
    return writer.Call();
  }
  if (const auto* place = value.As<SavedValue::Tensor>()) return tensor(place->name);
  if (const auto* list = value.As<SavedValue::List>()) {
    list->is_tuple ? writer.BeginTuple() : writer.BeginList();
    for (const SavedValue& item : list->items) WriteValue(item, writer, tensor);
    return list->is_tuple ? writer.EndTuple() : writer.EndList();
  }
  writer.BeginDict();
  for (const SavedValue& item : value.As<SavedValue::Dict>()->flat) {
    WriteValue(item, writer, tensor);
  }
  writer.EndDict();
}

std::vector<OutputFile> PlanTorch(const Manifest& manifest, const PlanOptions& options,
                                  const std::vector<std::string>& module_order) {
  TorchStateDict dict = PlanStateDict(manifest, options, OptimizerForm::kNumbered, module_order);
  for (auto& [key, value] : dict.own_keys) {
    dict.root.As<SavedValue::Dict>()->Add(Text(key), std::move(value));
  }
  const TorchOutputTensors& tensors = dict.tensors;
  pickle::Writer writer;
  WriteValue(dict.root, writer, [&](const std::string& name) {
    const TorchOutputTensor& tensor = tensors.by_name.at(name);
    WriteTorchTensor(tensor.dtype, GlobalShape(*tensor.logical), tensor.stored, writer);
  });
  std::vector<uint64_t> bytes;
  for (const TorchOutputTensor& tensor : tensors.stored) {
    bytes.push_back(ByteCount(GlobalShape(*tensor.logical), tensor.dtype));
  }
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
