#include "convert/core/saved_values.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_checkpoint.h"

namespace tessera::ckpt::convert {
namespace {

using Json = nlohmann::json;

// The package nests values up to a hundred deep, and each dict is three levels of JSON.
constexpr size_t kMaxDepth = 400;
constexpr char kTag[] = "!", kTagged[] = "value";

// ---- To JSON.

Json Tagged(const char* kind, Json value) { return {{kTag, kind}, {kTagged, std::move(value)}}; }

const char* NameOfNumber(double number) {
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

// Returns the value as JSON; with `skeleton`, the containers alone.
Json ToJson(const SavedValue& value, bool skeleton) {
  const auto items = [&](const std::vector<SavedValue>& from) {
    Json array = Json::array();
    for (const SavedValue& item : from) array.push_back(ToJson(item, skeleton));
    return array;
  };
  if (skeleton && value.As<SavedValue::Tensor>() != nullptr) return {{kTag, "tensor"}};
  if (skeleton && !IsBranch(value)) return nullptr;
  if (const auto* truth = value.As<bool>()) return *truth;
  if (const auto* integer = value.As<int64_t>()) return *integer;
  if (const auto* number = value.As<double>()) {
    return std::isfinite(*number) ? Json(*number) : Tagged("float", NameOfNumber(*number));
  }
  if (const auto* text = value.As<std::string>()) return *text;
  if (const auto* bytes = value.As<SavedValue::Bytes>()) {
    return Tagged(bytes->is_bytearray ? "bytearray" : "bytes", absl::Base64Escape(bytes->bytes));
  }
  if (const auto* list = value.As<SavedValue::List>()) {
    return list->is_tuple ? Tagged("tuple", items(list->items)) : items(list->items);
  }
  if (const auto* dict = value.As<SavedValue::Dict>()) {
    Json pairs = Json::array();
    for (size_t i = 0; i < dict->size(); ++i) {
      pairs.push_back({ToJson(dict->key(i), /*skeleton=*/false), ToJson(dict->value(i), skeleton)});
    }
    return Tagged("dict", std::move(pairs));
  }
  return nullptr;
}

// Returns the tagged values in place of their tags.
Json WithoutTags(Json json) {
  if (json.is_object()) return WithoutTags(std::move(json[kTagged]));
  if (json.is_array()) {
    for (Json& item : json) item = WithoutTags(std::move(item));
  }
  return json;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// ---- From JSON.

// Stands for an integer beyond 64 bits, which would become another number as a double. JSON itself
// does not have tensors.
SavedValue LargeInteger(std::string digits) { return {SavedValue::Tensor{std::move(digits)}}; }

// Makes a tree of a JSON text: objects are dicts.

class JsonReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add({SavedValue::None{}}); }
  bool boolean(bool value) override { return Add({value}); }
  bool number_integer(int64_t value) override { return Add({value}); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Add(LargeInteger(absl::StrCat(value)));
    }
    return Add({static_cast<int64_t>(value)});
  }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == text.npos) return Add(LargeInteger(text));
    return Add({value});
  }
  bool string(std::string& value) override { return Add({std::move(value)}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open({SavedValue::Dict{}}); }
  bool start_array(std::size_t) override { return Open({SavedValue::List{}}); }
  bool key(std::string& key) override {
    open_.back().As<SavedValue::Dict>()->flat.push_back({std::move(key)});
    return true;
  }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

  SavedValue root;

 private:
  bool Open(SavedValue container) {
    open_.push_back(std::move(container));
    return open_.size() <= kMaxDepth;
  }
  bool Close() {
    SavedValue closed = std::move(open_.back());
    open_.pop_back();
    return Add(std::move(closed));
  }
  bool Add(SavedValue value) {
    if (open_.empty()) {
      root = std::move(value);
    } else if (auto* dict = open_.back().As<SavedValue::Dict>()) {
      dict->flat.push_back(std::move(value));
    } else {
      open_.back().As<SavedValue::List>()->items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<SavedValue> open_;
};

// Decodes the objects that stand for values without a form in JSON.
class Decoder {
 public:
  // `takes_tensors` is for structures, in which tensors have places. Values have no tensors.
  explicit Decoder(bool takes_tensors) : takes_tensors_(takes_tensors) {}

  // Returns nullopt if a part of the value is of a kind that trees do not hold.
  std::optional<SavedValue> Decode(SavedValue json) {
    if (json.As<SavedValue::Tensor>() != nullptr) return std::nullopt;  // LargeInteger()
    if (auto* list = json.As<SavedValue::List>()) {
      if (!DecodeAll(list->items)) return std::nullopt;
      return json;
    }
    if (auto* dict = json.As<SavedValue::Dict>()) return DecodeTagged(*dict);
    return json;
  }

  // Returns whether a type has become a simpler one.
  bool is_simplified() const { return is_simplified_; }

 private:
  bool DecodeAll(std::vector<SavedValue>& items) {
    for (SavedValue& item : items) {
      std::optional<SavedValue> decoded = Decode(std::move(item));
      if (!decoded.has_value()) return false;
      item = *std::move(decoded);
    }
    return true;
  }

  std::optional<SavedValue> DecodeTagged(SavedValue::Dict& tagged) {
    const SavedValue* const tag = std::as_const(tagged).Find(kTag);
    const bool has_kind = tag != nullptr && tag->As<std::string>() != nullptr;
    const std::string kind = has_kind ? *tag->As<std::string>() : "";
    if (kind == "tensor" && takes_tensors_) return SavedValue{SavedValue::Tensor{}};
    SavedValue* const value = tagged.Find(kTagged);
    if (value == nullptr) return std::nullopt;
    for (const char* const simplified : {"numpy", "OrderedDict", "namedtuple", "torch.Size"}) {
      if (kind == simplified) is_simplified_ = true;
    }
    if (kind == "numpy") return Decode(std::move(*value));
    if (const auto* text = value->As<std::string>()) return DecodeText(kind, *text);
    auto* const list = value->As<SavedValue::List>();
    if (list == nullptr) return std::nullopt;
    if (kind == "dict" || kind == "OrderedDict") return DecodeDict(list->items);
    if (kind != "tuple" && kind != "namedtuple" && kind != "torch.Size") return std::nullopt;
    if (!DecodeAll(list->items)) return std::nullopt;
    return SavedValue{SavedValue::List{std::move(list->items), /*is_tuple=*/true}};
  }

  std::optional<SavedValue> DecodeDict(std::vector<SavedValue>& pairs) {
    SavedValue::Dict dict;
    for (SavedValue& pair : pairs) {
      auto* const items = pair.As<SavedValue::List>();
      if (items == nullptr || items->items.size() != 2 || !DecodeAll(items->items)) {
        return std::nullopt;
      }
      dict.Add(std::move(items->items[0]), std::move(items->items[1]));
    }
    return SavedValue{std::move(dict)};
  }

  static std::optional<SavedValue> DecodeText(const std::string& kind, const std::string& text) {
    SavedValue::Bytes bytes = {.is_bytearray = kind == "bytearray"};
    if ((kind == "bytes" || bytes.is_bytearray) && absl::Base64Unescape(text, &bytes.bytes)) {
      return SavedValue{std::move(bytes)};
    }
    if (kind != "float") return std::nullopt;
    for (const double number :
         {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN()}) {
      if (text == NameOfNumber(number)) return SavedValue{number};
    }
    return std::nullopt;
  }

  const bool takes_tensors_;
  bool is_simplified_ = false;
};

// ---- Structures.

// Puts leaves into a skeleton, in which they are None or a tensor without a name. Returns whether
// anything is left.
bool Fill(SavedValue& node, Path& path, const FindLeaf& find) {
  const bool is_tensor = node.As<SavedValue::Tensor>() != nullptr;
  if (!IsBranch(node)) {
    std::optional<SavedValue> leaf = find(NameOf(path), is_tensor);
    const bool found = leaf.has_value();
    node = found ? *std::move(leaf) : SavedValue{SavedValue::None{}};
    return found;
  }
  return KeepChildren(node, [&](const PathPart& part, SavedValue& child) {
    path.push_back(part);
    const bool is_found = Fill(child, path, find);
    path.pop_back();
    return is_found;
  });
}

// Returns the paths in kPlacesEntry, by name.
std::map<std::string, Path> ReadPlaces(std::string_view json) {
  std::map<std::string, Path> places;
  const std::optional<SavedValue> tree = ParseTree(json);
  const auto* const dict = tree.has_value() ? tree->As<SavedValue::Dict>() : nullptr;
  for (size_t i = 0; dict != nullptr && i < dict->size(); ++i) {
    const auto* const parts = dict->value(i).As<SavedValue::List>();
    Path path;
    for (size_t p = 0; parts != nullptr && p < parts->items.size(); ++p) {
      if (const auto* text = parts->items[p].As<std::string>()) {
        path.push_back(PathPart::Text(*text));
      } else if (const auto* index = parts->items[p].As<int64_t>()) {
        path.push_back(PathPart::Index(*index));
      }
    }
    places[*dict->key(i).As<std::string>()] = std::move(path);
  }
  return places;
}

// Dots separate keys. Numbers below "param_groups" are indices of a list, as optimizers have them.
Path GuessedPath(const std::string& name) {
  Path path;
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    const bool in_list = !path.empty() && path.back().text == "param_groups";
    int64_t index = 0;
    path.push_back(in_list && absl::SimpleAtoi(part, &index) ? PathPart::Index(index)
                                                             : PathPart::Text(std::string(part)));
  }
  return path;
}

Path GuessedPath(const LogicalTensor& tensor) {
  const size_t dot = tensor.name().find('.');
  if (BelongsToOptimizer(FromProto(tensor.role())) || dot == std::string::npos) {
    return GuessedPath(tensor.name());
  }
  return {PathPart::Text(tensor.name().substr(0, dot)),
          PathPart::Text(tensor.name().substr(dot + 1))};
}

// Builds the tree of a checkpoint without kStructureEntry, which has its structure.
SavedValue BuildTree(const Manifest& manifest, std::map<std::string, SavedValue> values) {
  std::map<std::string, Path> places;
  const auto entry = manifest.trainer().extra().find(kPlacesEntry);
  if (entry != manifest.trainer().extra().end()) places = ReadPlaces(entry->second);
  TreeBuilder builder;
  const auto add = [&](const std::string& name, Path guessed, SavedValue leaf) {
    const auto place = places.find(name);
    if (place != places.end() && builder.Add(place->second, leaf)) return;
    if (builder.Add(guessed, leaf)) return;
    builder.Add({PathPart::Text(name)}, std::move(leaf));
  };
  for (const LogicalTensor& tensor : manifest.tensors()) {
    add(tensor.name(), GuessedPath(tensor), {SavedValue::Tensor{tensor.name()}});
  }
  for (auto& [name, value] : values) add(name, GuessedPath(name), std::move(value));
  return std::move(builder).Finish();
}

}  // namespace

nlohmann::json ValueToPlainJson(const SavedValue& value) {
  return WithoutTags(ToJson(value, /*skeleton=*/false));
}

std::optional<SavedValue> ParseTree(std::string_view json) {
  JsonReader reader;
  if (!nlohmann::json::sax_parse(json, &reader)) return std::nullopt;
  return std::move(reader.root);
}

std::optional<SavedValue> ValueOfJson(std::string_view json) {
  std::optional<SavedValue> tree = ParseTree(json);
  if (tree.has_value()) {
    Prune(*tree, [](const std::string&, const SavedValue& leaf) {
      return !leaf.As<SavedValue::Tensor>();
    });
  }
  return tree;
}

std::string StructureToJson(const SavedValue& root) {
  return Dump(ToJson(root, /*skeleton=*/true));
}

std::optional<SavedValue> ReadStructure(std::string_view json, const FindLeaf& find) {
  std::optional<SavedValue> tree = ParseTree(json);
  if (tree.has_value()) tree = Decoder(/*takes_tensors=*/true).Decode(*std::move(tree));
  if (!tree.has_value() || tree->As<SavedValue::Dict>() == nullptr || !IsBranch(*tree)) {
    return std::nullopt;
  }
  Path path;
  Fill(*tree, path, find);
  return tree;
}

bool IsValuesEntry(std::string_view name) {
  return name == kValuesEntry || name == kStructureEntry || name == kPlacesEntry;
}

SavedState StateOf(const Manifest& manifest) {
  SavedState state;
  const auto& entries = manifest.trainer().extra();
  const auto entry = entries.find(kValuesEntry);
  if (entry == entries.end()) return state;
  std::optional<SavedValue> tree = ParseTree(entry->second);
  auto* const dict = tree.has_value() ? tree->As<SavedValue::Dict>() : nullptr;
  if (dict == nullptr) {
    state.left_out.push_back(absl::StrCat("all that the entry ", kValuesEntry, " has"));
    return state;
  }
  std::map<std::string, SavedValue> values;
  for (size_t i = 0; i < dict->size(); ++i) {
    const std::string& name = *dict->key(i).As<std::string>();
    Decoder decoder(/*takes_tensors=*/false);
    std::optional<SavedValue> value = decoder.Decode(std::move(dict->value(i)));
    if (!value.has_value()) {
      state.left_out.push_back(name);
      continue;
    }
    if (decoder.is_simplified()) state.simplified.push_back(name);
    values[name] = *std::move(value);
  }
  std::set<std::string> tensors, placed;
  for (const LogicalTensor& tensor : manifest.tensors()) tensors.insert(tensor.name());
  const auto find = [&](const std::string& name, bool is_tensor) -> std::optional<SavedValue> {
    if (is_tensor) {
      if (!tensors.contains(name)) return std::nullopt;
      return SavedValue{SavedValue::Tensor{name}};
    }
    const auto at = values.find(name);
    // A list has the places of all items, also of one that was left out.
    if (at == values.end() || !placed.insert(name).second) return std::nullopt;
    return at->second;
  };
  const auto structure = entries.find(kStructureEntry);
  std::optional<SavedValue> filled;
  if (structure != entries.end()) filled = ReadStructure(structure->second, find);
  if (!filled.has_value()) {
    state.root = BuildTree(manifest, std::move(values));
    return state;
  }
  state.root = *std::move(filled);
  for (auto& [name, value] : values) {
    if (!placed.contains(name)) state.root.As<SavedValue::Dict>()->Add({name}, std::move(value));
  }
  return state;
}

std::vector<std::string> SetEntries(const SavedValue& root, Manifest& manifest) {
  if (IsEmpty(root)) return {};
  std::set<std::string> names;
  for (const LogicalTensor& tensor : manifest.tensors()) names.insert(tensor.name());
  Json values = Json::object();
  SavedValue kept = root;
  std::vector<std::string> left_out = RemoveNamesakes(std::move(names), kept);
  for (const auto& [name, value] : ValuesByName(kept)) {
    values[name] = ToJson(*value, /*skeleton=*/false);
  }
  const bool is_new = !manifest.has_trainer();
  auto& entries = *manifest.mutable_trainer()->mutable_extra();
  if (is_new) entries[kUnknownStepEntry] = "";
  entries[kValuesEntry] = Dump(values);
  entries[kStructureEntry] = StructureToJson(kept);
  return left_out;
}

}  // namespace tessera::ckpt::convert
