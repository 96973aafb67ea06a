#include "operations/diff_values.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "convert/core/saved_values.h"
#include "convert/formats.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt {
namespace {

using convert::SavedValue;
using Counts = MetadataDifference::Counts;
using ValuesOfNames = std::map<std::string, SavedValue>;

constexpr char kOurEntries[] = "tessera_ckpt.";
// Digests of tensors, which only a group of ranks stores.
constexpr char kAlikeEntry[] = "tessera_ckpt.alike";

// Returns the members of a JSON object, in any order; nullopt for another text.
std::optional<ValuesOfNames> MembersOf(const std::string& json) {
  const std::optional<SavedValue> tree = convert::ParseTree(json);
  const auto* const dict = tree.has_value() ? tree->As<SavedValue::Dict>() : nullptr;
  if (dict == nullptr) return std::nullopt;
  ValuesOfNames members;
  for (size_t i = 0; i < dict->size(); ++i) {
    members[*dict->key(i).As<std::string>()] = dict->value(i);
  }
  return members;
}

bool IsSameJson(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const std::optional<ValuesOfNames> of_a = MembersOf(a);
  return of_a.has_value() && of_a == MembersOf(b);
}

bool HoldsEverything(const std::string& format) {
  return std::ranges::any_of(convert::Formats(), [&](const convert::Format& other) {
    return other.name == format && other.holds == convert::Holds::kEverything;
  });
}

// Returns the value as Python writes it, and what JSON stores for it as JSON: values that differ
// have different texts.
std::string ExactText(const SavedValue& value) {
  const auto append = [](std::string* out, const SavedValue& item) { *out += ExactText(item); };
  if (const auto* text = value.As<std::string>()) {
    return absl::StrCat("\"", absl::CHexEscape(*text), "\"");
  }
  if (const auto* bytes = value.As<SavedValue::Bytes>()) {
    const std::string literal = absl::StrCat("b\"", absl::CHexEscape(bytes->bytes), "\"");
    return bytes->is_bytearray ? absl::StrCat("bytearray(", literal, ")") : literal;
  }
  if (const auto* list = value.As<SavedValue::List>()) {
    const std::string items = absl::StrJoin(list->items, ", ", append);
    return list->is_tuple ? absl::StrCat("(", items, ")") : absl::StrCat("[", items, "]");
  }
  if (const auto* dict = value.As<SavedValue::Dict>()) {
    std::vector<std::string> items;
    for (size_t i = 0; i < dict->size(); ++i) {
      items.push_back(absl::StrCat(ExactText(dict->key(i)), ": ", ExactText(dict->value(i))));
    }
    return absl::StrCat("{", absl::StrJoin(items, ", "), "}");
  }
  // An integer beyond 64 bits: its digits.
  if (const auto* number = value.As<SavedValue::Tensor>()) return number->name;
  return convert::ValueToPlainJson(value).dump();
}

// Returns the kind of a value that JSON stores as {"!": kind, "value": value}; null for others.
const std::string* KindOfTagged(const SavedValue& json) {
  const auto* const dict = json.As<SavedValue::Dict>();
  const SavedValue* const tag = dict == nullptr ? nullptr : dict->Find("!");
  return tag == nullptr ? nullptr : tag->As<std::string>();
}

bool IsDictKind(const std::string& kind) { return kind == "dict" || kind == "OrderedDict"; }

// Returns the value with the items of all dicts in one order, and dicts for OrderedDicts.
// `as_stored`: the value is as JSON has it.
SavedValue WithoutOrder(SavedValue value, bool as_stored) {
  if (auto* list = value.As<SavedValue::List>()) {
    for (SavedValue& item : list->items) item = WithoutOrder(std::move(item), as_stored);
    return value;
  }
  auto* const dict = value.As<SavedValue::Dict>();
  if (dict == nullptr) return value;
  std::map<std::string, std::pair<SavedValue, SavedValue>> items;
  for (size_t i = 0; i < dict->size(); ++i) {
    items[ExactText(dict->key(i))] = {dict->key(i), WithoutOrder(dict->value(i), as_stored)};
  }
  SavedValue::Dict ordered;
  for (auto& [text, item] : items) ordered.Add(std::move(item.first), std::move(item.second));
  const std::string* const kind = as_stored ? KindOfTagged(value) : nullptr;
  if (kind != nullptr && IsDictKind(*kind)) {
    *ordered.Find("!") = {std::string("dict")};
    SavedValue* const pairs = ordered.Find("value");
    auto* const list = pairs == nullptr ? nullptr : pairs->As<SavedValue::List>();
    if (list != nullptr) std::ranges::sort(list->items, {}, ExactText);
  }
  return {std::move(ordered)};
}

// The values of a checkpoint: as they are compared, and as they are shown.
struct ShownValues {
  // `as_stored`: also tells values apart whose types are shown alike.
  ShownValues(const NamedCheckpoint& named, bool as_stored)
      : root(named.format.empty() ? convert::StateOf(named.opened->manifest()).root : named.state),
        holds_all(named.format.empty() || HoldsEverything(named.format)) {
    // A file may have several values of one name, in any order.
    std::vector<convert::Leaf> leaves = convert::LeavesOf(root);
    std::ranges::stable_sort(leaves, {}, &convert::Leaf::path);
    for (const auto& [leaf_name, path, value] : leaves) {
      if (value->As<SavedValue::Tensor>() != nullptr) continue;
      std::string name = leaf_name;
      for (int count = 2; !shown.try_emplace(name, value).second; ++count) {
        name = absl::StrCat(leaf_name, " (", count, ")");
      }
    }
    const auto& entries = named.opened->manifest().trainer().extra();
    const auto entry = entries.find(convert::kValuesEntry);
    if (named.format.empty() && entry == entries.end()) return;
    if (as_stored) {
      values = MembersOf(entry->second);
      return;
    }
    values.emplace();
    for (const auto& [name, value] : shown) (*values)[name] = *value;
  }

  // Forms of the text of a value. Each one tells more values apart than the one before.
  enum class Form { kJson, kPython, kStored };

  std::string Text(const std::string& name, Form form) const {
    const auto stored = values->find(name);
    if (stored == values->end()) return "(not set)";
    const auto at = shown.find(name);
    if (at == shown.end() || form == Form::kStored) return ExactText(stored->second);
    if (form == Form::kPython) return ExactText(*at->second);
    return convert::ValueToPlainJson(*at->second)
        .dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  }

  SavedValue root;
  std::map<std::string, const SavedValue*> shown;
  bool holds_all;  // whether the format has a place for every value
  std::optional<ValuesOfNames> values;
};

// Returns a text for a line: of a long one, a part that has the byte `place`.
std::string PartOfText(const std::string& text, size_t place) {
  constexpr size_t kMaxBytes = 100, kBefore = 20;
  if (text.size() <= kMaxBytes) return text;
  const size_t begin = place + kBefore < kMaxBytes ? 0 : place - kBefore;
  return absl::StrCat(begin == 0 ? "" : absl::StrCat("(from byte ", begin, ") ..."),
                      absl::CHexEscape(text.substr(begin, kMaxBytes)),
                      text.size() - begin > kMaxBytes ? "..." : "");
}

// Returns "1 -> 2", in the first form in which the two differ.
std::string ChangeOfValue(const ShownValues& a, const ShownValues& b, const std::string& name) {
  using Form = ShownValues::Form;
  std::string from, to;
  for (const Form form : {Form::kJson, Form::kPython, Form::kStored}) {
    from = a.Text(name, form);
    to = b.Text(name, form);
    if (from != to) break;
  }
  const size_t place = std::ranges::mismatch(from, to).in1 - from.begin();
  return absl::StrCat(PartOfText(from, place), " -> ", PartOfText(to, place));
}

void CompareNamed(const ShownValues& a, const ShownValues& b, bool as_stored,
                  std::vector<MetadataDifference>& lines) {
  std::set<std::string> names;
  for (const ShownValues* side : {&a, &b}) {
    for (const auto& [name, value] : *side->values) names.insert(name);
  }
  size_t only_a = 0, only_b = 0;  // where the other format has no place for them
  for (const std::string& name : names) {
    const auto in_a = a.values->find(name), in_b = b.values->find(name);
    const bool in_both = in_a != a.values->end() && in_b != b.values->end();
    if (in_both && in_a->second == in_b->second) continue;
    if (!in_both && !(a.holds_all && b.holds_all)) {
      ++(in_b == b.values->end() ? only_a : only_b);
      continue;
    }
    MetadataDifference& line = lines.emplace_back();
    line.text = absl::StrCat("value ", absl::CHexEscape(name), ": ", ChangeOfValue(a, b, name));
    if (in_both && WithoutOrder(in_a->second, as_stored) == WithoutOrder(in_b->second, as_stored)) {
      line.counts = Counts::kNever;
    }
  }
  for (const auto& [title, count] : {std::pair("deleted: ", only_a), {"added: ", only_b}}) {
    if (count > 0) {
      lines.push_back({absl::StrCat(title, Counted(count, "value")), Counts::kBetweenOurs});
    }
  }
}

// Compares the containers of two states, which are as kStructureEntry has them.
class ContainerComparison {
 public:
  void Compare(const SavedValue& a, const SavedValue& b, const std::string& name) {
    if (a == b) return;
    const Container of_a(a), of_b(b);
    const std::string place = name.empty() ? "(the whole state)" : absl::CHexEscape(name);
    const bool are_dicts = IsDictKind(of_a.kind) && IsDictKind(of_b.kind);
    const std::string change = absl::StrCat(of_a.kind, " -> ", of_b.kind);
    if (of_a.kind != of_b.kind && are_dicts) {
      places_[change].push_back(place);
    } else if (of_a.kind != of_b.kind) {
      lines_.push_back({absl::StrCat("container ", place, ": ", change)});
    }
    if (of_a.keys != of_b.keys && std::ranges::is_permutation(of_a.keys, of_b.keys)) {
      places_["the keys are in another order"].push_back(place);
    }
    CompareMetadataOf(of_a, of_b, place);
    for (const auto& [part, child] : of_a.children) {
      const auto other = of_b.children.find(part);
      const std::string path = absl::StrCat(name, name.empty() ? "" : ".", part);
      if (other == of_b.children.end()) {
        AddOnly(path, *child.node, /*in_first=*/true);
        continue;
      }
      if (child.key != other->second.key) {
        lines_.push_back({absl::StrCat("container ", place, ": the key ", child.key, " -> ",
                                       other->second.key)});
      }
      Compare(*child.node, *other->second.node, path);
    }
    for (const auto& [part, child] : of_b.children) {
      if (of_a.children.contains(part)) continue;
      AddOnly(absl::StrCat(name, name.empty() ? "" : ".", part), *child.node,
              /*in_first=*/false);
    }
  }

  std::vector<MetadataDifference> Finish() && {
    constexpr size_t kMaxPlaces = 3;
    for (auto& [what, places] : places_) {
      const size_t more = places.size() - std::min(places.size(), kMaxPlaces);
      places.resize(places.size() - more);
      lines_.push_back({absl::StrCat("containers: ", what, ": ", absl::StrJoin(places, ", "),
                                     more > 0 ? absl::StrCat(" and ", more, " more") : ""),
                        Counts::kNever});
    }
    return std::move(lines_);
  }

 private:
  struct Container {
    explicit Container(const SavedValue& node) {
      const auto* list = node.As<SavedValue::List>();
      if (list != nullptr) kind = "list";
      if (const std::string* tag = KindOfTagged(node)) {
        const auto& members = *node.As<SavedValue::Dict>();
        kind = *tag;
        for (const char* const of_class : {"module", "name", "fields"}) {
          const SavedValue* const member = members.Find(of_class);
          if (member != nullptr) absl::StrAppend(&kind, " ", ExactText(*member));
        }
        const SavedValue* const items = members.Find("value");
        list = items == nullptr ? nullptr : items->As<SavedValue::List>();
        metadata = members.Find("_metadata");
      }
      for (size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
        const auto* const pair = list->items[i].As<SavedValue::List>();
        if (!IsDictKind(kind)) {
          children[absl::StrCat(i)] = {.node = &list->items[i]};
        } else if (pair != nullptr && pair->items.size() == 2) {
          keys.push_back(ExactText(pair->items[0]));
          const auto* const text = pair->items[0].As<std::string>();
          Child child = {keys.back(), &pair->items[1]};
          std::string part = text != nullptr ? *text : child.key;
          // Where a text and an integer look alike, the text keeps its name.
          if (text != nullptr && children.contains(part)) std::swap(children[part], child);
          while (!children.try_emplace(part, child).second) part += " (2)";
        }
      }
    }

    struct Child {
      std::string key = {};  // which is a text or an integer; empty in a list
      const SavedValue* node = nullptr;
    };
    std::string kind = "value";
    std::vector<std::string> keys;          // of a dict
    std::map<std::string, Child> children;  // by the parts of their names
    const SavedValue* metadata = nullptr;   // what torch says of modules
  };

  static bool IsWithoutLeaves(const SavedValue& node) {
    const Container container(node);
    if (container.kind == "value" || container.kind == "tensor") return false;
    return std::ranges::all_of(
        container.children, [](const auto& child) { return IsWithoutLeaves(*child.second.node); });
  }

  // The leaves of a container that only one state has are compared by their names.
  void AddOnly(const std::string& path, const SavedValue& node, bool in_first) {
    if (!IsWithoutLeaves(node)) return;
    const std::string kind = Container(node).kind;
    lines_.push_back(
        {absl::StrCat("container ", absl::CHexEscape(path), ": ", in_first ? kind : "(not set)",
                      " -> ", in_first ? "(not set)" : kind)});
  }

  void CompareMetadataOf(const Container& a, const Container& b, const std::string& place) {
    if (a.metadata == nullptr && b.metadata == nullptr) return;
    if (a.metadata == nullptr || b.metadata == nullptr) {
      places_[absl::StrCat("_metadata only in the ", b.metadata == nullptr ? "first" : "second")]
          .push_back(place);
    } else if (WithoutOrder(*a.metadata, true) != WithoutOrder(*b.metadata, true)) {
      lines_.push_back({absl::StrCat("container ", place, ": other _metadata")});
    }
  }

  std::vector<MetadataDifference> lines_;
  std::map<std::string, std::vector<std::string>> places_;  // by what never counts
};

void CompareContainers(const std::string& a, const std::string& b,
                       std::vector<MetadataDifference>& lines) {
  const std::optional<SavedValue> tree_a = convert::ParseTree(a), tree_b = convert::ParseTree(b);
  if (!tree_a.has_value() || !tree_b.has_value()) {
    if (a != b) lines.push_back({absl::StrCat("modified: ", convert::kStructureEntry)});
    return;
  }
  ContainerComparison comparison;
  comparison.Compare(*tree_a, *tree_b, "");
  std::ranges::move(std::move(comparison).Finish(), std::back_inserter(lines));
}

}  // namespace

std::vector<MetadataDifference> CompareValues(const NamedCheckpoint& a, const NamedCheckpoint& b,
                                              TrainerEntries& entries_a,
                                              TrainerEntries& entries_b) {
  std::vector<MetadataDifference> lines;
  const bool as_stored = a.format.empty() && b.format.empty();
  const ShownValues of_a(a, as_stored), of_b(b, as_stored);
  const auto erase = [&](const std::string& name) {
    entries_a.erase(name);
    entries_b.erase(name);
  };
  erase(kAlikeEntry);
  const bool in_a = of_a.values.has_value(), in_b = of_b.values.has_value();
  if ((in_a && of_a.holds_all) || (in_b && of_b.holds_all)) {
    const auto structure_a = entries_a.find(convert::kStructureEntry),
               structure_b = entries_b.find(convert::kStructureEntry);
    if (!in_a || !in_b) {
      const size_t count = (in_a ? of_a : of_b).values->size();
      if (count > 0) {
        lines.push_back({absl::StrCat(in_a ? "deleted: " : "added: ", Counted(count, "value")),
                         Counts::kBetweenOurs});
      }
    } else {
      CompareNamed(of_a, of_b, as_stored, lines);
      if (!as_stored && a.format == b.format) {
        CompareContainers(convert::StructureToJson(of_a.root), convert::StructureToJson(of_b.root),
                          lines);
      } else if (as_stored && structure_a != entries_a.end() && structure_b != entries_b.end()) {
        CompareContainers(structure_a->second, structure_b->second, lines);
      }
    }
    erase(convert::kStructureEntry);
    erase(convert::kValuesEntry);
  }
  std::set<std::string> same;
  for (const auto& [name, text] : entries_a) {
    const auto other = entries_b.find(name);
    if (absl::StartsWith(name, kOurEntries) && other != entries_b.end() &&
        IsSameJson(text, other->second)) {
      same.insert(name);
    }
  }
  for (const std::string& name : same) erase(name);
  return lines;
}

}  // namespace tessera::ckpt
