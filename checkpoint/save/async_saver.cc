#include "checkpoint/include/async_saver.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <iterator>
#include <list>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/threads.h"
#include "base/trace.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/save/data_writer.h"
#include "checkpoint/save/piece_table.h"
#include "checkpoint/save/run_save.h"

namespace tessera::ckpt {
namespace {

absl::Status CheckAsyncOptions(const AsyncSaveOptions& options) {
  if (options.copy_threads >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("copy_threads must be at least 1, not ", options.copy_threads));
}

}  // namespace

class AsyncSaver::Background {
 public:
  Background(Storage& storage, const AsyncSaveOptions& options, const SaveHooks& hooks)
      : options_(options),
        hooks_(hooks),
        group_(options.save.group != nullptr ? *options.save.group : alone_),
        staging_(options.available_memory_bytes),
        context_{.storage = storage,
                 .hooks = hooks_,
                 .group = group_,
                 .options = options.save,
                 .copy_threads = options.copy_threads,
                 .plan_cache = plan_cache_,
                 .staging = staging_,
                 .copy_ahead_bytes = options.copy_ahead_bytes} {}

  ~Background() {
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
    if (thread_.joinable()) thread_.join();
  }

  void Prepare(const StateDict& state) { Enqueue({.kind = Kind::kPrepare, .state = state}); }

  void Start(const SaveRequest& request, const StateDict& state, bool rolling) {
    const absl::Duration start = SteadyNow();
    const TraceSpan span("save", "start of a save");
    MutexLock lock(&mutex_);
    const bool skip =
        saves_in_flight_ > 0 && options_.when_busy == AsyncSaveOptions::WhenBusy::kSkip;
    while (!skip && saves_in_flight_ > 0) changed_.Wait(&mutex_);
    lock.Unlock();
    if (skip) {
      Enqueue({.kind = Kind::kRefuse,
               .save = {.step = request.step},
               .error = absl::CancelledError("skipped: the save before is still in flight")});
    } else {
      Enqueue({.kind = Kind::kSave,
               .save = request,
               .rolling = rolling,
               .state = state,
               .start = start});
    }
    AddBlocked(start);
  }

  void Refuse(int64_t step, const absl::Status& error) {
    Enqueue({.kind = Kind::kRefuse, .save = {.step = step}, .error = error});
  }

  void Wait(const std::function<void(DataWriter&)>& wait) {
    if (!reads_state_.load(std::memory_order_acquire)) return;
    const absl::Duration start = SteadyNow();
    const TraceSpan span("save", "wait for the copy of what is overwritten");
    MutexLock lock(&mutex_);
    while (reads_state_ && writer_ == nullptr) changed_.Wait(&mutex_);
    const std::shared_ptr<DataWriter> writer = writer_;
    lock.Unlock();
    if (writer != nullptr) wait(*writer);
    AddBlocked(start);
  }

  std::vector<SaveOutcome> Poll() {
    const MutexLock lock(&mutex_);
    std::vector<SaveOutcome> outcomes(std::make_move_iterator(outcomes_.begin()),
                                      std::make_move_iterator(outcomes_.end()));
    outcomes_.clear();
    return outcomes;
  }

  void WaitUntilIdle() {
    MutexLock lock(&mutex_);
    ++idle_waiters_;
    changed_.NotifyAll();
    while (!queue_.empty() || busy_) changed_.Wait(&mutex_);
    --idle_waiters_;
  }

 private:
  enum class Kind { kPrepare, kSave, kRefuse };
  struct Request {
    Kind kind;
    SaveRequest save = {};
    bool rolling = false;
    StateDict state = {};
    absl::Duration start = {};                       // of kSave
    absl::Status error = absl::OkStatus();           // of kRefuse
    std::shared_ptr<TraceRecorder> trace = nullptr;  // of the caller; may be null
    // One, but none of kPrepare. Allocated with the request, so that the end of a save needs no
    // memory.
    std::list<SaveOutcome> outcome = {};
  };

  // Returns false if the system cannot start a thread now.
  bool TryToStartThread() {
    if (thread_.joinable()) return true;
    absl::StatusOr<std::thread> thread = StartThread([this] { Work(); });
    if (!thread.ok()) {
      // Without memory for the reason, the report has none. The caller does the work.
      CatchExceptions("", [&] {
        no_thread_ = std::string(thread.status().message());
        return absl::OkStatus();
      }).IgnoreError();
      return false;
    }
    thread_ = *std::move(thread);
    return true;
  }

  void Enqueue(Request request) {
    request.trace = BoundTrace();
    const Kind kind = request.kind;
    if (kind != Kind::kPrepare) request.outcome.emplace_back().step = request.save.step;
    {
      const MutexLock lock(&mutex_);
      queue_.push_back(std::move(request));
      if (kind != Kind::kPrepare) ++saves_in_flight_;
      if (kind == Kind::kSave) {
        reads_state_ = true;
        blocked_ns_ = 0;
      }
    }
    changed_.NotifyAll();
    if (!TryToStartThread()) HandleNext();
  }

  void AddBlocked(absl::Duration since) {
    blocked_ns_ += absl::ToInt64Nanoseconds(SteadyNow() - since);
  }

  void Work() {
    background_id_ = std::this_thread::get_id();
    LowerThreadPriority(options_.nice);
    MutexLock lock(&mutex_);
    while (true) {
      while (!stopping_ && queue_.empty()) changed_.Wait(&mutex_);
      if (queue_.empty()) return;
      lock.Unlock();
      HandleNext();
      MakeStagingPresent();
      lock.Lock();
    }
  }

  // Precondition: a request is queued. Called by thread_ or, without it, by the caller's thread.
  void HandleNext() {
    MutexLock lock(&mutex_);
    Request request = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.Unlock();
    // The other ranks wait if an exception ends this one between two agreements.
    absl::StatusOr<SaveReport> report =
        CatchExceptionsIn(group_, "save", [&] { return Handle(request); });
    lock.Lock();
    busy_ = false;
    if (request.kind == Kind::kSave) {
      reads_state_ = false;
      writer_ = nullptr;
    }
    if (request.kind != Kind::kPrepare) {
      request.outcome.front().report = std::move(report);
      --saves_in_flight_;
      outcomes_.splice(outcomes_.end(), request.outcome);
    }
    changed_.NotifyAll();
  }

  // Returns the outcome of a save; the result of other requests is ignored.
  absl::StatusOr<SaveReport> Handle(const Request& request) {
    const int64_t step = request.save.step;
    const TraceThread traced(request.trace, "saver");
    TESSERA_RETURN_IF_ERROR(group_.abandoned());
    switch (request.kind) {
      case Kind::kPrepare:
        PlanAhead(context_, request.state).IgnoreError();
        return SaveReport();
      case Kind::kRefuse:
        return RefuseSave(context_, step, request.error);
      case Kind::kSave:
        break;
    }
    const absl::Status valid = CheckAsyncOptions(options_);
    if (!valid.ok()) return RefuseSave(context_, step, valid);
    hooks_.rolling = request.rolling;
    absl::StatusOr<SaveReport> report =
        RunSave(context_, request.save, request.state, [&](std::shared_ptr<DataWriter> writer) {
          const MutexLock lock(&mutex_);
          writer_ = std::move(writer);
          changed_.NotifyAll();
        });
    if (report.ok()) {
      AddTimes(request, *report);
      if (std::this_thread::get_id() != background_id_) {
        report->blocked = report->duration;
        absl::StrAppend(&report->note, report->note.empty() ? "" : "; ",
                        "saved in the foreground: ", no_thread_);
      }
      if (hooks_.on_committed) hooks_.on_committed(*report);
    }
    return report;
  }

  // Prefaulting only makes the next save faster, so neither a caller nor the program's own threads
  // should wait for it.
  void MakeStagingPresent() {
    bool left = true;
    while (left) {
      const absl::Duration start = SteadyNow();
      const double processor_start = ThreadProcessorSeconds();
      left = staging_.Prefault();
      const double used = ThreadProcessorSeconds() - processor_start;
      const bool shared = IsProcessorShared(SecondsSince(start), used);
      if (IsNeededWithin(absl::Seconds(shared ? kPrefaultRestRatio * used : 0))) return;
    }
  }

  // Waits for something else to do; returns whether there is.
  bool IsNeededWithin(absl::Duration limit) {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
    const MutexLock lock(&mutex_);
    bool in_time = true;
    while (in_time && !stopping_ && idle_waiters_ == 0 && queue_.empty()) {
      in_time = changed_.WaitUntil(&mutex_, deadline);
    }
    return stopping_ || idle_waiters_ > 0 || !queue_.empty();
  }

  // Adds the time before RunSave() was called, which its report lacks.
  void AddTimes(const Request& request, SaveReport& report) const {
    const absl::Duration duration = SteadyNow() - request.start;
    report.copied_after += duration - report.duration;
    report.duration = duration;
    report.blocked = absl::Nanoseconds(blocked_ns_.load());
  }

  const AsyncSaveOptions options_;
  SingleProcessGroup alone_;  // the group if the options name none
  // Used by thread_, or by the caller's thread that does its work.
  SaveHooks hooks_;
  ProcessGroup& group_;
  PlanCache plan_cache_;
  StagingPool staging_;
  SaveContext context_;

  Mutex mutex_;
  CondVar changed_;  // any guarded member, or reads_state_
  std::deque<Request> queue_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int idle_waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  // Skipped ones included, until their outcomes are known.
  int saves_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  // Set once it is known what the save in flight copies.
  std::shared_ptr<DataWriter> writer_ ABSL_GUARDED_BY(mutex_);
  std::list<SaveOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> reads_state_ = false;  // the copy of a save in flight may be incomplete
  std::atomic<int64_t> blocked_ns_ = 0;    // for the save in flight

  std::thread thread_;
  std::atomic<std::thread::id> background_id_;
  std::string no_thread_;  // why there is no thread; used by Start()'s caller
};

AsyncSaver::AsyncSaver(Storage& storage, const AsyncSaveOptions& options)
    : AsyncSaver(std::make_unique<Background>(storage, options, SaveHooks())) {}

AsyncSaver::AsyncSaver(std::unique_ptr<Background> background)
    : background_(std::move(background)) {}

AsyncSaver::~AsyncSaver() = default;

std::unique_ptr<AsyncSaver> MakeAsyncSaver(Storage& storage, const AsyncSaveOptions& options,
                                           const SaveHooks& hooks) {
  auto background = std::make_unique<AsyncSaver::Background>(storage, options, hooks);
  return std::unique_ptr<AsyncSaver>(new AsyncSaver(std::move(background)));
}

void AsyncSaver::Prepare(const StateDict& state) { background_->Prepare(state); }

void AsyncSaver::Start(const SaveRequest& request, const StateDict& state) {
  background_->Start(request, state, /*rolling=*/false);
}

void StartSave(AsyncSaver& saver, const SaveRequest& request, const StateDict& state,
               bool rolling) {
  saver.background_->Start(request, state, rolling);
}

void AsyncSaver::Refuse(int64_t step, const absl::Status& error) {
  background_->Refuse(step, error);
}

void AsyncSaver::WaitUntilCopied(const void* data, uint64_t size_bytes) {
  background_->Wait([&](DataWriter& writer) {
    writer.WaitUntilCopied(static_cast<const std::byte*>(data), size_bytes);
  });
}

void AsyncSaver::WaitUntilAllCopied() {
  background_->Wait([](DataWriter& writer) { writer.WaitUntilAllCopied(); });
}

std::vector<SaveOutcome> AsyncSaver::Poll() { return background_->Poll(); }

std::vector<SaveOutcome> AsyncSaver::Finish() {
  background_->WaitUntilIdle();
  return Poll();
}

}  // namespace tessera::ckpt
