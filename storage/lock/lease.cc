#include "storage/lock/lease.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/mutex.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/threads.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the time since the machine's start. Unlike a steady clock, it goes on while the machine
// is suspended, and another job may take the lease over.
absl::Duration SinceBoot() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::DurationFromTimespec(now);
}

constexpr char kLeaseName[] = ".lease";
constexpr uint64_t kMaxLeaseBytes = uint64_t{1} << 20;  // foreign contents are a lease, too
constexpr int kRenewals = 4;                            // in each period
constexpr int kPolls = 20;                              // in each period, by a waiting job
constexpr int kRefusals = 3;  // in a row, before the store is taken to have no leases for this job
// A holder that renews is alive; but one renewal may still arrive when its sender is dead.
constexpr int kChangesOfTheLiving = 2;
constexpr absl::Duration kMaxPeriod = absl::Minutes(10);
constexpr std::chrono::seconds kPatience(5);  // of the destructor

// What the object says: "name value" a line.
using Fields = std::map<std::string, std::string>;

Fields ParseFields(const std::string& contents) {
  Fields fields;
  const std::vector<std::string> lines = absl::StrSplit(contents, '\n');
  for (const std::string& line : lines) {
    const size_t space = std::min(line.find(' '), line.size());
    fields[line.substr(0, space)] = line.substr(std::min(space + 1, line.size()));
  }
  return fields;
}

absl::Duration PeriodOf(Fields& fields, absl::Duration own) {
  int64_t milliseconds = 0;
  if (!absl::SimpleAtoi(fields["period_ms"], &milliseconds) || milliseconds <= 0) return own;
  return std::min(absl::Milliseconds(milliseconds), kMaxPeriod);
}

constexpr char kProc[] = "/proc";

// Returns the state and start time of a process, from PID/stat in `proc`; empty if it is not there.
std::pair<char, std::string> StateAndStart(const std::string& proc, pid_t pid) {
  const std::string stat =
      ReadWholeFile(absl::StrCat(proc, "/", pid, "/stat")).value_or(std::string());
  // The name in parentheses may have anything in it.
  const size_t end = stat.rfind(") ");
  if (end == stat.npos) return {' ', ""};
  const std::vector<std::string> words = absl::StrSplit(stat.substr(end + 2), ' ');
  constexpr size_t kStart = 19;  // the 22nd of all
  return {words[0].empty() ? ' ' : words[0][0], words.size() > kStart ? words[kStart] : ""};
}

// Returns what all processes that this one can see share: the machine's boot and a namespace.
std::string Surroundings() {
  char space[64] = "";
  if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) <= 0) return "";
  const std::string boot = BootId();
  return boot.empty() ? "" : absl::StrCat(boot, "/", space, "/");
}

// Stands for the lease of a store that has none, and holds nothing.
class NoLease final : public FolderLock {
 public:
  NoLease(const std::string& where, const absl::Status& reason)
      : FolderLock(absl::StrCat("WARNING: the store cannot lock ", where, " (", reason.message(),
                                "): make sure that only one run at a time saves there")) {}
};

class Lease final : public FolderLock {
 public:
  Lease(std::unique_ptr<Storage> storage, const Options& options)
      : FolderLock(""), storage_(std::move(storage)), options_(options) {}
  ~Lease() override;

  // Makes the lease this object's; FailedPrecondition while another holder is alive.
  absl::Status Take() {
    std::string seen;
    Clock::time_point since;
    bool said = false;
    for (int versions = 0;; absl::SleepFor(options_.lease_period / kPolls)) {
      const absl::StatusOr<VersionedContents> found = storage_->Read(kLeaseName, kMaxLeaseBytes);
      if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
      const std::string version = found.ok() ? found->version : "";
      Fields fields = ParseFields(found.ok() ? found->contents : "state free");
      if (version != seen || versions == 0) {
        seen = version;
        since = Clock::now();
        ++versions;
      }
      const absl::Duration unchanged = absl::FromChrono(Clock::now() - since);
      const absl::Duration period = PeriodOf(fields, options_.lease_period);
      if (fields["state"] == "free" || unchanged >= period ||
          IsKnownToBeDead(fields["process"], kProc)) {
        const absl::Status written = WriteAlone(version);
        // Another one was faster.
        if (absl::IsAlreadyExists(written) || absl::IsAborted(written)) continue;
        return written;
      }
      if (options_.wait <= absl::ZeroDuration() || versions > kChangesOfTheLiving) {
        return InUse(fields);
      }
      if (!std::exchange(said, true) && options_.on_wait) {
        options_.on_wait(absl::StrCat("waiting up to ", absl::FormatDuration(period),
                                      " to see whether another job still saves to ",
                                      storage_->Describe(""), " (",
                                      absl::CHexEscape(fields["holder"]), ")"));
      }
    }
  }

  // Proves that the lease can be replaced; deletes it where it cannot, so that no other job waits
  // for its end.
  absl::Status CheckConditions() {
    const MutexLock writing(&writing_);
    const absl::Status replaced = Write(version_, "held");
    if (absl::IsAborted(replaced)) return absl::OkStatus();  // which the next renewal finds, too
    if (absl::IsUnimplemented(replaced)) storage_->Delete(kLeaseName).IgnoreError();
    return replaced;
  }

  // Repeats one of these steps if the store refuses it. A refusal may pass: new rights may not be
  // known everywhere yet, and keys may just have been replaced.
  absl::Status Patiently(absl::Status (Lease::*step)()) {
    for (int refusals = 1;; ++refusals) {
      const absl::Status status = (this->*step)();
      if (!absl::IsPermissionDenied(status) || refusals >= kRefusals) return status;
      absl::SleepFor(options_.lease_period / kPolls);
    }
  }

  // Frees the lease if it cannot, so that no other job waits for the end of the period.
  absl::Status StartRenewing() {
    absl::StatusOr<std::thread> thread = StartThread([this] { Work(); });
    if (!thread.ok()) {
      Free();
      return thread.status();
    }
    thread_ = std::make_unique<std::thread>(*std::move(thread));
    return absl::OkStatus();
  }

  absl::Status Check() const override {
    if (getpid() != owner_) {
      return absl::FailedPreconditionError("a forked process does not have the lease");
    }
    const MutexLock lock(&mutex_);
    return lost_;
  }

  absl::Status Confirm() override {
    TESSERA_RETURN_IF_ERROR(Check());
    MutexLock writing(&writing_);
    const bool is_fresh = SinceBoot() - written_ < options_.lease_period;
    writing.Unlock();
    return is_fresh ? absl::OkStatus() : Renew();
  }

  void Abandon() override { storage_->Abandon(); }

 private:
  std::string Contents(const char* state) {
    return absl::StrCat("state ", state, "\nholder ", HolderName(), ", attempt ", attempt_,
                        "\nprocess ", ProcessIdentity(getpid()), "\nperiod_ms ",
                        absl::ToInt64Milliseconds(options_.lease_period), "\nrenewal ",
                        RandomHex(16), "\n");
  }

  // Replaces this version, or creates the object if it is empty, and remembers the new one.
  absl::Status Write(const std::string& version, const char* state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_) {
    // The time before the request: a watcher counts from a later time, when it sees the object.
    const absl::Duration now = SinceBoot();
    TESSERA_ASSIGN_OR_RETURN(version_,
                             storage_->Write(kLeaseName, Contents(state), {.version = version}));
    written_ = now;
    return absl::OkStatus();
  }

  absl::Status WriteAlone(const std::string& version) {
    const MutexLock writing(&writing_);
    return Write(version, "held");
  }

  absl::Status InUse(Fields& fields) const {
    return absl::FailedPreconditionError(absl::StrCat(storage_->Describe(""),
                                                      " is in use: another job saves there (",
                                                      absl::CHexEscape(fields["holder"]), ")"));
  }

  absl::Status Renew() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock writing(&writing_);
    TESSERA_RETURN_IF_ERROR(Check());
    absl::Status status = Write(version_, "held");
    if (!absl::IsAborted(status)) return status;
    absl::StatusOr<VersionedContents> found = storage_->Read(kLeaseName, kMaxLeaseBytes);
    if (absl::IsNotFound(found.status())) {  // another program deleted it
      status = Write("", "held");
      if (!absl::IsAlreadyExists(status)) return status;
      found = storage_->Read(kLeaseName, kMaxLeaseBytes);
    }
    Fields fields = ParseFields(found.ok() ? found->contents : "");
    status = absl::FailedPreconditionError(
        absl::StrCat("another job has taken over ", storage_->Describe(""), " (",
                     absl::CHexEscape(fields["holder"]),
                     "): this one saves no more there; end one "
                     "of them, or let them save to different places"));
    const MutexLock lock(&mutex_);
    lost_ = status;
    return status;
  }

  void Free() {
    CatchExceptions("free a lease", [this] {
      const MutexLock writing(&writing_);
      return Write(version_, "free");
    }).IgnoreError();
  }

  void Work() {
    const auto pause = absl::ToChronoMilliseconds(options_.lease_period / kRenewals);
    MutexLock lock(&mutex_);
    while (lost_.ok()) {
      const Clock::time_point next = Clock::now() + pause;
      while (!stop_ && changed_->WaitUntil(&mutex_, next)) {
      }
      if (stop_) break;
      lock.Unlock();
      CatchExceptions("renew a lease", [this] { return Renew(); }).IgnoreError();  // is tried again
      lock.Lock();
    }
    const bool is_held = lost_.ok();
    lock.Unlock();
    if (is_held) Free();
    lock.Lock();
    stopped_ = true;
    changed_->NotifyAll();
  }

  std::unique_ptr<Storage> storage_;
  const Options options_;
  const std::string attempt_ = RandomHex(8);
  const pid_t owner_ = getpid();  // a process that it forks has no thread that renews

  Mutex writing_;  // held while the object is replaced
  std::string version_ ABSL_GUARDED_BY(writing_);
  absl::Duration written_ ABSL_GUARDED_BY(writing_);

  mutable Mutex mutex_;
  std::unique_ptr<CondVar> changed_ = std::make_unique<CondVar>();
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<std::thread> thread_;
};

Lease::~Lease() {
  if (thread_ == nullptr) return;
  if (getpid() != owner_) {
    // The thread does not exist in this process, one of whose own may have its id. Destroying what
    // it waits for would never end.
    thread_.release();
    changed_.release();
    storage_.release();
    return;
  }
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
    changed_->NotifyAll();
    const Clock::time_point deadline = Clock::now() + kPatience;
    while (!stopped_ && changed_->WaitUntil(&mutex_, deadline)) {
    }
  }
  storage_->Abandon();
  thread_->join();
}

}  // namespace

std::string HolderName() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, ", pid ", getpid());
}

std::string ProcessIdentity(pid_t pid) {
  const std::string surroundings = Surroundings(), start = StateAndStart(kProc, pid).second;
  if (surroundings.empty() || start.empty()) return "";
  return absl::StrCat(surroundings, pid, "/", start);
}

bool IsKnownToBeDead(const std::string& identity, const std::string& proc) {
  const std::string surroundings = Surroundings();
  if (surroundings.empty() || !identity.starts_with(surroundings)) return false;
  const std::vector<std::string> words = absl::StrSplit(identity.substr(surroundings.size()), '/');
  int pid = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &pid) || pid <= 0) return false;
  const auto [state, start] = StateAndStart(proc, pid);
  // A /proc that is mounted with hidepid hides processes of other users, which may be alive.
  if (start.empty()) return ::kill(pid, 0) != 0 && errno == ESRCH;
  return start != words[1] || state == 'Z' || state == 'X';
}

absl::StatusOr<std::unique_ptr<FolderLock>> AcquireLease(std::unique_ptr<Storage> storage,
                                                         const FolderLock::Options& options) {
  const std::string where = storage->Describe("");
  if (!storage->Traits().replaces_versions) {
    return std::make_unique<NoLease>(
        where, absl::UnimplementedError("it has no condition under which it replaces a file"));
  }
  auto lease = std::make_unique<Lease>(std::move(storage), options);
  absl::Status taken = lease->Patiently(&Lease::Take);
  if (taken.ok()) taken = lease->Patiently(&Lease::CheckConditions);
  if (taken.ok()) {
    TESSERA_RETURN_IF_ERROR(lease->StartRenewing());
    return lease;
  }
  // A store that does not answer, and another holder, are errors.
  if (absl::IsFailedPrecondition(taken) || absl::IsUnavailable(taken)) return taken;
  return std::make_unique<NoLease>(where, taken);
}

}  // namespace tessera
