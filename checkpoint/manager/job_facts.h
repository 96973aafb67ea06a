#ifndef TESSERA_CHECKPOINT_MANAGER_JOB_FACTS_H_
#define TESSERA_CHECKPOINT_MANAGER_JOB_FACTS_H_

// What a rank of a job knows after a step, beside the step itself: the requests of its stop file,
// later steps in its folder, and saves in the background. Used by one thread.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "checkpoint/manager/save_schedule.h"
#include "checkpoint/manager/stop_file.h"
#include "storage/storage.h"

namespace tessera::ckpt {

using Notes = std::function<void(const std::string& sentence)>;

// A file of the folder: the identity of the stop file's request that ended the last job. The same
// request ends no other job, even if the checkpoint of that step is damaged later.
inline constexpr char kObeyedStopFile[] = ".stop_file";
inline constexpr uint64_t kMaxIdentityBytes = 1024;

inline constexpr char kAdviceOnLaterSteps[] =
    "resume from there (auto_resume), quarantine them (AbandonLater(), abandon_later()), or save "
    "to another folder";

// The stop file of a job. Each of its requests ends one job only.
class StopFileOnce {
 public:
  // `storage` remembers the request that was obeyed; null in a job that does not save.
  void Open(const std::string& path, Storage* storage) {
    if (path.empty()) return;
    storage_ = storage;
    std::string obeyed;
    if (storage != nullptr) {
      obeyed = ReadAll(*storage, kObeyedStopFile, kMaxIdentityBytes).value_or("");
    }
    file_ = std::make_unique<StopFile>(path, obeyed);
  }

  void Begin(int64_t step) { requests_ = StopRequests(step); }

  StopFileAsks AfterStep(int64_t step, const Notes& notes) {
    if (file_ == nullptr) return StopFileAsks::kNothing;
    const std::string note = file_->TakeNote();
    if (!note.empty() && notes) notes(note);
    const StopFileAsks asks = requests_.AfterStep(step, file_->Poll());
    if (asks == StopFileAsks::kSaveAndEnd) stopped_at_ = step;
    return asks;
  }

  // Remembers the request if it has asked for the end at this step. Ignores failures, which do no
  // harm.
  void NoteSaved(int64_t step, Storage* staging) {
    if (stopped_at_ != step) return;
    WriteAll(*storage_, kObeyedStopFile, file_->Identity(requests_.handled_version()))
        .IgnoreError();
    if (staging != nullptr) staging->Delete(kObeyedStopFile).IgnoreError();
  }

 private:
  Storage* storage_ = nullptr;
  std::unique_ptr<StopFile> file_;  // on the ranks that name one
  StopRequests requests_;
  std::optional<int64_t> stopped_at_;  // the step at which it has asked for the end
};

// The search for checkpoints of later steps than the job begins at, on rank 0, until the job saves
// its first one. From then on, later steps may be the job's own.
class LaterSteps {
 public:
  void Begin(int64_t step) {
    began_at_ = step;
    may_find_ = !has_saved_;
  }
  void NoteSave() {
    has_saved_ = true;
    may_find_ = false;
  }

  // Returns whether there are any. A folder that cannot be listed is searched again after the next
  // step.
  bool Find(Storage& storage, int64_t step) {
    if (!may_find_) return false;
    found_ = CheckLaterSteps(storage, began_at_.value_or(step - 1), kAdviceOnLaterSteps);
    may_find_ = !found_.ok();
    return absl::IsFailedPrecondition(found_);
  }
  const absl::Status& found() const { return found_; }  // FailedPrecondition names them

 private:
  std::optional<int64_t> began_at_;  // nullopt: the step before the first one
  bool may_find_ = true;
  bool has_saved_ = false;
  absl::Status found_;
};

// Counts the saves in the background. A decision announces a save, which may begin after later
// steps, or never.
class BackgroundSaves {
 public:
  void Announce() { ++announced_; }
  void Withdraw() { announced_ = std::max<int64_t>(announced_ - 1, 0); }
  void Begin() {
    Withdraw();
    ++running_;
  }
  void Finish() { --running_; }
  bool in_flight() const { return announced_ + running_ > 0; }
  bool announced() const { return announced_ > 0; }

 private:
  int64_t announced_ = 0;  // and not begun
  int64_t running_ = 0;    // begun, and not finished
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_JOB_FACTS_H_
