#ifndef TESSERA_BASE_NO_SPACE_H_
#define TESSERA_BASE_NO_SPACE_H_

// A full disk or store as an absl::Status. Its code is ResourceExhausted, as for a lack of memory
// or threads, but space does not come back by itself. So a payload marks the status.

#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Returns ResourceExhausted, marked as lack of space or quota.
absl::Status NoSpaceError(std::string_view message);

// Returns whether a status is NoSpaceError(), of one rank or of several (AgreeOnStatus()).
bool IsNoSpace(const absl::Status& status);

// Returns NoSpaceError() for a file that is larger than files may be.
absl::Status FileTooLargeError(std::string_view message);

// Returns whether a status is NoSpaceError() for lack of what a deletion frees.
bool MayBeFreed(const absl::Status& status);

// Marks an error after which the next attempt deletes what makes room for it; returns whether one
// is marked.
void MarkRoomComes(absl::Status& status);
bool RoomComes(const absl::Status& status);

// Marks an error as NoSpaceError() is.
void MarkNoSpace(absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_BASE_NO_SPACE_H_
