#include "base/errno_status.h"

#include <cerrno>
#include <string>
#include <system_error>

#include "absl/strings/cord.h"
#include "base/no_space.h"
#include "base/text.h"

namespace tessera {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case 0:
      return absl::StatusCode::kOk;
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status ErrnoStatus(int error) {
  // Not strerror(): it is not thread-safe.
  const std::string message = std::generic_category().message(error);
  if (error == EFBIG) return FileTooLargeError(message);
  const bool no_space = error == ENOSPC || error == EDQUOT;
  return no_space ? NoSpaceError(message) : absl::Status(CodeOf(error), message);
}

absl::Status ReadErrnoStatus(int error) {
  // A bad sector, or a checksum or structure error of the file system. EIO is not among them: a
  // cable, a network file system or a dying node has it, too, for bytes that are not lost.
  const bool is_lost = error == EBADMSG || error == EUCLEAN || error == ENODATA;
  const absl::Status status = ErrnoStatus(error);
  return is_lost ? absl::DataLossError(status.message()) : status;
}

absl::Status In(const absl::AlphaNum& what, const absl::Status& status) {
  return status.ok() ? status : WithMessage(status, absl::StrCat(what, ": ", status.message()));
}

absl::Status WithMessage(const absl::Status& status, std::string_view message) {
  absl::Status changed(status.code(), View(message));
  status.ForEachPayload([&](absl::string_view name, const absl::Cord& payload) {
    changed.SetPayload(name, payload);
  });
  return changed;
}

absl::Status Named(std::string_view operation, std::string_view where, const absl::Status& reason) {
  if (reason.ok()) return reason;
  return WithMessage(reason,
                     absl::StrCat(View(operation), " ", View(where), ": ", reason.message()));
}

}  // namespace tessera
