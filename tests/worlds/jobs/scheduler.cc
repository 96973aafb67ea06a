#include "tests/worlds/jobs/scheduler.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::simulation {
namespace {

thread_local Thread* this_thread = nullptr;

// The first moment, and that of every calendar: 2030-01-01.
constexpr int64_t kEpoch = int64_t{1'893'456'000} * kSecond;
// What a call costs, so that a loop that polls reaches its deadline.
constexpr int64_t kCallCost = 20'000;
// One in so many calls hands over to another thread.
constexpr uint64_t kSwitchPeriod = 4;

void AwaitBaton(Thread& thread) {
  while (__atomic_load_n(&thread.baton, __ATOMIC_ACQUIRE) == 0) {
    syscall(SYS_futex, &thread.baton, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
  }
  __atomic_store_n(&thread.baton, 0, __ATOMIC_RELAXED);
}

void PassBaton(Thread& thread) {
  __atomic_store_n(&thread.baton, 1, __ATOMIC_RELEASE);
  syscall(SYS_futex, &thread.baton, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace

uint64_t Hash(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9E3779B97F4A7C15 + b * 0xC2B2AE3D27D4EB4F + c * 0x165667B19E3779F9 + 1;
  for (int i = 0; i < 2; ++i) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
  }
  return x;
}

Scheduler& Scheduler::Get() {
  static auto* const scheduler = new Scheduler;
  return *scheduler;
}

void Scheduler::Begin(uint64_t seed, std::function<void(const std::string&)> stop) {
  random_ = Hash(seed, 1) | 1;
  stop_ = std::move(stop);
}

uint64_t Scheduler::Draw() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_ * 0x2545F4914F6CDD1D >> 11;
}

int Scheduler::NewProcess(std::string name) {
  processes_.push_back({.name = std::move(name)});
  return static_cast<int>(processes_.size()) - 1;
}

void Scheduler::Kill(int process) {
  processes_[process].killed = true;
  // Those that wait for a lock look again whether its owner lives.
  for (Thread* thread : live_) {
    if (thread->waits_for != thread) thread->waits_for = nullptr;
  }
}

void Scheduler::Pause(int process, int64_t duration_ns) {
  int64_t& until = processes_[process].paused_until_ns;
  until = std::max(until, now_ns_ + duration_ns);
}

bool Scheduler::IsOver(int process) const {
  return processes_[process].killed ||
         std::ranges::none_of(live_, [&](const Thread* t) { return t->process == process; });
}

int64_t Scheduler::WallClock() const {
  const Thread* thread = this_thread;
  const bool is_world = thread == nullptr || thread->uninterrupted > 0;
  return kEpoch + now_ns_ + (is_world ? 0 : processes_[thread->process].clock_offset_ns);
}

Thread& Scheduler::current() {
  if (this_thread == nullptr) {
    threads_.push_back(std::make_unique<Thread>());
    this_thread = threads_.back().get();
    live_.push_back(this_thread);
  }
  return *this_thread;
}

bool Scheduler::CanRun(const Thread& thread) const {
  const Process& process = processes_[thread.process];
  if (thread.waits_for != nullptr || process.killed) return false;
  if (frozen() && thread.process != kWorld) return false;
  return process.paused_until_ns <= now_ns_;
}

void Scheduler::WakeDue() {
  for (Thread* thread : live_) {
    if (thread->waits_for == nullptr || thread->wakes_at > now_ns_) continue;
    thread->waits_for = nullptr;
    thread->timed_out = true;
  }
}

Thread* Scheduler::Choose() {
  while (true) {
    WakeDue();
    int count = 0;
    for (const Thread* thread : live_) count += CanRun(*thread);
    if (count > 0) {
      int chosen = static_cast<int>(Draw() % count);
      for (Thread* thread : live_) {
        if (CanRun(*thread) && chosen-- == 0) return thread;
      }
    }
    int64_t next = kNever;
    for (const Thread* thread : live_) {
      const Process& process = processes_[thread->process];
      if (process.killed || (frozen() && thread->process != kWorld)) continue;
      const int64_t ready = thread->waits_for == nullptr ? now_ns_ : thread->wakes_at;
      if (ready != kNever) next = std::min(next, std::max(ready, process.paused_until_ns));
    }
    if (next == kNever) stop_(absl::StrCat("every thread waits for ever: ", DescribeThreads()));
    now_ns_ = std::max(now_ns_, next);
  }
}

std::string Scheduler::DescribeThreads() const {
  std::string text;
  for (const Thread* thread : live_) {
    if (processes_[thread->process].killed) continue;
    absl::StrAppend(&text, processes_[thread->process].name, "/", thread->id,
                    thread->waits_for == nullptr ? " could run; " : " waits; ");
  }
  return text;
}

void Scheduler::HandOver(Thread* next, Thread* from, bool ends) {
  if (next == from) return;
  PassBaton(*next);
  if (!ends) AwaitBaton(*from);
}

void Scheduler::Yield() {
  Thread& self = current();
  if (self.uninterrupted > 0) return;
  now_ns_ += kCallCost;
  if (!CanRun(self)) return HandOver(Choose(), &self, false);
  if (live_.size() == 1 || Draw() % kSwitchPeriod != 0) return;
  HandOver(Choose(), &self, false);
}

void Scheduler::Sleep(int64_t duration_ns) {
  Thread& self = current();
  if (self.uninterrupted > 0) return;
  Wait(&self, now_ns_ + std::max<int64_t>(duration_ns, kCallCost));
}

bool Scheduler::Wait(const void* object, int64_t until_ns) {
  Thread& self = current();
  self.waits_for = object;
  self.wakes_at = until_ns;
  self.timed_out = false;
  HandOver(Choose(), &self, false);
  self.wakes_at = kNever;
  return !std::exchange(self.timed_out, false);
}

void Scheduler::Wake(const void* object, bool all) {
  std::vector<Thread*> waiting;
  for (Thread* thread : live_) {
    const bool lives = !processes_[thread->process].killed;
    if (lives && thread->waits_for == object) waiting.push_back(thread);
  }
  if (waiting.empty()) return;
  if (!all) waiting = {waiting[Draw() % waiting.size()]};
  for (Thread* thread : waiting) thread->waits_for = nullptr;
}

Thread* Scheduler::NewThread(std::function<void()> body) {
  const Thread& parent = current();
  auto thread = std::make_unique<Thread>();
  thread->id = static_cast<int>(threads_.size());
  thread->process = next_thread_process_ >= 0 ? next_thread_process_ : parent.process;
  thread->body = std::move(body);
  threads_.push_back(std::move(thread));
  live_.push_back(threads_.back().get());
  return threads_.back().get();
}

Thread* Scheduler::Find(pthread_t handle) {
  for (const auto& thread : threads_) {
    if (thread->handle == handle) return thread.get();
  }
  return nullptr;
}

void Scheduler::Run(Thread* thread) {
  this_thread = thread;
  AwaitBaton(*thread);
  thread->body();
  thread->done = true;
  std::erase(live_, thread);
  Wake(thread);
  HandOver(Choose(), thread, true);
  // Never returns: what a thread does at its very end, it would do beside another one.
  while (true) pause();
}

void Scheduler::Start(int process, std::function<void()> body) {
  next_thread_process_ = process;
  pthread_t handle;
  auto* const start = new std::function<void()>(std::move(body));
  const auto run = [](void* argument) -> void* {
    const std::unique_ptr<std::function<void()>> function(
        static_cast<std::function<void()>*>(argument));
    (*function)();
    return nullptr;
  };
  pthread_create(&handle, nullptr, run, start);
  pthread_detach(handle);
  next_thread_process_ = -1;
}

Frozen::Frozen() : process_(Scheduler::Get().current().process) {
  Scheduler::Get().current().process = kWorld;
  Scheduler::Get().Freeze();
}

Frozen::~Frozen() {
  Scheduler::Get().Thaw();
  Scheduler::Get().current().process = process_;
}

}  // namespace tessera::simulation
