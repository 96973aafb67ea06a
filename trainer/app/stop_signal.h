#ifndef TESSERA_TRAINER_APP_STOP_SIGNAL_H_
#define TESSERA_TRAINER_APP_STOP_SIGNAL_H_

namespace tessera {

// From here on SIGINT and SIGTERM ask for a clean end; a second one of either ends the process at
// once. SIGUSR1 asks for the same as SIGINT, and SIGUSR2 as SIGTERM, however often they come:
// mpirun hands these two on to its ranks, where it answers the real ones by ending the job a second
// later. Call once, from main, after StartSignalThread().
void CatchStopSignals();

// The signal that asked for the end, SIGINT or SIGTERM; 0 when none did.
int StopSignal();

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_STOP_SIGNAL_H_
