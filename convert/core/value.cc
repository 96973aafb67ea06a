#include "convert/core/value.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera::ckpt::convert {
namespace {

// Returns whether every key can be part of a name.
bool HasNames(const SavedValue::Dict& dict) {
  for (size_t i = 0; i < dict.size(); ++i) {
    const SavedValue& key = dict.key(i);
    if (key.As<std::string>() == nullptr && key.As<int64_t>() == nullptr) return false;
  }
  return true;
}

PathPart PartOf(const SavedValue& key) {
  if (const auto* text = key.As<std::string>()) return PathPart::Text(*text);
  return {PathPart::Kind::kInteger, "", *key.As<int64_t>()};
}

// Returns whether a container has a tensor in it, however deep.
bool HoldsTensor(const SavedValue& value) {
  if (value.As<SavedValue::Tensor>() != nullptr) return true;
  const auto* const dict = value.As<SavedValue::Dict>();
  if (dict != nullptr) return std::ranges::any_of(dict->flat, HoldsTensor);
  const auto* const list = value.As<SavedValue::List>();
  return list != nullptr && std::ranges::any_of(list->items, HoldsTensor);
}

// Returns whether a list has a dict in it, or in its lists.
bool HoldsDict(const SavedValue& value) {
  const auto* const list = value.As<SavedValue::List>();
  if (list == nullptr || list->is_tuple) return false;
  return std::ranges::any_of(list->items, [](const SavedValue& item) {
    const auto* const dict = item.As<SavedValue::Dict>();
    return dict != nullptr ? HasNames(*dict) : HoldsDict(item);
  });
}

void AddLeaves(const SavedValue& value, Path& path, std::vector<Leaf>& leaves) {
  if (!IsBranch(value)) {
    leaves.push_back({NameOf(path), path, &value});
    return;
  }
  ForEachChild<const SavedValue>(value, [&](const PathPart& part, const SavedValue& child) {
    path.push_back(part);
    AddLeaves(child, path, leaves);
    path.pop_back();
  });
}

using IsWanted = std::function<bool(const std::string&, const SavedValue&)>;

// Returns whether anything is left of a value.
bool PruneBelow(SavedValue& value, std::string& name, const IsWanted& is_wanted) {
  if (!IsBranch(value)) return is_wanted(name, value);
  return KeepChildren(value, [&](const PathPart& part, SavedValue& child) {
    const size_t bytes = name.size();
    absl::StrAppend(&name, name.empty() ? "" : ".", part.ToString());
    const bool is_branch = IsBranch(child);
    const bool is_kept = PruneBelow(child, name, is_wanted);
    name.resize(bytes);
    // A list whose only dict is gone would be a leaf.
    if (!is_kept)
      child = is_branch ? SavedValue{SavedValue::Dict{}} : SavedValue{SavedValue::None{}};
    return is_kept;
  });
}

}  // namespace

bool SavedValue::List::operator==(const List&) const = default;
bool SavedValue::Dict::operator==(const Dict&) const = default;

bool SavedValue::operator==(const SavedValue& other) const {
  const auto *mine = As<double>(), *others = other.As<double>();
  if (mine == nullptr || others == nullptr) return data == other.data;
  return std::bit_cast<uint64_t>(*mine) == std::bit_cast<uint64_t>(*others) ||
         (std::isnan(*mine) && std::isnan(*others));
}

void SavedValue::Dict::Add(SavedValue key, SavedValue value) {
  flat.push_back(std::move(key));
  flat.push_back(std::move(value));
}

const SavedValue* SavedValue::Dict::Find(std::string_view text) const {
  for (size_t i = 0; i < size(); ++i) {
    const auto* found = key(i).As<std::string>();
    if (found != nullptr && *found == text) return &value(i);
  }
  return nullptr;
}

SavedValue* SavedValue::Dict::Find(std::string_view text) {
  return const_cast<SavedValue*>(std::as_const(*this).Find(text));
}

std::string PathPart::ToString() const { return kind == Kind::kText ? text : absl::StrCat(number); }

std::string NameOf(const Path& path) {
  std::string name;
  for (const PathPart& part : path) {
    absl::StrAppend(&name, name.empty() ? "" : ".", part.ToString());
  }
  return name;
}

bool IsBranch(const SavedValue& value) {
  if (const auto* dict = value.As<SavedValue::Dict>()) return HasNames(*dict);
  return value.As<SavedValue::List>() != nullptr && (HoldsTensor(value) || HoldsDict(value));
}

template <typename Value>
void ForEachChild(Value& branch, const std::function<void(const PathPart&, Value&)>& visit) {
  auto* const dict = branch.template As<SavedValue::Dict>();
  if (dict != nullptr && HasNames(*dict)) {
    for (size_t i = 0; i < dict->size(); ++i) visit(PartOf(dict->key(i)), dict->value(i));
  } else if (auto* const list = branch.template As<SavedValue::List>()) {
    int64_t index = 0;
    for (Value& item : list->items) visit(PathPart::Index(index++), item);
  }
}
template void ForEachChild(SavedValue&, const std::function<void(const PathPart&, SavedValue&)>&);
template void ForEachChild(const SavedValue&,
                           const std::function<void(const PathPart&, const SavedValue&)>&);

bool KeepChildren(SavedValue& branch,
                  const std::function<bool(const PathPart&, SavedValue&)>& keep) {
  auto* const dict = branch.As<SavedValue::Dict>();
  bool any = dict != nullptr && dict->size() == 0;
  SavedValue::Dict kept;
  size_t entry = 0;
  ForEachChild<SavedValue>(branch, [&](const PathPart& part, SavedValue& child) {
    const bool is_kept = keep(part, child);
    any = any || is_kept;
    if (dict == nullptr) return;
    if (is_kept) kept.Add(std::move(dict->flat[2 * entry]), std::move(child));
    ++entry;
  });
  if (dict != nullptr) *dict = std::move(kept);
  return any;
}

std::vector<Leaf> LeavesOf(const SavedValue& root) {
  std::vector<Leaf> leaves;
  Path path;
  AddLeaves(root, path, leaves);
  return leaves;
}

std::map<std::string, const SavedValue*> ValuesByName(const SavedValue& root) {
  std::map<std::string, const SavedValue*> values;
  for (const Leaf& leaf : LeavesOf(root)) {
    if (leaf.value->As<SavedValue::Tensor>() == nullptr) values.emplace(leaf.name, leaf.value);
  }
  return values;
}

bool IsEmpty(const SavedValue& root) { return LeavesOf(root).empty(); }

void Prune(SavedValue& root, const IsWanted& is_wanted) {
  std::string name;
  if (!PruneBelow(root, name, is_wanted)) root = SavedValue{SavedValue::Dict{}};
}

std::vector<std::string> RemoveNamesakes(std::set<std::string> names, SavedValue& root) {
  for (const Leaf& leaf : LeavesOf(root)) {
    if (leaf.value->As<SavedValue::Tensor>() != nullptr) names.insert(leaf.name);
  }
  std::vector<std::string> removed;
  Prune(root, [&](const std::string& name, const SavedValue& leaf) {
    if (leaf.As<SavedValue::Tensor>() != nullptr || names.insert(name).second) return true;
    removed.push_back(name);
    return false;
  });
  return removed;
}

void RenameTensors(const std::function<std::string(const std::string&)>& name, SavedValue& root) {
  if (auto* tensor = root.As<SavedValue::Tensor>()) {
    tensor->name = name(tensor->name);
  } else if (auto* dict = root.As<SavedValue::Dict>()) {
    for (size_t i = 0; i < dict->size(); ++i) RenameTensors(name, dict->value(i));
  } else if (auto* list = root.As<SavedValue::List>()) {
    for (SavedValue& item : list->items) RenameTensors(name, item);
  }
}

struct TreeBuilder::Node {
  bool is_leaf = false;
  SavedValue leaf;
  std::vector<PathPart> order;
  std::map<PathPart, std::unique_ptr<Node>> children;

  SavedValue Finish(bool is_root = false) {
    if (is_leaf) return std::move(leaf);
    const auto is_index = [](const PathPart& part) { return part.kind == PathPart::Kind::kIndex; };
    // Distinct indices are 0, 1, ... if the last one equals the number of the others.
    const bool is_list =
        !is_root && !children.empty() && std::ranges::all_of(order, is_index) &&
        children.begin()->first.number == 0 &&
        children.rbegin()->first.number + 1 == static_cast<int64_t>(children.size());
    if (is_list) {
      SavedValue::List list;
      for (auto& [part, child] : children) list.items.push_back(child->Finish());
      return {std::move(list)};
    }
    SavedValue::Dict dict;
    for (const PathPart& part : order) {
      SavedValue key =
          part.kind == PathPart::Kind::kText ? SavedValue{part.text} : SavedValue{part.number};
      dict.Add(std::move(key), children.at(part)->Finish());
    }
    return {std::move(dict)};
  }
};

TreeBuilder::TreeBuilder() : root_(std::make_unique<Node>()) {}
TreeBuilder::~TreeBuilder() = default;

bool TreeBuilder::Add(const Path& path, SavedValue leaf) {
  if (path.empty()) return false;
  // Checks the whole path before it creates anything.
  const Node* known = root_.get();
  for (size_t i = 0; i < path.size() && known != nullptr; ++i) {
    if (known->is_leaf) return false;
    const auto child = known->children.find(path[i]);
    known = child == known->children.end() ? nullptr : child->second.get();
  }
  if (known != nullptr) return false;
  Node* node = root_.get();
  for (const PathPart& part : path) {
    std::unique_ptr<Node>& child = node->children[part];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      node->order.push_back(part);
    }
    node = child.get();
  }
  node->is_leaf = true;
  node->leaf = std::move(leaf);
  return true;
}

SavedValue TreeBuilder::Finish() && { return root_->Finish(/*is_root=*/true); }

SavedValue DictOf(std::string key, SavedValue value) {
  SavedValue::Dict dict;
  dict.Add({std::move(key)}, std::move(value));
  return {std::move(dict)};
}

void MergeInto(SavedValue more, SavedValue& root) {
  auto *from = more.As<SavedValue::Dict>(), *to = root.As<SavedValue::Dict>();
  if (to == nullptr) root = std::move(more);
  if (to == nullptr || from == nullptr || !HasNames(*to) || !HasNames(*from)) return;
  std::map<PathPart, size_t> known;
  for (size_t i = 0; i < to->size(); ++i) known.emplace(PartOf(to->key(i)), i);
  for (size_t i = 0; i < from->size(); ++i) {
    const auto at = known.find(PartOf(from->key(i)));
    if (at == known.end()) {
      to->Add(std::move(from->flat[2 * i]), std::move(from->flat[2 * i + 1]));
    } else if (to->value(at->second).As<SavedValue::Dict>() != nullptr) {
      MergeInto(std::move(from->value(i)), to->value(at->second));
    }
  }
}

}  // namespace tessera::ckpt::convert
