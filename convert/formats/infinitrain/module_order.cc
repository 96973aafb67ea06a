#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "convert/formats/infinitrain/state_file.h"

namespace tessera::ckpt::convert {
namespace {

// The tensors and modules of each module, in the order in which the program creates them. The
// modules of a list are created by their numbers.
constexpr std::string_view kCreated[] = {
    "wte",    "wpe",  "h",     "ln_f",   "ln_1",    "ln_2",        "attn",   "mlp",
    "c_attn", "c_fc", "c_fc2", "c_proj", "lm_head", "transformer", "weight", "bias"};

// Names of more parts are not the model's, and would make deep tables.
constexpr int kMaxDots = 8;

// The values are full names.
using Table = std::unordered_map<std::string, std::string>;

struct Module {
  Table tensors;  // parameters or, beside modules, buffers
  std::unordered_map<std::string, std::shared_ptr<Module>> modules;
};

// Returns the places in kCreated, or the numbers, of the parts of a name.
std::vector<int> PlaceOf(const std::string& name) {
  std::vector<int> places;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(name, '.'))) {
    int place = 0;
    if (!absl::SimpleAtoi(part, &place)) {
      place = static_cast<int>(std::ranges::find(kCreated, part) - std::begin(kCreated));
    }
    places.push_back(place);
  }
  return places;
}

template <typename AnyTable>
void CopyOneByOne(AnyTable& table) {
  AnyTable copy;
  for (const auto& [name, value] : table) copy.emplace(name, value);
  table = std::move(copy);
}

// Does what the program does after a module has been created: it copies the dict of modules that is
// the transformer, and the tensors of a module that goes to a GPU.
void FinishModules(bool is_on_gpu, Module& module) {
  if (module.modules.contains("wte")) CopyOneByOne(module.modules);
  if (is_on_gpu) CopyOneByOne(module.tensors);
  for (auto& [unused, part] : module.modules) FinishModules(is_on_gpu, *part);
}

Module CreateModel(std::vector<std::string> names, bool is_on_gpu) {
  std::ranges::sort(names, {}, PlaceOf);
  Module model;
  for (const std::string& name : names) {
    std::vector<std::string> parts = absl::StrSplit(name, '.');
    const std::string tensor = std::move(parts.back());
    parts.pop_back();
    Module* module = &model;
    for (const std::string& part : parts) {
      std::shared_ptr<Module>& next = module->modules[part];
      if (next == nullptr) next = std::make_shared<Module>();
      module = next.get();
    }
    module->tensors[tensor] = name;
  }
  FinishModules(is_on_gpu, model);
  return model;
}

// As Module::StateDict().
Table StateDictOf(const Module& module) {
  Table state;
  for (const auto& [name, full_name] : module.tensors) state.emplace(name, full_name);
  for (const auto& [name, part] : module.modules) {
    for (const auto& [rest, full_name] : StateDictOf(*part)) {
      state.emplace(absl::StrCat(name, ".", rest), full_name);
    }
  }
  return state;
}

// As Module::Parameters().
void AppendParameters(const Module& module, std::vector<std::string>& names) {
  for (const auto& [unused, full_name] : module.tensors) {
    if (module.modules.empty()) names.push_back(full_name);
  }
  for (const auto& [unused, part] : module.modules) AppendParameters(*part, names);
}

}  // namespace

std::optional<std::vector<std::string>> OrderInfiniTrainParameters(
    const std::vector<std::string>& stored) {
  for (const std::string& name : stored) {
    if (std::ranges::count(name, '.') > kMaxDots) return std::nullopt;
  }
  for (const bool is_on_gpu : {false, true}) {
    const Module model = CreateModel(stored, is_on_gpu);
    const Table state = StateDictOf(model);
    if (!std::ranges::equal(state, stored, {}, [](const auto& entry) { return entry.first; })) {
      continue;
    }
    std::vector<std::string> names;
    AppendParameters(model, names);
    return names;
  }
  return std::nullopt;
}

}  // namespace tessera::ckpt::convert
