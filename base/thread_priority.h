#ifndef TESSERA_BASE_THREAD_PRIORITY_H_
#define TESSERA_BASE_THREAD_PRIORITY_H_

namespace tessera {

// Lowers the calling thread's claim to processors by `nice` steps and, where asked, its claim to
// the disk below everybody else's. Threads that it starts inherit both. Best effort: what the
// system refuses stays as it was.
void LowerThreadPriority(int nice, bool idle_io_priority);

// Processor time that the calling thread has used.
double ThreadProcessorSeconds();

}  // namespace tessera

#endif  // TESSERA_BASE_THREAD_PRIORITY_H_
