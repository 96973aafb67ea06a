#ifndef TESSERA_CONVERT_CORE_NOTES_H_
#define TESSERA_CONVERT_CORE_NOTES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::ckpt::convert {

// Returns "Left out: WHAT: a, b, c and 14 more."
std::string LeftOutNote(const absl::AlphaNum& what, const std::vector<std::string>& names);

// Returns an error of an operation on another framework's checkpoint, followed by the notes of its
// reader, which may be the reason: "the checkpoint has no model. Left out: ...". Errors that do not
// come from a checkpoint's contents, such as those of a disk, are returned unchanged.
absl::Status WithNotes(const absl::Status& status, const std::vector<std::string>& notes);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_NOTES_H_
