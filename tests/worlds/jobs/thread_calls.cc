// The functions of pthreads, the sleeps, the clocks and the sources of random numbers, as the
// scheduler makes them. They take the place of the C library's for the whole program.
//
// A mutex is free or has an owner, a lock for readers and a writer counts its readers. Both do so
// in the first words of their memory, which are zero where they are free, as their initializers
// leave them.

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <random>

#include "absl/base/config.h"
#include "absl/time/time.h"
#include "tests/worlds/jobs/scheduler.h"

namespace tessera::simulation {
namespace {

struct MutexState {
  int owner;  // 1 + the thread's number; 0: free
  int depth;
};
struct SharedState {
  int readers;
  int writer;
};

MutexState& StateOf(pthread_mutex_t* mutex) { return *reinterpret_cast<MutexState*>(mutex); }
SharedState& StateOf(pthread_rwlock_t* lock) { return *reinterpret_cast<SharedState*>(lock); }

int Self() { return Scheduler::Get().current().id + 1; }
bool IsRecursive(const pthread_mutex_t* mutex) {
  return mutex->__data.__kind == PTHREAD_MUTEX_RECURSIVE;
}

// A look at the storage meets no lock that a process which stands still holds; nor does a process
// meet those of the dead.
bool MayIgnore(int owner) {
  return Scheduler::Get().frozen() || !Scheduler::Get().IsAliveThread(owner - 1);
}

bool TryLock(pthread_mutex_t* mutex) {
  MutexState& state = StateOf(mutex);
  const bool again = state.owner == Self() && IsRecursive(mutex);
  if (state.owner != 0 && !again && !MayIgnore(state.owner)) return false;
  state.depth = again ? state.depth + 1 : 1;
  state.owner = Self();
  return true;
}

void Lock(pthread_mutex_t* mutex) {
  while (!TryLock(mutex)) Scheduler::Get().Wait(mutex);
}

void Unlock(pthread_mutex_t* mutex) {
  MutexState& state = StateOf(mutex);
  if (--state.depth > 0) return;
  state = {};
  Scheduler::Get().Wake(mutex);
}

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

timespec ToTimespec(int64_t ns) {
  timespec time;
  time.tv_sec = ns / kSecond;
  time.tv_nsec = ns % kSecond;
  return time;
}

int64_t Clock(clockid_t clock) {
  const Scheduler& scheduler = Scheduler::Get();
  return clock == CLOCK_REALTIME ? scheduler.WallClock() : kSecond + scheduler.now_ns();
}

int WaitFor(pthread_cond_t* changed, pthread_mutex_t* mutex, int64_t until_ns) {
  Unlock(mutex);
  const bool in_time = Scheduler::Get().Wait(changed, until_ns);
  Lock(mutex);
  return in_time ? 0 : ETIMEDOUT;
}

int WaitUntil(pthread_cond_t* changed, pthread_mutex_t* mutex, clockid_t clock,
              const timespec* deadline) {
  const int64_t left = Nanoseconds(*deadline) - Clock(clock);
  const int64_t now = Scheduler::Get().now_ns();
  return WaitFor(changed, mutex, left > kNever / 2 ? kNever : now + std::max<int64_t>(left, 0));
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void* RunThread(void* thread) { Scheduler::Get().Run(static_cast<Thread*>(thread)); }

}  // namespace
}  // namespace tessera::simulation

using namespace tessera::
    simulation;  // NOLINT(google-build-using-namespace): names of the C library

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  Scheduler::Get().Yield();
  Lock(mutex);
  return 0;
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  Scheduler::Get().Yield();
  return TryLock(mutex) ? 0 : EBUSY;
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  Unlock(mutex);
  return 0;
}

int pthread_cond_wait(pthread_cond_t* changed, pthread_mutex_t* mutex) {
  return WaitFor(changed, mutex, kNever);
}
int pthread_cond_timedwait(pthread_cond_t* changed, pthread_mutex_t* mutex,
                           const timespec* deadline) {
  return WaitUntil(changed, mutex, CLOCK_REALTIME, deadline);
}
int pthread_cond_clockwait(pthread_cond_t* changed, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  return WaitUntil(changed, mutex, clock, deadline);
}
int pthread_cond_signal(pthread_cond_t* changed) noexcept {
  Scheduler::Get().Wake(changed, /*all=*/false);
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* changed) noexcept {
  Scheduler::Get().Wake(changed);
  return 0;
}
int pthread_cond_destroy(pthread_cond_t*) noexcept { return 0; }

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  SharedState& state = StateOf(lock);
  while (state.writer != 0 && !MayIgnore(state.writer)) Scheduler::Get().Wait(lock);
  ++state.readers;
  return 0;
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  Scheduler::Get().Yield();
  SharedState& state = StateOf(lock);
  while (state.writer != 0 ? !MayIgnore(state.writer)
                           : state.readers > 0 && !Scheduler::Get().frozen()) {
    Scheduler::Get().Wait(lock);
  }
  state.writer = Self();
  return 0;
}
int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  SharedState& state = StateOf(lock);
  if (state.writer == Self()) {
    state.writer = 0;
  } else if (state.readers > 0) {
    --state.readers;
  }
  Scheduler::Get().Wake(lock);
  return 0;
}

int pthread_once(pthread_once_t* once, void (*initialize)()) {
  constexpr int kRunning = 1, kDone = 2;  // the C library's numbers
  while (*once != 0 && *once != kDone) Scheduler::Get().Wait(once);
  if (*once == kDone) return 0;
  *once = kRunning;
  initialize();
  *once = kDone;
  Scheduler::Get().Wake(once);
  return 0;
}

int pthread_create(pthread_t* handle, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  static const auto real = Real<decltype(&pthread_create)>("pthread_create");
  Thread* const thread = Scheduler::Get().NewThread([start, argument] { start(argument); });
  const int error = real(handle, attributes, RunThread, thread);
  if (error == 0) thread->handle = *handle;
  return error;
}
int pthread_join(pthread_t handle, void**) {
  Thread* const thread = Scheduler::Get().Find(handle);
  while (!thread->done) Scheduler::Get().Wait(thread);
  return 0;
}
int pthread_detach(pthread_t) noexcept { return 0; }

int sched_yield() noexcept {
  Scheduler::Get().Sleep(0);
  return 0;
}
int nanosleep(const timespec* duration, timespec*) {
  Scheduler::Get().Sleep(Nanoseconds(*duration));
  return 0;
}
int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec*) {
  const int64_t left = Nanoseconds(*time) - ((flags & TIMER_ABSTIME) != 0 ? Clock(clock) : 0);
  Scheduler::Get().Sleep(left);
  return 0;
}
int usleep(useconds_t microseconds) {
  Scheduler::Get().Sleep(int64_t{1000} * microseconds);
  return 0;
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  *time = ToTimespec(Clock(clock));
  return 0;
}
int gettimeofday(timeval* time, void*) noexcept {
  const timespec now = ToTimespec(Clock(CLOCK_REALTIME));
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}
time_t time(time_t* out) noexcept {
  const time_t now = Clock(CLOCK_REALTIME) / kSecond;
  if (out != nullptr) *out = now;
  return now;
}

}  // extern "C"

std::random_device::result_type std::random_device::_M_getval() {
  return static_cast<result_type>(Scheduler::Get().Draw());
}

// Abseil's clock, which counts cycles of the processor between two looks at the real one.
namespace absl {
ABSL_NAMESPACE_BEGIN
int64_t GetCurrentTimeNanos() { return Clock(CLOCK_REALTIME); }
Time Now() { return FromUnixNanos(GetCurrentTimeNanos()); }
ABSL_NAMESPACE_END
}  // namespace absl

extern "C" void ABSL_INTERNAL_C_SYMBOL(AbslInternalSleepFor)(absl::Duration duration) {
  Scheduler::Get().Sleep(absl::ToInt64Nanoseconds(duration));
}
