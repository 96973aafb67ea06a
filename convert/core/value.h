#ifndef TESSERA_CONVERT_CORE_VALUE_H_
#define TESSERA_CONVERT_CORE_VALUE_H_

// The tree of values that a program saves: nested dicts and lists, whose leaves are tensors and
// plain values. Readers yield such trees, and every format that holds values is written from one.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::ckpt::convert {

// A value of Python, of the kinds that have the same meaning everywhere.
struct SavedValue {
  struct None {
    bool operator==(const None&) const = default;
  };
  struct Bytes {
    std::string bytes = {};
    bool is_bytearray = false;
    bool operator==(const Bytes&) const = default;
  };
  // The place of a tensor, whose name in the checkpoint this is.
  struct Tensor {
    std::string name;
    bool operator==(const Tensor&) const = default;
  };
  struct List {
    std::vector<SavedValue> items;
    bool is_tuple = false;
    bool operator==(const List&) const;
  };
  // A dict: keys and values in turn, in the order of the program. Keys are not compared.
  struct Dict {
    std::vector<SavedValue> flat;
    bool operator==(const Dict&) const;

    size_t size() const { return flat.size() / 2; }
    const SavedValue& key(size_t i) const { return flat[2 * i]; }
    const SavedValue& value(size_t i) const { return flat[2 * i + 1]; }
    SavedValue& value(size_t i) { return flat[2 * i + 1]; }
    void Add(SavedValue key, SavedValue value);
    const SavedValue* Find(std::string_view text) const;  // null if there is no such key
    SavedValue* Find(std::string_view text);
  };

  std::variant<None, bool, int64_t, double, std::string, Bytes, Tensor, List, Dict> data;

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&data);
  }
  template <typename T>
  T* As() {
    return std::get_if<T>(&data);
  }
  // Compares values. Numbers are equal if their bits are, or if both are NaN.
  bool operator==(const SavedValue& other) const;
};

// A step on the way to a leaf: the key in a dict, which is a text or an integer, or the index in a
// list or tuple.
struct PathPart {
  enum class Kind : uint8_t { kText, kInteger, kIndex };
  Kind kind = Kind::kText;
  std::string text;
  int64_t number = 0;

  static PathPart Text(std::string text) { return {Kind::kText, std::move(text), 0}; }
  static PathPart Index(int64_t index) { return {Kind::kIndex, "", index}; }
  std::string ToString() const;
  auto operator<=>(const PathPart&) const = default;
};
using Path = std::vector<PathPart>;

// Returns the parts with dots between them.
std::string NameOf(const Path& path);

struct Leaf {
  std::string name;  // NameOf(path)
  Path path;
  const SavedValue* value = nullptr;
};

// Returns whether a value is a branch, not a leaf, by the rules of the package tessera_ckpt.
// Branches are
// - dicts of texts and integers;
// - lists and tuples that have a tensor in them, however deep;
// - lists that have such a dict in them, or in their lists.
bool IsBranch(const SavedValue& value);

// Returns all leaves in their order, with pointers into `root`.
std::vector<Leaf> LeavesOf(const SavedValue& root);
// Returns the leaves that are not tensors, by name; the first of each name.
std::map<std::string, const SavedValue*> ValuesByName(const SavedValue& root);

// Returns whether the tree has neither tensors nor values.
bool IsEmpty(const SavedValue& root);

// Calls `visit` with each value inside a dict of texts and integers, a list or a tuple, in order,
// and with the key or index that leads to it.
template <typename Value>
void ForEachChild(Value& branch, const std::function<void(const PathPart&, Value& child)>& visit);

// Removes the entries of a dict for which `keep` returns false. Entries of a list stay in their
// places. Returns whether anything is left, an empty dict included.
bool KeepChildren(SavedValue& branch,
                  const std::function<bool(const PathPart&, SavedValue& child)>& keep);

// Removes the leaves for whose names `is_wanted` returns false, and the branches that become empty.
// In a list that keeps others, None takes a leaf's place, and an empty dict that of a branch.
void Prune(SavedValue& root,
           const std::function<bool(const std::string&, const SavedValue&)>& is_wanted);

// Removes the values that have one of these names, or that of a tensor or an earlier value, since
// their places would show the other one. Returns their names.
std::vector<std::string> RemoveNamesakes(std::set<std::string> names, SavedValue& root);

// Renames the tensors of a tree.
void RenameTensors(const std::function<std::string(const std::string&)>& name, SavedValue& root);

// Makes a tree of leaves and their paths.
class TreeBuilder {
 public:
  TreeBuilder();
  ~TreeBuilder();
  // Adds a leaf. Returns false, and adds nothing, if the path is empty, already there, or leads
  // through a leaf.
  bool Add(const Path& path, SavedValue leaf);
  // Returns the tree, a dict. Dicts whose keys are the indices 0, 1, ... become lists; other
  // indices stay integer keys.
  SavedValue Finish() &&;

 private:
  struct Node;
  std::unique_ptr<Node> root_;
};

// Returns a dict with one entry.
SavedValue DictOf(std::string key, SavedValue value);

// Adds the entries of `more` to a dict. If both have an entry, dicts are merged, and otherwise the
// entry of `root` is kept. A root that is not a dict is replaced.
void MergeInto(SavedValue more, SavedValue& root);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_VALUE_H_
