#ifndef TESSERA_TESTS_WORLDS_JOBS_SCHEDULER_H_
#define TESSERA_TESTS_WORLDS_JOBS_SCHEDULER_H_

// Threads whose order is drawn from a seed, and a clock that jumps.
//
// In a program that links thread_calls.cc, this scheduler implements the functions of pthreads, the
// sleeps and the clocks. Only one thread runs at a time; a blocked one hands over to another; if
// none can run, time jumps to the next deadline. The code under test is unchanged and unaware of
// the scheduler. Threads belong to processes, which can be paused and killed; process 0 is the
// simulation itself.
//
// The state is not locked, since only the running thread uses it.

#include <pthread.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::simulation {

inline constexpr int kWorld = 0;
inline constexpr int64_t kNever = INT64_MAX;

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000 * kMillisecond;
inline constexpr int64_t kMinute = 60 * kSecond;

// Returns a number that looks random and depends on the arguments alone.
uint64_t Hash(uint64_t a, uint64_t b, uint64_t c = 0);

struct Thread {
  int id = 0;
  int process = kWorld;
  bool done = false;
  const void* waits_for = nullptr;  // null: it can run
  int64_t wakes_at = kNever;
  bool timed_out = false;
  int uninterrupted = 0;  // > 0: no other thread runs meanwhile, and there are no faults
  uint32_t baton = 0;     // 1: may run
  pthread_t handle = {};
  std::function<void()> body;
};

class Scheduler {
 public:
  static Scheduler& Get();

  // Begins the simulation. Called once, by the only thread. `stop` is called if all threads wait
  // for ever, and must not return.
  void Begin(uint64_t seed, std::function<void(const std::string&)> stop);

  // Processes.
  int NewProcess(std::string name);
  const std::string& NameOf(int process) const { return processes_[process].name; }
  void Start(int process, std::function<void()> body);
  void Kill(int process);
  void Pause(int process, int64_t duration_ns);
  void MoveClock(int process, int64_t ns) { processes_[process].clock_offset_ns += ns; }
  // Returns whether a process was killed, or all of its threads have ended.
  bool IsOver(int process) const;
  bool IsAlive(int process) const { return !processes_[process].killed; }
  bool IsAliveThread(int thread) const { return IsAlive(threads_[thread]->process); }

  // Returns the time since the beginning. Processes see WallClock() instead, each with an offset of
  // its own.
  int64_t now_ns() const { return now_ns_; }
  int64_t WallClock() const;

  // Returns the calling thread.
  Thread& current();
  // Lets another thread run first.
  void Yield();
  void Sleep(int64_t duration_ns);
  // Blocks until Wake(object); returns false once now_ns() is `until_ns`.
  bool Wait(const void* object, int64_t until_ns = kNever);
  void Wake(const void* object, bool all = true);
  Thread* NewThread(std::function<void()> body);
  [[noreturn]] void Run(Thread* thread);  // the new thread's first call
  Thread* Find(pthread_t handle);

  uint64_t Draw();
  // Lets only threads of the world run until each Freeze() was followed by a Thaw().
  void Freeze() { ++frozen_; }
  void Thaw() { --frozen_; }
  bool frozen() const { return frozen_ > 0; }

 private:
  struct Process {
    std::string name;
    bool killed = false;
    int64_t paused_until_ns = 0;
    int64_t clock_offset_ns = 0;
  };
  bool CanRun(const Thread& thread) const;
  void WakeDue();
  Thread* Choose();
  void HandOver(Thread* next, Thread* from, bool ends);
  std::string DescribeThreads() const;

  uint64_t random_ = 1;
  int64_t now_ns_ = 0;
  int frozen_ = 0;
  int next_thread_process_ = -1;
  std::function<void(const std::string&)> stop_;
  std::vector<Process> processes_ = {{.name = "world"}};
  std::vector<std::unique_ptr<Thread>> threads_;  // never deleted
  std::vector<Thread*> live_;                     // those that have not ended
};

// A scope in which the calling thread is not interrupted and meets no fault, for the simulation's
// own work on a thread of the code under test. The thread must not wait for another one.
class Uninterrupted {
 public:
  Uninterrupted() { ++Scheduler::Get().current().uninterrupted; }
  ~Uninterrupted() { --Scheduler::Get().current().uninterrupted; }
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;
};

// A scope in which the calling thread belongs to the world and all processes stand still, to
// examine the storage with the code under test, which starts threads.
class Frozen {
 public:
  Frozen();
  ~Frozen();
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

 private:
  const int process_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_WORLDS_JOBS_SCHEDULER_H_
