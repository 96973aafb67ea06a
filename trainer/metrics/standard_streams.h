#ifndef TESSERA_TRAINER_METRICS_STANDARD_STREAMS_H_
#define TESSERA_TRAINER_METRICS_STANDARD_STREAMS_H_

namespace tessera {

// Opens /dev/null for each of stdin, stdout and stderr that the parent process left closed. A file
// opened later would take the free descriptor, and what is printed would end up in it: in metrics,
// token files or a checkpoint.
//
// First call of a main that writes files. False where /dev/null cannot be opened.
bool OpenMissingStandardStreams();

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_STANDARD_STREAMS_H_
