#ifndef TESSERA_TRAINER_APP_SIGNAL_THREAD_H_
#define TESSERA_TRAINER_APP_SIGNAL_THREAD_H_

#include <csignal>

#include "absl/status/status.h"

namespace tessera {

// Keeps signal handlers off every thread that computes: oneDNN's generated matrix products use the
// stack pointer for a buffer on the heap, and a handler that runs meanwhile writes its frame into
// the memory below (trainer/kernels/cpu/gemm.h).
//
// Blocks AsynchronousSignals() in the calling thread, and thereby in every thread that is created
// later, and starts the one thread that receives them, which has the mask that the process was
// started with. Handlers run there; default actions (end, stop, continue) are those of the whole
// process, as ever. Children made by fork() start with the original mask.
//
// Call first in main(), while the process has one thread. Unavailable: the thread cannot be
// created; nothing is blocked then.
absl::Status StartSignalThread();

// All signals but those that a thread raises by what it does itself, and that have their effect
// only there and then: faults and abort(); writing to a closed pipe, beyond the limit of a file's
// size, or to a terminal from the background. They never interrupt a matrix product.
sigset_t AsynchronousSignals();

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_SIGNAL_THREAD_H_
