#ifndef TESSERA_CONVERT_CORE_OWN_KEYS_H_
#define TESSERA_CONVERT_CORE_OWN_KEYS_H_

// Keys of this library in state dicts that it writes, which other programs pass over: what a
// checkpoint has and a state dict has no place for.

#include <map>
#include <string>

#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/value.h"

namespace tessera::ckpt::convert {

// A dict from the keys of tensors other than weights to their roles as manifests call them.
inline constexpr char kRolesKey[] = "tessera.roles";
// A dict from the keys of tensors to the names that the checkpoint has them by. An empty name: the
// tensor is there for torch alone.
inline constexpr char kNamesKey[] = "tessera.names";
// A dict with "step" and, where it is known, "consumed_samples"; and "manifest": texts that make up
// a manifest in protobuf's text format, of trainer, model and optimizer.
inline constexpr char kTrainerKey[] = "tessera.trainer";
// Where the format does not keep it: see StructureToJson().
inline constexpr char kStructureKey[] = "tessera.structure";

// The value of kTrainerKey. `state_is_written`: the tree of the manifest's entries (StateOf()) is
// what the state dict is, and not part of the text.
SavedValue TrainerValue(const Manifest& manifest, bool state_is_written);

// Removes these keys from the tree of a checkpoint that was read, and gives tensors their roles and
// names, the description what it had, and the tree its structure. A description that does not fit
// the tensors is left out, with a note.
void TakeOwnKeys(ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_OWN_KEYS_H_
