#include "operations/diff_values.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "convert/core/saved_values.h"
#include "convert/formats.h"

namespace tessera::ckpt {
namespace {

using convert::SavedValue;
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

// The values of a checkpoint: as they are compared, and as they are shown.
struct ShownValues {
  // `as_stored`: also tells values apart whose types are shown alike.
  ShownValues(const NamedCheckpoint& named, bool as_stored)
      : root(named.format.empty() ? convert::StateOf(named.opened->manifest()).root : named.state),
        shown(convert::ValuesByName(root)) {
    const auto& entries = named.opened->manifest().trainer().extra();
    const auto entry = entries.find(convert::kValuesEntry);
    const bool has_values =
        named.format.empty() ? entry != entries.end() : HoldsEverything(named.format);
    if (!has_values) return;
    if (as_stored) {
      values = MembersOf(entry->second);
      return;
    }
    values.emplace();
    for (const auto& [name, value] : shown) (*values)[name] = *value;
  }

  std::string Text(const std::string& name) const {
    constexpr size_t kMaxBytes = 100;
    if (!values->contains(name)) return "(not set)";
    const auto at = shown.find(name);
    if (at == shown.end()) return "(of a kind that is not shown)";
    const std::string text = convert::ValueToPlainJson(*at->second).dump();
    if (text.size() <= kMaxBytes) return text;
    return absl::StrCat(absl::CHexEscape(text.substr(0, kMaxBytes)), "...");
  }

  SavedValue root;
  std::map<std::string, const SavedValue*> shown;
  std::optional<ValuesOfNames> values;
};

void CompareNamed(const ShownValues& a, const ShownValues& b, std::vector<std::string>& lines) {
  std::set<std::string> names;
  for (const ShownValues* side : {&a, &b}) {
    for (const auto& [name, value] : *side->values) names.insert(name);
  }
  for (const std::string& name : names) {
    const auto in_a = a.values->find(name), in_b = b.values->find(name);
    const bool in_both = in_a != a.values->end() && in_b != b.values->end();
    if (in_both && in_a->second == in_b->second) continue;
    lines.push_back(
        absl::StrCat("value ", absl::CHexEscape(name), ": ", a.Text(name), " -> ", b.Text(name)));
  }
}

}  // namespace

std::vector<std::string> CompareValues(const NamedCheckpoint& a, const NamedCheckpoint& b,
                                       TrainerEntries& entries_a, TrainerEntries& entries_b) {
  std::vector<std::string> lines;
  const bool as_stored = a.format.empty() && b.format.empty();
  const ShownValues of_a(a, as_stored), of_b(b, as_stored);
  const auto erase = [&](const std::string& name) {
    entries_a.erase(name);
    entries_b.erase(name);
  };
  erase(kAlikeEntry);
  if (of_a.values.has_value() != of_b.values.has_value()) {
    lines.push_back(absl::StrCat(of_a.values.has_value() ? "deleted: " : "added: ",
                                 (of_a.values.has_value() ? of_a : of_b).values->size(),
                                 " values"));
    erase(convert::kStructureEntry);
  } else if (of_a.values.has_value()) {
    CompareNamed(of_a, of_b, lines);
    const auto structure_a = entries_a.find(convert::kStructureEntry),
               structure_b = entries_b.find(convert::kStructureEntry);
    if (as_stored && structure_a != entries_a.end() && structure_b != entries_b.end() &&
        !IsSameJson(structure_a->second, structure_b->second)) {
      lines.push_back("modified: the dicts and lists around the tensors and values");
    }
    erase(convert::kStructureEntry);
  }
  if (of_a.values.has_value() || of_b.values.has_value()) erase(convert::kValuesEntry);
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
