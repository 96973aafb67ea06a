#ifndef TESSERA_BASE_NO_SPACE_H_
#define TESSERA_BASE_NO_SPACE_H_

// Missing space as an absl::Status: of a disk or a store, which does not come back by itself as
// memory or threads do, whose lack is ResourceExhausted, too.

#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Returns ResourceExhausted, marked by a payload as lack of space or quota.
absl::Status NoSpaceError(std::string_view message);

// Returns whether a status is NoSpaceError(), of one rank or of several (AgreeOnStatus()).
bool IsNoSpace(const absl::Status& status);

// Marks an error as NoSpaceError() is.
void MarkNoSpace(absl::Status& status);

// Returns a status with the same code and payloads and another message.
absl::Status WithMessage(const absl::Status& status, std::string_view message);

}  // namespace tessera

#endif  // TESSERA_BASE_NO_SPACE_H_
