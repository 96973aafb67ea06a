#include "checkpoint/convert/state_dict.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/glob.h"
#include "base/join_first.h"
#include "base/status_macros.h"
#include "checkpoint/convert/foreign_layout.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/layout/box.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kHuggingFaceConfig = "config.json";
constexpr std::string_view kMetaConfig = "params.json";
constexpr std::string_view kMeta = "meta";
constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;

using Parameters = std::vector<ForeignParameter>;

// A model, and the ways in which state dicts name its parameters.
struct KnownModel {
  ModelDescription description;
  std::vector<std::string> computed;  // patterns of tensors that are no parameters
  std::vector<Parameters> namings;    // in the order in which they are tried
};

// The parameters under their logical names less a prefix.
Parameters LogicalNaming(const ModelDescription& model, const std::string& prefix) {
  const auto shorten = [&](const std::string& name) {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  };
  Parameters parameters;
  for (const ModelParameter& logical : model.parameters) {
    ForeignParameter parameter = {.name = shorten(logical.name), .shape = logical.shape};
    parameter.blocks.push_back({.name = logical.name,
                                .box = WholeBox(logical.shape),
                                .foreign_offset = std::vector<int64_t>(logical.shape.size(), 0)});
    if (!logical.tied_name.empty()) parameter.other_names.push_back(shorten(logical.tied_name));
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

uint64_t StoredBytes(const ForeignCheckpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      bytes += static_cast<uint64_t>(ElementCount(piece.box.shape)) * DTypeSize(tensor.dtype);
    }
  }
  return bytes;
}

absl::StatusOr<bool> Has(Storage& storage, std::string_view folder, std::string_view file) {
  const auto open = storage.Open(JoinPath(folder, file));
  if (absl::IsNotFound(open.status())) return false;
  TESSERA_RETURN_IF_ERROR(open.status());
  return true;
}

// InvalidArgument where the files or the caller describe a model that is not known; nullopt where
// they describe none.
absl::StatusOr<std::optional<KnownModel>> FindModel(Storage& storage, std::string_view folder,
                                                    const ModelRules& rules,
                                                    const ModelConfig* model,
                                                    const ForeignCheckpoint& checkpoint) {
  const auto count = static_cast<int64_t>(checkpoint.tensors.size());
  TESSERA_ASSIGN_OR_RETURN(const bool is_hugging_face, Has(storage, folder, kHuggingFaceConfig));
  TESSERA_ASSIGN_OR_RETURN(const bool is_meta, Has(storage, folder, kMetaConfig));
  KnownModel known;
  std::string prefix;
  if (!is_hugging_face && is_meta) {
    TESSERA_ASSIGN_OR_RETURN(const std::string json,
                             ReadAll(storage, JoinPath(folder, kMetaConfig), kMaxJsonBytes));
    TESSERA_ASSIGN_OR_RETURN(known.description, rules.ReadForeignConfig(kMeta, json, count));
  } else {
    std::string json;
    if (is_hugging_face) {
      TESSERA_ASSIGN_OR_RETURN(
          json, ReadAll(storage, JoinPath(folder, kHuggingFaceConfig), kMaxJsonBytes));
    } else if (model != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(json, rules.WriteHuggingFaceConfig(*model, F32));
    } else {
      return std::nullopt;
    }
    TESSERA_ASSIGN_OR_RETURN(HuggingFaceDescription description,
                             rules.ReadHuggingFaceConfig(json, count));
    known.description = std::move(description.model);
    known.computed = std::move(description.computed);
    prefix = std::move(description.prefix);
    // config.json has no field for all that a model of this library has.
    if (!is_hugging_face) known.description.config = *model;
  }
  TESSERA_RETURN_IF_ERROR(CheckModelFits(known.description, StoredBytes(checkpoint)));
  known.namings.push_back(LogicalNaming(known.description, ""));
  if (!prefix.empty()) known.namings.push_back(LogicalNaming(known.description, prefix));
  absl::StatusOr<Parameters> meta = rules.ForeignParameters(kMeta, known.description.config);
  if (meta.ok()) known.namings.push_back(*std::move(meta));
  return known;
}

// A name without the components that torch.compile and FSDP add.
std::string Unwrapped(const std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  std::erase_if(parts, [](const std::string& part) {
    return part == "_orig_mod" || part == "_fsdp_wrapped_module" ||
           part == "_checkpoint_wrapped_module";
  });
  return absl::StrJoin(parts, ".");
}

std::vector<std::string> NamesOf(const ForeignParameter& parameter) {
  std::vector<std::string> names = {parameter.name};
  names.insert(names.end(), parameter.other_names.begin(), parameter.other_names.end());
  return names;
}

class Namer {
 public:
  Namer(Storage& storage, std::string_view folder, const KnownModel& model,
        ForeignCheckpoint& checkpoint)
      : storage_(storage), folder_(folder), model_(model), checkpoint_(checkpoint) {}

  absl::Status Run() {
    for (size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
      const ForeignTensor& tensor = checkpoint_.tensors[i];
      by_name_[tensor.name] = i;
      if (tensor.role != WEIGHT) continue;
      const auto [at, is_new] = weights_.emplace(Unwrapped(tensor.name), i);
      if (!is_new) {
        return Damaged(tensor, absl::StrCat("without its wrappers it is called as ",
                                            checkpoint_.tensors[at->second].name));
      }
    }
    for (const Parameters& naming : model_.namings) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> prefix, FindPrefix(naming));
      if (prefix.has_value()) return Name(naming, *prefix);
    }
    checkpoint_.notes.push_back(absl::StrCat("Names are those of the files: ", missing_, "."));
    return absl::OkStatus();
  }

 private:
  absl::Status Damaged(const ForeignTensor& tensor, const absl::AlphaNum& problem) const {
    return absl::DataLossError(
        absl::StrCat(storage_.Describe(folder_), ": tensor ", tensor.name, ": ", problem));
  }

  // The index of the tensor, which is stored, of a parameter's name. An alias is the tensor that it
  // is an alias of.
  std::optional<size_t> Find(const std::string& name) const {
    const auto at = weights_.find(name);
    if (at == weights_.end()) return std::nullopt;
    const std::string& other = checkpoint_.tensors[at->second].alias_of;
    if (other.empty()) return at->second;
    const auto stored = by_name_.find(other);
    return stored == by_name_.end() ? std::nullopt : std::optional(stored->second);
  }

  bool HasAll(const Parameters& naming, const std::string& prefix) {
    for (const ForeignParameter& parameter : naming) {
      if (parameter.blocks.empty()) continue;  // no part of the model
      const std::vector<std::string> names = NamesOf(parameter);
      if (std::ranges::any_of(names,
                              [&](const std::string& n) { return Find(prefix + n).has_value(); })) {
        continue;
      }
      if (missing_.empty()) {
        missing_ = absl::StrCat("the model's ", prefix, parameter.name, " is not among them");
      }
      return false;
    }
    return true;
  }

  // What precedes the names of all parameters; nullopt where they are not all there.
  absl::StatusOr<std::optional<std::string>> FindPrefix(const Parameters& naming) {
    std::set<std::string> prefixes;
    for (const std::string& end : NamesOf(naming.front())) {
      for (const auto& [name, unused] : weights_) {
        if (!name.ends_with(end)) continue;
        std::string prefix = name.substr(0, name.size() - end.size());
        if (prefix.empty() || prefix.back() == '.') prefixes.insert(std::move(prefix));
      }
    }
    std::optional<std::string> found;
    for (const std::string& prefix : prefixes) {
      if (!HasAll(naming, prefix)) continue;
      if (found.has_value()) {
        return absl::DataLossError(absl::StrCat(
            storage_.Describe(folder_), ": the tensors below \"", *found, "\" and those below \"",
            prefix, "\" are a whole model each: keep one of them in the file"));
      }
      found = prefix;
    }
    if (prefixes.empty() && missing_.empty()) {
      missing_ = absl::StrCat("the model's ", naming.front().name, " is not among them");
    }
    return found;
  }

  absl::Status Name(const Parameters& naming, const std::string& prefix) {
    ForeignTensorSet set(model_.description);
    std::map<std::string, const ForeignParameter*> by_name;
    std::set<size_t> used;
    for (const ForeignParameter& parameter : naming) {
      for (const std::string& name : NamesOf(parameter)) {
        by_name[name] = by_name[prefix + name] = &parameter;
        const std::optional<size_t> at = Find(prefix + name);
        if (!at.has_value() || !used.insert(*at).second) continue;
        TESSERA_RETURN_IF_ERROR(Add(parameter, kForeignWeight, checkpoint_.tensors[*at], set));
      }
    }
    std::vector<ForeignTensor> kept;
    TESSERA_RETURN_IF_ERROR(SortOut(naming, prefix, used, kept));
    bool has_state = false;
    TESSERA_RETURN_IF_ERROR(AddStates(by_name, set, kept, &has_state));
    if (has_state) set.DescribeOptimizer("torch", *checkpoint_.description.mutable_optimizer());
    *checkpoint_.description.mutable_model() = model_.description.config;
    checkpoint_.tensors = std::move(set).Finish();
    for (ForeignTensor& tensor : kept) checkpoint_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status Add(const ForeignParameter& parameter, const ForeignKind& kind,
                   const ForeignTensor& tensor, ForeignTensorSet& set) const {
    if (parameter.blocks.empty()) return absl::OkStatus();
    if (tensor.shape != parameter.shape) {
      return Damaged(tensor, absl::StrCat("expected ", ShapeToString(parameter.shape), ", found ",
                                          ShapeToString(tensor.shape)));
    }
    for (const StoredPiece& piece : tensor.pieces) {
      TESSERA_RETURN_IF_ERROR(set.AddBox(parameter, {}, kind, piece.box,
                                         {piece.file, piece.offset_bytes, tensor.dtype},
                                         piece.strides));
    }
    return absl::OkStatus();
  }

  bool IsComputed(std::string_view name) const {
    return std::ranges::any_of(model_.computed, [&](const std::string& pattern) {
      return MatchesGlob(pattern, std::string(name));
    });
  }

  // The tensors that are no weights of the model are kept where they have another role. Those in
  // the model's own part of the state dict must be computed ones; others are left out with a note.
  absl::Status SortOut(const Parameters& naming, const std::string& prefix,
                       const std::set<size_t>& used, std::vector<ForeignTensor>& kept) {
    std::set<std::string> parts;  // of names, below the prefix
    for (const ForeignParameter& parameter : naming) {
      for (const std::string& name : NamesOf(parameter))
        parts.insert(name.substr(0, name.find('.')));
    }
    std::vector<std::string> left_out;
    for (size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
      ForeignTensor& tensor = checkpoint_.tensors[i];
      if (tensor.role != WEIGHT) {
        kept.push_back(std::move(tensor));
        continue;
      }
      if (used.contains(i) || !tensor.alias_of.empty()) continue;
      const std::string name = Unwrapped(tensor.name);
      const std::string own = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
      if (IsComputed(own)) continue;
      if (parts.contains(own.substr(0, own.find('.')))) return Damaged(tensor, "not the model's");
      left_out.push_back(tensor.name);
    }
    if (!left_out.empty()) {
      checkpoint_.notes.push_back(absl::StrCat(
          "Left out: tensors that are not the model's: ", JoinFirst(left_out, ", "), "."));
    }
    return absl::OkStatus();
  }

  // Moves the states of the parameters from `kept` to the set.
  absl::Status AddStates(const std::map<std::string, const ForeignParameter*>& by_name,
                         ForeignTensorSet& set, std::vector<ForeignTensor>& kept, bool* has_state) {
    std::vector<ForeignTensor> others;
    std::set<double> steps;
    for (ForeignTensor& tensor : kept) {
      const size_t begin = ("." + tensor.name).find(".state.");
      const size_t end = tensor.name.rfind('.');
      const ForeignParameter* parameter = nullptr;
      std::string state;
      if (begin != std::string::npos && end > begin + 6) {
        const size_t first = begin + std::string_view("state.").size();
        const auto at = by_name.find(Unwrapped(tensor.name.substr(first, end - first)));
        if (at != by_name.end()) parameter = at->second;
        state = tensor.name.substr(end + 1);
      }
      if (parameter != nullptr && state == "step" && tensor.shape.empty()) {
        TESSERA_ASSIGN_OR_RETURN(const double step, ReadStep(tensor));
        steps.insert(step);
      } else if (parameter != nullptr && (state == "exp_avg" || state == "exp_avg_sq")) {
        *has_state = true;
        TESSERA_RETURN_IF_ERROR(
            Add(*parameter, state == "exp_avg" ? kForeignExpAvg : kForeignExpAvgSq, tensor, set));
      } else {
        others.push_back(std::move(tensor));
      }
    }
    kept = std::move(others);
    TakeStep(steps);
    return absl::OkStatus();
  }

  // A number of one element. NaN for one of another dtype.
  absl::StatusOr<double> ReadStep(const ForeignTensor& tensor) const {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    if (tensor.pieces.size() != 1) return kUnknown;
    const StoredPiece& piece = tensor.pieces.front();
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file,
                             storage_.Open(JoinPath(folder_, piece.file)));
    const auto read = [&](auto number) -> absl::StatusOr<double> {
      TESSERA_RETURN_IF_ERROR(
          file->ReadAt(piece.offset_bytes, std::as_writable_bytes(std::span(&number, 1))));
      return static_cast<double>(number);
    };
    if (tensor.dtype == F32) return read(float{0});
    if (tensor.dtype == I64) return read(int64_t{0});
    return kUnknown;
  }

  // Adam counts its updates for each parameter.
  void TakeStep(const std::set<double>& steps) {
    constexpr double kMaxSteps = 1e15;
    if (steps.empty()) return;
    const double step = *steps.begin();
    if (steps.size() > 1 || !(step >= 0 && step < kMaxSteps) || step != std::floor(step)) {
      checkpoint_.notes.emplace_back("Parameters differ in the number of their updates.");
      return;
    }
    TrainerState& trainer = *checkpoint_.description.mutable_trainer();
    trainer.set_step(static_cast<int64_t>(step));
    trainer.set_best_loss(std::numeric_limits<double>::infinity());
  }

  Storage& storage_;
  const std::string folder_;
  const KnownModel& model_;
  ForeignCheckpoint& checkpoint_;
  std::map<std::string, size_t> by_name_;  // indices of tensors
  std::map<std::string, size_t> weights_;  // of weights, by their names without wrappers
  std::string missing_;
};

}  // namespace

absl::Status NameStateDict(Storage& storage, std::string_view folder, const ModelRules& rules,
                           const ModelConfig* model, ForeignCheckpoint& checkpoint) {
  const absl::StatusOr<std::optional<KnownModel>> known =
      FindModel(storage, folder, rules, model, checkpoint);
  if (absl::IsInvalidArgument(known.status())) {
    checkpoint.notes.push_back(
        absl::StrCat("Names are those of the files: ", known.status().message(), "."));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(known.status());
  if (!known->has_value() || (*known)->description.parameters.empty()) return absl::OkStatus();
  return Namer(storage, folder, **known, checkpoint).Run();
}

}  // namespace tessera::ckpt::convert
