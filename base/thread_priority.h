#ifndef TESSERA_BASE_THREAD_PRIORITY_H_
#define TESSERA_BASE_THREAD_PRIORITY_H_

namespace tessera {

// Lowers the calling thread's processor priority by `nice` steps and, if requested, its disk
// priority to the lowest. Threads that it starts inherit both. Best effort: what the system refuses
// stays unchanged.
void LowerThreadPriority(int nice, bool idle_io_priority);

// Processor time that the calling thread has used.
double ThreadProcessorSeconds();

}  // namespace tessera

#endif  // TESSERA_BASE_THREAD_PRIORITY_H_
