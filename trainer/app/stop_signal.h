#ifndef TESSERA_TRAINER_APP_STOP_SIGNAL_H_
#define TESSERA_TRAINER_APP_STOP_SIGNAL_H_

namespace tessera {

// From here on SIGINT and SIGTERM ask for a clean end; a second one ends the process at once. Call
// once, from main.
void CatchStopSignals();

// The signal that asked for the end; 0 when none did.
int StopSignal();

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_STOP_SIGNAL_H_
