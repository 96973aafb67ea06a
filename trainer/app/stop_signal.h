#ifndef TESSERA_TRAINER_APP_STOP_SIGNAL_H_
#define TESSERA_TRAINER_APP_STOP_SIGNAL_H_

namespace tessera {

// After this call, SIGINT and SIGTERM request a clean end; a second one of either ends the process
// immediately. SIGUSR1 requests the same as SIGINT, and SIGUSR2 as SIGTERM, however often they
// arrive: mpirun forwards these two to its ranks, whereas it answers SIGINT and SIGTERM by ending
// the job a second later. Call once, from main, after StartSignalThread().
void CatchStopSignals();

// The signal that requested the end, SIGINT or SIGTERM; 0 if there was none.
int StopSignal();

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_STOP_SIGNAL_H_
