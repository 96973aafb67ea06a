#include "convert/core/known_model.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "convert/core/value.h"
#include "layout/dtype.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kHuggingFaceConfig = "config.json";

// Returns the parameters, in this order of their names, under their logical names without a prefix.
Parameters LogicalNaming(const ModelDescription& model, const std::vector<std::string>& order,
                         const std::string& prefix) {
  const auto shorten = [&](const std::string& name) {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  };
  Parameters parameters;
  for (const std::string& logical_name : order) {
    const LogicalParameter& logical = model.Find(logical_name);
    ForeignParameter parameter = SameTensor(shorten(logical.name), logical.name, logical.shape);
    if (!logical.tied_name.empty()) parameter.other_names.push_back(shorten(logical.tied_name));
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

constexpr std::string_view kEmbeddings = "tok_embeddings.weight";
constexpr const char* kVocabulary = "vocab_size";

int64_t IntegerOf(const nlohmann::json& json, const char* name) {
  const auto field = json.find(name);
  return field != json.end() && field->is_number_integer() ? field->get<int64_t>() : 0;
}

// Returns the rows of the whole table. nullopt if the files have none of this width.
std::optional<int64_t> Rows(std::span<const ForeignTensor> tensors, int64_t columns,
                            int64_t parts) {
  for (const ForeignTensor& tensor : tensors) {
    if (!tensor.name.ends_with(kEmbeddings) || tensor.shape.size() != 2) continue;
    if (tensor.shape[1] == columns && tensor.shape[0] <= INT64_MAX / parts) {
      return tensor.shape[0] * parts;
    }
    if (columns % parts == 0 && tensor.shape[1] == columns / parts) return tensor.shape[0];
  }
  return std::nullopt;
}

// Returns the model if the files themselves describe it, as nanoGPT's do; otherwise nullopt.
absl::StatusOr<std::optional<ModelProto>> DescribedByValues(const ForeignCheckpoint& checkpoint,
                                                            int64_t tensor_count) {
  constexpr std::string_view kArguments = "model_args.";
  nlohmann::json arguments = nlohmann::json::object();
  for (const auto& [name, value] : ValuesByName(checkpoint.state)) {
    if (!name.starts_with(kArguments)) continue;
    arguments[name.substr(kArguments.size())] = ValueToPlainJson(*value);
  }
  if (!arguments.contains("block_size")) return std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(ModelDescription model,
                           ReadForeignConfig(kNanoGpt, arguments.dump(), tensor_count));
  return std::move(model.config);
}

uint64_t StoredBytes(const ForeignCheckpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      bytes += ByteCount(piece.box.shape, tensor.dtype);
    }
  }
  return bytes;
}

// The names under which programs save the model itself, rather than its average or another one.
// Lightning saves the average as "state_dict" if there is a "current_model_state", so that neither
// tells.
constexpr std::string_view kPlacesOfModels[] = {"state_dict", "model_state_dict", "model", "module",
                                                "current_model_state"};

// Returns those of the prefixes that may be the model's by their places; see Find().
std::vector<std::string> MayBeOf(const std::vector<std::string>& prefixes) {
  std::vector<std::vector<std::string>> places;
  size_t common = SIZE_MAX;
  for (const std::string& prefix : prefixes) {
    std::vector<std::string>& parts = places.emplace_back(absl::StrSplit(prefix, '.'));
    parts.pop_back();  // the empty one behind the last dot
    const auto differs = std::ranges::mismatch(parts, places.front()).in1;
    common = std::min(common, static_cast<size_t>(differs - parts.begin()));
  }
  std::vector<std::string> chosen;
  for (size_t i = 0; i < prefixes.size(); ++i) {
    const bool holds_others = places[i].size() == common;
    if (holds_others || std::ranges::count(kPlacesOfModels, places[i][common]) > 0) {
      chosen.push_back(prefixes[i]);
    }
  }
  return chosen.empty() ? prefixes : chosen;
}

// Returns the most similar name; "" if none is similar.
std::string NearestTo(const std::string& name, const std::vector<std::string>& others) {
  constexpr size_t kMostBytes = 200, kMostOthers = 1000;
  std::string nearest;
  int best = 4;
  if (name.size() > kMostBytes || others.size() > kMostOthers) return nearest;
  for (const std::string& other : others) {
    if (other.size() > kMostBytes) continue;
    const int distance = TypingDistance(name, other);
    if (distance >= best) continue;
    best = distance;
    nearest = other;
  }
  return nearest;
}

}  // namespace

absl::StatusOr<std::string> ReadMetaConfig(Storage& storage, std::span<const ForeignTensor> tensors,
                                           int64_t parts) {
  TESSERA_ASSIGN_OR_RETURN(std::string text, ReadAll(storage, kMetaConfig, kMaxJsonBytes));
  nlohmann::json json = ParseJson(text);
  if (!json.is_object() || IntegerOf(json, kVocabulary) != -1) return text;
  const std::optional<int64_t> rows = Rows(tensors, IntegerOf(json, "dim"), parts);
  if (!rows) return text;
  json[kVocabulary] = *rows;
  return json.dump();
}

absl::StatusOr<std::optional<KnownModel>> FindModel(Storage& storage, const ModelProto* model,
                                                    std::string_view framework,
                                                    const ForeignCheckpoint& checkpoint) {
  const auto count = static_cast<int64_t>(checkpoint.tensors.size());
  TESSERA_ASSIGN_OR_RETURN(const bool is_hugging_face, Exists(storage, kHuggingFaceConfig));
  TESSERA_ASSIGN_OR_RETURN(const bool is_meta, Exists(storage, kMetaConfig));
  KnownModel known;
  if (!is_hugging_face && is_meta) {
    TESSERA_ASSIGN_OR_RETURN(const std::string json,
                             ReadMetaConfig(storage, checkpoint.tensors, /*parts=*/1));
    TESSERA_ASSIGN_OR_RETURN(known.description, ReadForeignConfig(kMeta, json, count));
  } else {
    std::string json;
    std::optional<ModelProto> described;
    if (is_hugging_face) {
      TESSERA_ASSIGN_OR_RETURN(json, ReadAll(storage, kHuggingFaceConfig, kMaxJsonBytes));
    } else {
      TESSERA_ASSIGN_OR_RETURN(described, DescribedByValues(checkpoint, count));
      if (described.has_value()) {
        model = &*described;
        known.notes.push_back(absl::StrCat("nanoGPT", kExactGelu));
      }
      if (model == nullptr) return std::nullopt;
      TESSERA_ASSIGN_OR_RETURN(json, WriteHuggingFaceConfig(*model, DType::kF32));
    }
    TESSERA_ASSIGN_OR_RETURN(known.hugging_face, ReadHuggingFaceConfig(json, count));
    if (known.hugging_face->other_tensors == kQuantized) return InvalidArgument(kQuantized);
    known.description = known.hugging_face->model;
    // config.json has no field for all that a model of this library has.
    if (!is_hugging_face) known.description.config = *model;
  }
  TESSERA_RETURN_IF_ERROR(CheckModelFits(known.description, StoredBytes(checkpoint)));
  if (!framework.empty()) {
    TESSERA_ASSIGN_OR_RETURN(known.namings.emplace_back(),
                             ForeignParameters(framework, known.description.config));
    return known;
  }
  std::vector<std::string> order;
  if (known.hugging_face) order = known.hugging_face->order;
  if (order.empty()) {
    for (const LogicalParameter& parameter : known.description.parameters) {
      order.push_back(parameter.name);
    }
  }
  known.namings.push_back(LogicalNaming(known.description, order, ""));
  if (known.hugging_face && !known.hugging_face->format->prefix.empty()) {
    const std::string prefix(known.hugging_face->format->prefix);
    known.namings.push_back(LogicalNaming(known.description, order, prefix));
  }
  for (const char* const other :
       {kMeta, kTorchtitan, kTorchtitanGateUp, kTorchtitanQkv, kNanoGpt}) {
    absl::StatusOr<Parameters> parameters = ForeignParameters(other, known.description.config);
    if (parameters.ok()) known.namings.push_back(*std::move(parameters));
  }
  return known;
}

std::vector<std::string> NamesOf(const ForeignParameter& parameter) {
  std::vector<std::string> names = {parameter.name};
  names.insert(names.end(), parameter.other_names.begin(), parameter.other_names.end());
  return names;
}

NamingFinder::NamingFinder(Storage& storage, const KnownModel& model,
                           const ForeignCheckpoint& checkpoint)
    : storage_(storage), model_(model), checkpoint_(checkpoint) {
  const auto add_weights = [&] {
    for (size_t i = 0; i < checkpoint.tensors.size(); ++i) {
      const ForeignTensor& tensor = checkpoint.tensors[i];
      by_name_[tensor.name] = i;
      if (tensor.role != TensorRole::kWeight) continue;
      const auto [at, is_new] = weights_.emplace(NameOf(tensor), i);
      if (!is_new) namesakes_[at->first] = i;
    }
  };
  add_weights();
  if (namesakes_.empty()) return;
  // What is wrapped is another model than what is not, if there are both.
  is_unwrapped_ = false;
  weights_.clear();
  namesakes_.clear();
  add_weights();
}

std::string NamingFinder::NameOf(const ForeignTensor& tensor) const {
  return is_unwrapped_ ? WithoutWrappers(tensor.name) : WithoutInnerWrappers(tensor.name);
}

absl::StatusOr<std::optional<PrefixedNaming>> NamingFinder::Find() {
  std::optional<PrefixedNaming> misshapen;
  for (const Parameters& naming : model_.namings) {
    TESSERA_ASSIGN_OR_RETURN(std::optional<PrefixedNaming> place, FindPlace(naming));
    if (!ambiguity_.empty()) return std::nullopt;
    if (!place.has_value()) continue;
    if (HasShapes(naming, place->prefix)) return place;
    if (!misshapen.has_value()) misshapen = std::move(place);
  }
  return misshapen;
}

std::optional<size_t> NamingFinder::FindTensor(const std::string& name) const {
  const std::optional<size_t> at = FindWeight(name);
  return at.has_value() ? std::optional(Stored(*at)) : std::nullopt;
}

size_t NamingFinder::Stored(size_t tensor) const {
  const auto stored = by_name_.find(checkpoint_.tensors[tensor].alias_of);
  return stored == by_name_.end() ? tensor : stored->second;
}

std::optional<size_t> NamingFinder::FindWeight(const std::string& name) const {
  const auto at = weights_.find(name);
  return at == weights_.end() ? std::nullopt : std::optional(at->second);
}

std::string NamingFinder::NotThere(const std::string& name) const {
  return absl::StrCat("the model's ", Shown(name), " is not among ",
                      weights_.empty() ? "them" : JoinShown(KeysOf(weights_)));
}

bool NamingFinder::HasAll(const Parameters& naming, const std::string& prefix) {
  for (const ForeignParameter& parameter : naming) {
    if (parameter.blocks.empty()) continue;  // no part of the model
    const std::vector<std::string> names = NamesOf(parameter);
    if (std::ranges::any_of(
            names, [&](const std::string& n) { return FindTensor(prefix + n).has_value(); })) {
      continue;
    }
    if (missing_.empty()) missing_ = NotThere(prefix + parameter.name);
    return false;
  }
  return true;
}

// Returns whether the tensors of all parameters have their shapes. Precondition: HasAll().
bool NamingFinder::HasShapes(const Parameters& naming, const std::string& prefix) const {
  return std::ranges::all_of(naming, [&](const ForeignParameter& parameter) {
    if (parameter.blocks.empty()) return true;
    return std::ranges::all_of(NamesOf(parameter), [&](const std::string& name) {
      const std::optional<size_t> at = FindTensor(prefix + name);
      return !at.has_value() || checkpoint_.tensors[*at].shape == parameter.shape;
    });
  });
}

absl::StatusOr<bool> NamingFinder::AreEqual(const Pairs& pairs) const {
  ForeignCheckpoint copies;
  for (const auto& [a, b] : pairs) {
    ForeignTensor tensor = checkpoint_.tensors[Stored(a)];
    const ForeignTensor& other = checkpoint_.tensors[Stored(b)];
    if (tensor.name == other.name) continue;
    if (tensor.dtype != other.dtype || tensor.shape != other.shape) return false;
    tensor.pieces.insert(tensor.pieces.end(), other.pieces.begin(), other.pieces.end());
    tensor.name = absl::StrCat(copies.tensors.size());  // tied ones come more than once
    copies.tensors.push_back(std::move(tensor));
  }
  if (copies.tensors.empty()) return true;
  // Pieces of one box are compared.
  const absl::Status equal =
      ForeignStorage::Create({std::shared_ptr<Storage>(), &storage_}, std::move(copies)).status();
  if (absl::IsDataLoss(equal)) return false;
  TESSERA_RETURN_IF_ERROR(equal);
  return true;
}

absl::Status NamingFinder::Compare(const Parameters& naming,
                                   const std::vector<std::string>& prefixes) {
  for (size_t i = 0; i < prefixes.size() && ambiguity_.empty(); ++i) {
    Pairs models;
    for (const ForeignParameter& parameter : naming) {
      for (const std::string& name : NamesOf(parameter)) {
        const auto at = weights_.find(prefixes[0] + name),
                   other = weights_.find(prefixes[i] + name);
        if (at == weights_.end() || other == weights_.end()) continue;
        models.emplace_back(at->second, other->second);
        const std::string own = Shown(checkpoint_.tensors[at->second].name);
        const auto namesake = namesakes_.find(at->first);
        if (namesake != namesakes_.end()) {
          TESSERA_ASSIGN_OR_RETURN(const bool equal, AreEqual({{at->second, namesake->second}}));
          if (equal) continue;
          ambiguity_ = absl::StrCat("without their wrappers, ", own, " and ",
                                    Shown(checkpoint_.tensors[namesake->second].name),
                                    " have one name, and they differ");
        } else if (checkpoint_.unread.contains(own)) {
          ambiguity_ = absl::StrCat("there are two tensors ", own);
        }
      }
    }
    TESSERA_ASSIGN_OR_RETURN(const bool equal, AreEqual(models));
    if (equal || !ambiguity_.empty()) continue;
    ambiguity_ = absl::StrCat(
        "the tensors below \"", Shown(prefixes[0]), "\" and those below \"", Shown(prefixes[i]),
        "\" are a whole model each, they differ, and neither place tells that "
        "it is the model's, as \"model.\" does");
  }
  return absl::OkStatus();
}

// Returns the place of the model; nullopt if a parameter is missing in all places.
absl::StatusOr<std::optional<PrefixedNaming>> NamingFinder::FindPlace(const Parameters& naming) {
  std::set<std::string> prefixes;
  for (const std::string& end : NamesOf(naming.front())) {
    for (const auto& [name, unused] : weights_) {
      if (!name.ends_with(end)) continue;
      std::string prefix = name.substr(0, name.size() - end.size());
      if (prefix.empty() || prefix.back() == '.') prefixes.insert(std::move(prefix));
    }
  }
  std::vector<std::string> whole, fitting;
  for (const std::string& prefix : prefixes) {
    if (!HasAll(naming, prefix)) continue;
    whole.push_back(prefix);
    if (HasShapes(naming, prefix)) fitting.push_back(prefix);
  }
  if (prefixes.empty() && missing_.empty()) missing_ = NotThere(naming.front().name);
  if (whole.empty()) return std::nullopt;
  std::vector<std::string> equal = MayBeOf(fitting.empty() ? whole : fitting);
  TESSERA_RETURN_IF_ERROR(Compare(naming, equal));
  std::erase(whole, equal.front());
  return PrefixedNaming{&naming, equal.front(), std::move(whole), std::move(equal)};
}

// Returns the naming and prefix with the most parameters.
NamingFinder::Present NamingFinder::FindMostPresent() const {
  Present most;
  for (const Parameters& naming : model_.namings) {
    std::map<std::string, const ForeignParameter*> by_name;
    size_t longest = 0;
    for (const ForeignParameter& parameter : naming) {
      for (const std::string& name : NamesOf(parameter)) {
        by_name[name] = &parameter;
        longest = std::max(longest, name.size());
      }
    }
    std::map<std::string, Present> by_prefix;
    for (const auto& [name, unused] : weights_) {
      for (size_t begin = 0; begin <= name.size(); begin = name.find('.', begin) + 1) {
        if (name.size() - begin <= longest) {
          const auto found = by_name.find(name.substr(begin));
          if (found != by_name.end()) {
            Present& present = by_prefix[name.substr(0, begin)];
            present.naming = &naming;
            present.parameters.insert(found->second);
          }
        }
        if (name.find('.', begin) == name.npos) break;
      }
    }
    for (auto& [prefix, present] : by_prefix) {
      present.prefix = prefix;
      if (present.parameters.size() > most.parameters.size()) most = std::move(present);
    }
  }
  return most;
}

std::string NamingFinder::DescribeMismatch() const {
  const Present most = FindMostPresent();
  if (most.naming == nullptr || 2 * most.parameters.size() < most.naming->size()) return "";
  std::set<std::string> known;
  for (const ForeignParameter& parameter : *most.naming) {
    for (const std::string& name : NamesOf(parameter)) known.insert(most.prefix + name);
  }
  std::vector<std::string> unexpected, missing;
  for (const auto& [name, unused] : weights_) {
    if (!known.contains(name)) unexpected.push_back(name);
  }
  for (const ForeignParameter& parameter : *most.naming) {
    if (parameter.blocks.empty() || most.parameters.contains(&parameter)) continue;
    const std::string name = most.prefix + parameter.name;
    const std::string nearest = NearestTo(name, unexpected);
    missing.push_back(absl::StrCat("the model's ", Shown(name), " is missing",
                                   nearest.empty()
                                       ? ""
                                       : absl::StrCat("; the files have ", Shown(nearest),
                                                      ", which the model does not have")));
  }
  if (missing.empty()) return "";
  std::string message = JoinFirst(missing, "; ");
  const bool shows_some = message.find("; the files have ") != message.npos;
  if (!shows_some && !unexpected.empty()) {
    absl::StrAppend(&message, "; the files have ", JoinShown(unexpected),
                    ", which the model does not have");
  }
  return message;
}

}  // namespace tessera::ckpt::convert
