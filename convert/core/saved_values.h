#ifndef TESSERA_CONVERT_CORE_SAVED_VALUES_H_
#define TESSERA_CONVERT_CORE_SAVED_VALUES_H_

// Trees of values in manifests of this library: entries of the trainer's state, which the package
// tessera_ckpt (python/tessera_ckpt/_state.py) writes and reads, too.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/include/manifest.pb.h"
#include "convert/core/value.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {

// Entry of the values: JSON, an object from the names of leaves to values, as checkpoint/FORMAT.md
// describes it.
inline constexpr char kValuesEntry[] = "tessera_ckpt.values";
// Entry of the containers, in the same form: leaves are null, and {"!": "tensor"} is a tensor. The
// name of each leaf is its path.
inline constexpr char kStructureEntry[] = "tessera_ckpt.structure";
// Entry that tessera_ckpt.dcp writes instead of the structure: an object from names to paths, as in
// torch.distributed.checkpoint.
inline constexpr char kPlacesEntry[] = "torch.distributed.checkpoint";

// Returns a value for people and programs: tuples become arrays, dicts arrays of pairs, bytes
// base64, and numbers that are not finite texts.
nlohmann::json ValueToPlainJson(const SavedValue& value);

// Returns the tree of any JSON text, whose objects become dicts; nullopt if the text is not JSON,
// or nests too deep. Integers beyond 64 bits become tensors whose names are their digits.
std::optional<SavedValue> ParseTree(std::string_view json);
// The same, without integers beyond 64 bits.
std::optional<SavedValue> ValueOfJson(std::string_view json);

struct SavedState {
  SavedValue root = {SavedValue::Dict{}};  // empty if the checkpoint has no such entries
  std::vector<std::string> left_out;       // names of values of other kinds than a tree holds
  std::vector<std::string> simplified;  // names of values of simpler types: tuples for namedtuples
};

// Returns the tree of a checkpoint, whose leaves are its tensors and the values of the entries.
// Without an entry of the structure, the dots in the names of values determine it, and the first
// dot in the names of tensors.
SavedState StateOf(const Manifest& manifest);

// Sets the entries of a tree; none for an empty tree. Returns the names of leaves that are left out
// because another leaf or a tensor has the same name.
std::vector<std::string> SetEntries(const SavedValue& root, Manifest& manifest);

// Returns the structure alone, the value of kStructureEntry.
std::string StructureToJson(const SavedValue& root);
// Returns a leaf, given its name and whether it is a tensor; nullopt leaves it out.
using FindLeaf = std::function<std::optional<SavedValue>(const std::string& name, bool is_tensor)>;
// Returns the tree of a structure with the leaves that `find` returns; nullopt for other texts.
std::optional<SavedValue> ReadStructure(std::string_view json, const FindLeaf& find);

// Returns whether an entry of the trainer's state is part of the tree.
bool IsValuesEntry(std::string_view name);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_SAVED_VALUES_H_
