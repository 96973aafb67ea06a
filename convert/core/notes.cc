#include "convert/core/notes.h"

#include "base/text.h"

namespace tessera::ckpt::convert {

std::string LeftOutNote(const absl::AlphaNum& what, const std::vector<std::string>& names) {
  return absl::StrCat("Left out: ", what, ": ", JoinFirst(names, ", "), ".");
}

absl::Status WithNotes(const absl::Status& status, const std::vector<std::string>& notes) {
  const bool may_explain = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
                           absl::IsNotFound(status) || absl::IsUnimplemented(status);
  if (!may_explain || notes.empty()) return status;
  const std::string message(status.message());
  return absl::Status(status.code(), absl::StrCat(message, message.ends_with('.') ? " " : ". ",
                                                  JoinFirst(notes, " ")));
}

}  // namespace tessera::ckpt::convert
