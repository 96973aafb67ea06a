#ifndef TESSERA_TRAINER_APP_MEMORY_RESERVE_H_
#define TESSERA_TRAINER_APP_MEMORY_RESERVE_H_

#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Memory that is held back for the moment when there is no more. Not every library survives a
// std::bad_alloc in its midst: the allocation that fails gets the reserve instead, and what the
// thread does ends with an error where it can, at its next CheckMemory().
//
// HoldMemoryBack() is called once, first in main(). It costs 16 MiB of addresses and no memory as
// long as that is not touched. Thread-safe, as is CheckMemory().
void HoldMemoryBack();

// ResourceExhausted, "not enough memory to ACTION: ...", if the reserve is in use and cannot be had
// again. OK without HoldMemoryBack().
absl::Status CheckMemory(std::string_view action);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_MEMORY_RESERVE_H_
