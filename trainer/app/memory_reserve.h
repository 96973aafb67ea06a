#ifndef TESSERA_TRAINER_APP_MEMORY_RESERVE_H_
#define TESSERA_TRAINER_APP_MEMORY_RESERVE_H_

#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Holds memory back for the moment when no more is left. Not every library survives a
// std::bad_alloc, so an allocation that fails gets the reserve instead, and the thread's work ends
// with an error at its next CheckMemory().
//
// Call HoldMemoryBack() once, first in main(). The reserve costs 16 MiB of addresses, and no memory
// until it is used. Thread-safe, as is CheckMemory().
void HoldMemoryBack();

// Returns ResourceExhausted, "not enough memory to ACTION: ...", if the reserve is in use and
// cannot be restored. OK without HoldMemoryBack().
absl::Status CheckMemory(std::string_view action);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_MEMORY_RESERVE_H_
