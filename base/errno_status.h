#ifndef TESSERA_BASE_ERRNO_STATUS_H_
#define TESSERA_BASE_ERRNO_STATUS_H_

// Errors of system calls, and errors with other messages.

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {

// Returns the error with the reason as its message: "No space left on device". OK for 0. The codes
// are AlreadyExists and
// - NotFound if a name or a folder on a path is missing;
// - PermissionDenied, also on a read-only file system;
// - ResourceExhausted without space, quota or memory;
// - InvalidArgument for what can never succeed, such as a folder in place of a file;
// - otherwise Unavailable.
absl::Status ErrnoStatus(int error);

// Returns ErrnoStatus() for reading: bytes that are known to be lost are DataLoss; EIO, which may
// pass, is Unavailable.
absl::Status ReadErrnoStatus(int error);

// Returns the error with what has failed before the reason: "Rename /runs/a to /runs/b: File
// exists". OK is returned unchanged.
absl::Status Named(std::string_view operation, std::string_view where, const absl::Status& reason);

// Returns the error with `what` before its message: "writing: No space left on device". OK is
// returned unchanged.
absl::Status In(const absl::AlphaNum& what, const absl::Status& status);

// Returns a status with the same code and payloads and another message.
absl::Status WithMessage(const absl::Status& status, std::string_view message);

}  // namespace tessera

#endif  // TESSERA_BASE_ERRNO_STATUS_H_
