#include "base/trace.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

struct ThreadTime {
  bool is_spent = false;  // within a TimeSpent
  std::array<int64_t, kTimeUseCount> ns = {};
};
constinit thread_local ThreadTime thread_time;

// Rows of operations come after those of threads.
constexpr int kFirstOperationRow = 1000;

std::string Quoted(std::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void AppendObject(std::string& json, const std::string& object) {
  absl::StrAppend(&json, json.empty() ? "" : ",\n", object);
}

void AppendRowName(std::string& json, int process, int row, std::string_view name) {
  AppendObject(json, absl::StrFormat(R"({"ph":"M","name":"thread_name","pid":%d,"tid":%d,)"
                                     R"("args":{"name":%s}})",
                                     process, row, Quoted(name)));
  AppendObject(json, absl::StrFormat(R"({"ph":"M","name":"thread_sort_index","pid":%d,"tid":%d,)"
                                     R"("args":{"sort_index":%d}})",
                                     process, row, row));
}

}  // namespace

int64_t TraceNow() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TimeSpent::TimeSpent(TimeUse use) : use_(use) {
  if (std::exchange(thread_time.is_spent, true)) return;
  start_ns_ = TraceNow();
}

TimeSpent::~TimeSpent() {
  if (start_ns_ < 0) return;
  thread_time.is_spent = false;
  thread_time.ns[static_cast<int>(use_)] += TraceNow() - start_ns_;
}

std::array<double, kTimeUseCount> TakeTimeSpent() {
  std::array<double, kTimeUseCount> seconds;
  for (int use = 0; use < kTimeUseCount; ++use) {
    seconds[use] = static_cast<double>(std::exchange(thread_time.ns[use], 0)) * 1e-9;
  }
  return seconds;
}

void AddTraceArgument(std::string& arguments, const char* key, int64_t value) {
  absl::StrAppend(&arguments, arguments.empty() ? "" : ",", "\"", key, "\":", value);
}

void AddTraceArgument(std::string& arguments, const char* key, std::string_view value) {
  absl::StrAppend(&arguments, arguments.empty() ? "" : ",", "\"", key, "\":", Quoted(value));
}

void TraceRecorder::Stop() {
  const MutexLock lock(&mutex_);
  active_.store(false);
  stopped_ns_ = TraceNow();
}

bool TraceRecorder::MayAdd() {
  if (!active()) return false;
  if (events_ == kMaxEvents) {
    ++dropped_;
    return false;
  }
  ++events_;
  return true;
}

void TraceRecorder::AddOperation(const std::string& row, TraceEvent event) {
  const MutexLock lock(&mutex_);
  if (!MayAdd()) return;
  auto at = std::find_if(operations_.begin(), operations_.end(),
                         [&](const Row& each) { return each.name == row; });
  if (at == operations_.end()) {
    operations_.push_back({.name = row});
    at = operations_.end() - 1;
  }
  at->events.push_back(std::move(event));
}

TraceRecorder::Row* TraceRecorder::Bind(std::string_view name) {
  const MutexLock lock(&mutex_);
  auto at = std::find_if(rows_.begin(), rows_.end(),
                         [&](const Row& row) { return !row.is_bound && row.name == name; });
  if (at == rows_.end()) {
    rows_.push_back({.name = std::string(name)});
    at = rows_.end() - 1;
  }
  at->is_bound = true;
  return &*at;
}

void TraceRecorder::Unbind(Row* row) {
  const MutexLock lock(&mutex_);
  row->is_bound = false;
}

int64_t TraceRecorder::Begin(Row* row, TraceEvent event) {
  const MutexLock lock(&mutex_);
  if (!MayAdd()) return -1;
  event.begin_ns = TraceNow();
  row->events.push_back(std::move(event));
  return static_cast<int64_t>(row->events.size()) - 1;
}

void TraceRecorder::End(Row* row, int64_t index, std::string arguments) {
  const MutexLock lock(&mutex_);
  TraceEvent& event = row->events[index];
  event.arguments = std::move(arguments);
  if (active()) event.end_ns = TraceNow();
}

int64_t TraceRecorder::dropped() const {
  const MutexLock lock(&mutex_);
  return dropped_;
}

std::string TraceRecorder::Json(int process, int64_t shift_ns) const {
  const MutexLock lock(&mutex_);
  const int64_t stopped_ns = stopped_ns_;
  std::string json;
  const auto append = [&](int row, const TraceEvent& event) {
    std::string arguments = event.arguments;
    if (event.end_ns < 0) AddTraceArgument(arguments, "unfinished", 1);
    const int64_t end_ns = event.end_ns < 0 ? std::max(event.begin_ns, stopped_ns) : event.end_ns;
    AppendObject(
        json,
        absl::StrFormat(
            R"({"ph":"X","cat":"%s","name":%s,"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{%s}})",
            event.category, Quoted(event.name), process, row,
            static_cast<double>(event.begin_ns + shift_ns) * 1e-3,
            static_cast<double>(end_ns - event.begin_ns) * 1e-3, arguments));
  };
  int next = 1;
  for (const Row& row : rows_) {
    AppendRowName(json, process, next, row.name);
    for (const TraceEvent& event : row.events) append(next, event);
    ++next;
  }
  next = kFirstOperationRow;
  for (const Row& row : operations_) {
    std::vector<const TraceEvent*> ordered;
    for (const TraceEvent& event : row.events) ordered.push_back(&event);
    std::sort(ordered.begin(), ordered.end(),
              [](const TraceEvent* a, const TraceEvent* b) { return a->begin_ns < b->begin_ns; });
    std::vector<int64_t> ends;  // of the last operation, by lane
    for (const TraceEvent* event : ordered) {
      const auto free = std::find_if(ends.begin(), ends.end(),
                                     [&](int64_t end_ns) { return end_ns <= event->begin_ns; });
      const int lane = static_cast<int>(free - ends.begin());
      if (free == ends.end()) {
        AppendRowName(json, process, next + lane, row.name);
        ends.push_back(0);
      }
      ends[lane] = event->end_ns;
      append(next + lane, *event);
    }
    next += static_cast<int>(ends.size());
  }
  return json;
}

constinit thread_local TraceThread* TraceThread::bound_ = nullptr;

TraceThread::TraceThread(std::shared_ptr<TraceRecorder> recorder, std::string_view row)
    : recorder_(std::move(recorder)) {
  if (recorder_ == nullptr) return;
  row_ = recorder_->Bind(row);
  outer_ = std::exchange(bound_, this);
}

TraceThread::~TraceThread() {
  if (recorder_ == nullptr) return;
  bound_ = outer_;
  recorder_->Unbind(row_);
}

void TraceSpan::Begin(const char* category, std::string_view name) {
  const TraceThread* const thread = TraceThread::bound_;
  if (!thread->recorder_->active()) return;
  index_ =
      thread->recorder_->Begin(thread->row_, {.category = category, .name = std::string(name)});
  if (index_ >= 0) thread_ = thread;
}

void TraceSpan::End() { thread_->recorder_->End(thread_->row_, index_, std::move(arguments_)); }

}  // namespace tessera
