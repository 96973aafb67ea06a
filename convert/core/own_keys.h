#ifndef TESSERA_CONVERT_CORE_OWN_KEYS_H_
#define TESSERA_CONVERT_CORE_OWN_KEYS_H_

// The keys under which state dicts that this library writes hold what a state dict cannot express.
// Other programs ignore these keys.

#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/value.h"

namespace tessera::ckpt::convert {

// Key of a dict from the keys of tensors other than weights to their roles' names in manifests.
inline constexpr char kRolesKey[] = "tessera.roles";
// Key of a dict from the keys of tensors to their names in the checkpoint. An empty name: the
// tensor is there for torch alone.
inline constexpr char kNamesKey[] = "tessera.names";
// Key of a dict with "step" and, if it is known, "consumed_samples"; and "manifest": texts that
// make up a manifest of trainer, model, optimizer and the tensors' partitions in protobuf's text
// format.
inline constexpr char kTrainerKey[] = "tessera.trainer";
// Key of the structure (StructureToJson()), in formats that do not keep it.
inline constexpr char kStructureKey[] = "tessera.structure";

// Returns the value of kTrainerKey. With `state_is_written`, the state dict itself is the tree of
// the manifest's entries (StateOf()), which are then not part of the text. Without it, the text has
// the entries of `state` in place of the manifest's, unless `state` is null.
SavedValue TrainerValue(const Manifest& manifest, bool state_is_written, const SavedValue* state);

// Removes the keys above from the tree of a checkpoint that was read, and restores the tensors'
// roles, names and partitions, the description, and the tree's structure. A description that does
// not fit the tensors is left out, with a note.
void TakeOwnKeys(ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_OWN_KEYS_H_
