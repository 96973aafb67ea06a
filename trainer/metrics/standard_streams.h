#ifndef TESSERA_TRAINER_METRICS_STANDARD_STREAMS_H_
#define TESSERA_TRAINER_METRICS_STANDARD_STREAMS_H_

namespace tessera {

// Opens /dev/null for each of stdin, stdout and stderr that the parent process left closed.
// Otherwise a file opened later would get the free descriptor and receive what is printed: metrics,
// token files or a checkpoint would be corrupted.
//
// Must be the first call of a main that writes files. Returns false where /dev/null cannot be
// opened.
bool OpenMissingStandardStreams();

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_STANDARD_STREAMS_H_
