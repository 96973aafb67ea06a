#ifndef TESSERA_TRAINER_APP_SIGNALS_H_
#define TESSERA_TRAINER_APP_SIGNALS_H_

#include <csignal>

#include "absl/status/status.h"

namespace tessera {

// Keeps signal handlers off every compute thread. Matrix products that oneDNN generates use the
// stack pointer for a buffer on the heap. A handler that runs meanwhile writes its frame into the
// memory below (compute/kernels/cpu/gemm_interface.h).
//
// Blocks AsynchronousSignals() in the calling thread, and thereby in every thread created later,
// and starts the one thread that receives them, with the mask that the process was started with.
// Handlers run there; default actions (end, stop, continue) still apply to the whole process.
// Children created by fork() start with the original mask.
//
// Must be called first in main(), while the process has one thread. Unavailable: the thread cannot
// be created; no signal is blocked then.
absl::Status StartSignalThread();

// Returns all signals except those that a thread raises by its own actions and that take effect
// immediately. Their causes are faults, abort(), and writing to a closed pipe, beyond the limit of
// a file's size, or to a terminal from the background. They never interrupt a matrix product.
sigset_t AsynchronousSignals();

// Makes SIGINT and SIGTERM request a clean end; a second one of either ends the process
// immediately. SIGUSR1 stands for SIGINT, and SIGUSR2 for SIGTERM, however often they arrive:
// mpirun forwards these two to its ranks, whereas it answers SIGINT and SIGTERM by ending the job a
// second later. SIGHUP stands for SIGTERM, too, unless the process was started with it ignored
// (nohup). Call once, from main, after StartSignalThread().
void CatchStopSignals();

// Returns the signal that requested the end, SIGINT or SIGTERM; 0 if there was none.
int StopSignal();

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_SIGNALS_H_
