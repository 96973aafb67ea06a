#ifndef TESSERA_CONVERT_CORE_SAVED_VALUES_H_
#define TESSERA_CONVERT_CORE_SAVED_VALUES_H_

// How a manifest of this library has a tree of values: as entries of the trainer's state, which the
// package tessera_ckpt (python/tessera_ckpt/_state.py) writes and reads, too.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/include/manifest.pb.h"
#include "convert/core/value.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {

// JSON, an object from the names of leaves to values, as checkpoint/FORMAT.md describes it.
inline constexpr char kValuesEntry[] = "tessera_ckpt.values";
// The containers, in the same form: leaves are null, and {"!": "tensor"} is a tensor. The name of
// each leaf is its path.
inline constexpr char kStructureEntry[] = "tessera_ckpt.structure";
// Written by tessera_ckpt.dcp in place of the structure: an object from names to paths, as
// torch.distributed.checkpoint has them.
inline constexpr char kPlacesEntry[] = "torch.distributed.checkpoint";

// A value for people and programs: tuples are arrays, dicts are arrays of pairs, bytes are base64,
// and numbers that are not finite are texts.
nlohmann::json ValueToPlainJson(const SavedValue& value);

// The tree of any JSON text, whose objects are dicts; nullopt if it is not JSON, or nests too deep.
// Integers beyond 64 bits are left out.
std::optional<SavedValue> ValueOfJson(std::string_view json);

struct SavedState {
  SavedValue root = {SavedValue::Dict{}};  // empty where the checkpoint has no such entries
  std::vector<std::string> left_out;       // names of values of other kinds than a tree holds
  std::vector<std::string> plainer;  // of those whose types became plainer: a namedtuple a tuple
};

// The tree of a checkpoint. Leaves are its tensors, and the values of the entries; where no entry
// tells the structure, dots in the names of values do, and in those of tensors the first one.
SavedState StateOf(const Manifest& manifest);

// The inverse. Nothing is set for an empty tree. Returns the names of leaves that another leaf or a
// tensor has, too, which are left out.
std::vector<std::string> SetEntries(const SavedValue& root, Manifest& manifest);

// The structure alone.
std::string StructureToJson(const SavedValue& root);
// The tree of that structure with the leaves that `find` returns, given their names and whether
// they are tensors; nullopt if the text is not such a structure.
using FindLeaf = std::function<std::optional<SavedValue>(const std::string& name, bool is_tensor)>;
std::optional<SavedValue> ReadStructure(std::string_view json, const FindLeaf& find);

// Whether an entry of the trainer's state is part of the tree.
bool IsValuesEntry(std::string_view name);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_SAVED_VALUES_H_
