#ifndef TESSERA_BASE_TRACE_H_
#define TESSERA_BASE_TRACE_H_

// Where the time of a rank goes: seconds by use, which are always counted, and timelines of a few
// steps, which are recorded on request and shown by Perfetto or chrome://tracing.
//
//   TraceThread thread(recorder, "training");          // this thread's spans go to the recorder
//   { TraceSpan span("operation", "forward"); ... }    // wherever the code of the thread is
//
// A rank has one recorder. Ranks may be threads of one process, so nothing here is common to a
// process. A thread that works for another one binds the recorder that BoundTrace() returned there.
//
// Threads: a recorder is thread-safe; the other classes are for the thread that constructs them.
// Ownership: a thread that is bound to a recorder, and an operation that is being recorded, hold a
// reference to it.
// Cost: TimeSpent reads the clock twice. A span on a thread without a recorder tests a pointer of
// the thread; if the recorder is not active, it also tests a flag; neither allocates. A span that
// is recorded takes about a microsecond, and about 150 bytes until the timeline is written.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace tessera {

// Activities that keep a thread from computing.
enum class TimeUse : uint8_t { kCommunication, kWaiting, kSaving };
inline constexpr int kTimeUseCount = 3;

// Adds its lifetime to the thread's time of one use. Within another TimeSpent it adds nothing:
// communication during a save is time of the save.
class TimeSpent {
 public:
  explicit TimeSpent(TimeUse use);
  ~TimeSpent();
  TimeSpent(const TimeSpent&) = delete;
  TimeSpent& operator=(const TimeSpent&) = delete;

 private:
  const TimeUse use_;
  int64_t start_ns_ = -1;  // negative within another one
};

// Returns the calling thread's seconds by use since its last call.
std::array<double, kTimeUseCount> TakeTimeSpent();

// Returns the time on the clock of timelines, in nanoseconds: a steady clock with its own start on
// each machine.
int64_t TraceNow();

// A span of one thread, or an operation that belongs to no thread.
struct TraceEvent {
  const char* category = "";
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = -1;    // negative: not over
  std::string arguments;  // members of a JSON object
};
void AddTraceArgument(std::string& arguments, const char* key, int64_t value);
void AddTraceArgument(std::string& arguments, const char* key, std::string_view value);

// The timeline of one rank: idle, then active between Start() and Stop(), once.
class TraceRecorder {
 public:
  // Limit of the events kept; further ones are only counted.
  static constexpr int64_t kMaxEvents = int64_t{1} << 19;

  void Start() { active_.store(true); }
  // Ends the recording. Open spans end here, marked as unfinished.
  void Stop();
  bool active() const { return active_.load(std::memory_order_relaxed); }

  // Adds an operation to the rows of this name: as many rows as it takes for operations that
  // overlap in time.
  void AddOperation(const std::string& row, TraceEvent event);

  // Returns rows and events in Chrome's format, objects separated by commas, with times shifted by
  // `shift_ns` from TraceNow(). Call after Stop().
  std::string Json(int process, int64_t shift_ns) const;
  int64_t dropped() const;

 private:
  friend class TraceThread;
  friend class TraceSpan;
  struct Row {
    std::string name;
    bool is_bound = false;
    std::vector<TraceEvent> events;
  };

  Row* Bind(std::string_view name);
  void Unbind(Row* row);
  // Returns the event's index, negative where it is not kept.
  int64_t Begin(Row* row, TraceEvent event);
  void End(Row* row, int64_t index, std::string arguments);
  bool MayAdd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<bool> active_ = false;
  mutable Mutex mutex_;
  std::deque<Row> rows_ ABSL_GUARDED_BY(mutex_);        // of threads
  std::deque<Row> operations_ ABSL_GUARDED_BY(mutex_);  // by their row's name
  int64_t events_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t stopped_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Binds the calling thread to a row of a recorder until its destruction: the thread's spans go
// there. A null recorder changes nothing. A row of that name that no other thread has bound is
// continued.
class TraceThread {
 public:
  TraceThread(std::shared_ptr<TraceRecorder> recorder, std::string_view row);
  ~TraceThread();
  TraceThread(const TraceThread&) = delete;
  TraceThread& operator=(const TraceThread&) = delete;

 private:
  friend class TraceSpan;
  friend std::shared_ptr<TraceRecorder> BoundTrace();
  friend std::shared_ptr<TraceRecorder> ActiveTrace();
  static constinit thread_local TraceThread* bound_;

  const std::shared_ptr<TraceRecorder> recorder_;
  TraceRecorder::Row* row_ = nullptr;
  TraceThread* outer_ = nullptr;
};

// Returns the recorder of the calling thread; null if it has none.
inline std::shared_ptr<TraceRecorder> BoundTrace() {
  return TraceThread::bound_ == nullptr ? nullptr : TraceThread::bound_->recorder_;
}
// Returns the recorder of the calling thread if it is active, otherwise null.
inline std::shared_ptr<TraceRecorder> ActiveTrace() {
  return TraceThread::bound_ == nullptr || !TraceThread::bound_->recorder_->active()
             ? nullptr
             : TraceThread::bound_->recorder_;
}

// Records an activity of the calling thread, from construction to destruction. Spans of a thread
// nest.
class TraceSpan {
 public:
  TraceSpan(const char* category, std::string_view name) {
    if (TraceThread::bound_ != nullptr) Begin(category, name);
  }
  ~TraceSpan() {
    if (thread_ != nullptr) End();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  // Returns whether the span is recorded. Tested before computing arguments that cost something.
  bool active() const { return thread_ != nullptr; }
  template <typename Value>
  TraceSpan& Add(const char* key, const Value& value) {
    if (active()) AddTraceArgument(arguments_, key, value);
    return *this;
  }

 private:
  void Begin(const char* category, std::string_view name);
  void End();

  const TraceThread* thread_ = nullptr;
  int64_t index_ = -1;
  std::string arguments_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TRACE_H_
