// A process runs the checks, and tells of them in lines of JSON through a pipe:
//   {"error": code, "message": text}   it cannot run them
//   {"checks": [name], "about": ...}   it can
//   {"begins": true}                   the first of them that has no outcome
//   {"ends": kind, "detail": text, "figures": ..., "usable": whether it can run another}

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "tests/device/check/check.h"

namespace tessera::testing {
namespace {

using Json = nlohmann::json;
using Tell = std::function<void(const Json&)>;
using MakeChecks = std::function<absl::StatusOr<CheckList>()>;

constexpr double kMostSeconds = 1e6;  // without a deadline
constexpr double kSecondsToEnd = 5;   // of a process that has closed its pipe, or was killed
constexpr int kMostReads = 1000;      // of what is left in a pipe

bool IsUsable(const CheckList& list) { return list.usable == nullptr || list.usable(); }

CheckOutcome RunOne(const CheckList& list, const Check& check, const Deadline& deadline) {
  if (deadline.left_seconds() <= check.expected_seconds) return deadline.LeftOut();
  CheckOutcome outcome;
  const absl::Status thrown = CatchExceptions("check", [&] {
    outcome = check.run();
    return absl::OkStatus();
  });
  if (!thrown.ok()) outcome = OutcomeOf(thrown);
  if (outcome.kind == CheckOutcome::kFailed || IsUsable(list)) return outcome;
  return {CheckOutcome::kFailed, absl::StrCat(kDeviceHasFailed, "\n", outcome.detail)};
}

absl::Status CheckName(const std::vector<std::string>& names, const std::string& only) {
  if (only.empty() || std::ranges::count(names, only) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no check is named ", only, "; there are ", absl::StrJoin(names, ", ")));
}

std::vector<std::string> NamesOf(const CheckList& list) {
  std::vector<std::string> names;
  for (const Check& check : list.checks) names.push_back(check.name);
  return names;
}

// Runs the checks from `first` on in this process.
absl::Status RunHere(const MakeChecks& make, const std::string& only, size_t first,
                     const Deadline& deadline, const Tell& tell) {
  TESSERA_ASSIGN_OR_RETURN(CheckList list, make());
  TESSERA_RETURN_IF_ERROR(CheckName(NamesOf(list), only));
  std::erase_if(list.checks,
                [&](const Check& check) { return !only.empty() && check.name != only; });
  if (!only.empty()) list.checks.front().expected_seconds = 0;
  tell({{"checks", NamesOf(list)}, {"about", list.about}});
  bool usable = true;
  for (size_t i = first; i < list.checks.size() && usable; ++i) {
    tell({{"begins", true}});
    const CheckOutcome outcome = RunOne(list, list.checks[i], deadline);
    usable = IsUsable(list);
    tell({{"ends", outcome.kind},
          {"detail", outcome.detail},
          {"figures", outcome.figures},
          {"usable", usable}});
  }
  return absl::OkStatus();
}

// Appends what a pipe has. Returns false at its end.
bool ReadSome(int pipe, std::string* text) {
  char some[4096];
  const ssize_t count = read(pipe, some, sizeof(some));
  text->append(some, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return count > 0;
}

// Another process, which tells something in lines, until its end. It ends with this one, and what
// it has started with it. What it writes to stderr is written here.
class TellingProcess {
 public:
  explicit TellingProcess(const std::function<void(const Tell&)>& run) {
    int told[2], errors[2];
    PCHECK(pipe2(told, O_CLOEXEC) == 0);
    PCHECK(pipe2(errors, O_CLOEXEC) == 0);
    pid_ = fork();
    PCHECK(pid_ >= 0);
    const int own = pid_ == 0 ? 1 : 0;
    pipe_ = told[own];
    errors_ = errors[own];
    close(told[1 - own]);
    close(errors[1 - own]);
    setpgid(pid_, pid_);
    if (pid_ != 0) return;
    signal(SIGTERM, [](int) { kill(0, SIGKILL); });
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(errors_, STDERR_FILENO);
    run([this](const Json& json) {
      const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
      PCHECK(write(pipe_, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    });
    _exit(0);
  }
  ~TellingProcess() {
    kill(-pid_, SIGKILL);
    if (EndWithin(kSecondsToEnd).si_pid != 0) {
      waitpid(pid_, nullptr, 0);
    } else {
      std::cerr << "process " << pid_ << " does not end, and is left alone\n";
    }
    close(pipe_);
    close(errors_);
  }
  TellingProcess(const TellingProcess&) = delete;
  TellingProcess& operator=(const TellingProcess&) = delete;

  // Returns what it tells next, in so many seconds; null if it does not, or has ended.
  Json Next(double seconds) {
    const absl::Duration start = SteadyNow();
    while (told_.find('\n') == told_.npos) {
      const double left = std::clamp(seconds - SecondsSince(start), 0.0, kMostSeconds);
      pollfd ends[] = {{pipe_, POLLIN, 0}, {errors_, POLLIN, 0}};
      if (poll(ends, 2, static_cast<int>(std::ceil(1e3 * left))) == 0) return {};
      if (ends[1].revents != 0) PassErrors();
      if (left == 0 && ends[0].revents == 0) return {};  // it may write errors for ever
      ended_ = ends[0].revents != 0 && !ReadSome(pipe_, &told_);
      if (ended_) return {};
    }
    const size_t end = told_.find('\n');
    const Json told = Json::parse(told_.substr(0, end));
    told_.erase(0, end + 1);
    return told;
  }
  bool ended() const { return ended_; }
  // Returns how it has ended, with the last line of its stderr.
  std::string HowItEnded() {
    const siginfo_t end = EndWithin(kSecondsToEnd);
    pollfd errors = {errors_, POLLIN, 0};
    // Those that it has started may still write.
    for (int reads = 0; reads < kMostReads && errors_ >= 0 && poll(&errors, 1, 0) > 0; ++reads) {
      PassErrors();
    }
    const std::string why = LastLine(passed_);
    return absl::StrCat(
        end.si_pid == 0
            ? "closed its pipe and hangs"
            : absl::StrCat(end.si_code == CLD_EXITED ? "ended with " : "ended by signal ",
                           end.si_status),
        why.empty() ? "" : ": ", why);
  }

 private:
  // Returns its end; si_pid is 0 if it does not end so soon.
  siginfo_t EndWithin(double seconds) const {
    const absl::Duration start = SteadyNow();
    siginfo_t info = {};
    while (waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0 &&
           SecondsSince(start) < seconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return info;
  }
  void PassErrors() {
    const size_t before = passed_.size();
    if (!ReadSome(errors_, &passed_)) close(std::exchange(errors_, -1));
    std::cerr << passed_.substr(before);
  }

  pid_t pid_;
  int pipe_, errors_;  // errors_ is -1 at its end
  bool ended_ = false;
  std::string told_, passed_;
};

// The checks that have an outcome, and the one that runs.
class Progress {
 public:
  explicit Progress(const std::function<void(const CheckResults&)>& ended) : ended_(ended) {}

  void Hear(const Json& told) {
    if (told.contains("checks")) {
      names_ = told["checks"].get<std::vector<std::string>>();
      all_.about = told["about"];
    }
    if (told.contains("begins")) start_ = SteadyNow();
    if (!told.contains("ends")) return;
    CheckOutcome outcome = {told["ends"].get<CheckOutcome::Kind>(), told["detail"], {}};
    for (const auto& [name, figure] : told["figures"].items()) {
      // JSON has null for what is not finite.
      outcome.figures[name] = figure.is_null() ? std::nan("") : figure.get<double>();
    }
    End(std::move(outcome));
  }
  // Ends the first check that has no outcome.
  void End(CheckOutcome outcome) {
    all_.results.push_back(
        {names_->at(next()), std::move(outcome), start_.has_value() ? SecondsSince(*start_) : 0});
    start_.reset();
    ended_(all_);
  }
  void LeaveOutTheRest(const std::string& why) {
    while (!complete()) End({CheckOutcome::kLeftOut, why});
  }

  size_t next() const { return all_.results.size(); }  // after those that have an outcome
  bool complete() const { return names_.has_value() && next() == names_->size(); }
  bool runs() const { return start_.has_value(); }
  const CheckResults& all() const { return all_; }

 private:
  const std::function<void(const CheckResults&)>& ended_;
  std::optional<std::vector<std::string>> names_;
  CheckResults all_;
  std::optional<absl::Duration> start_;  // of the check that runs
};

// Hears of a process as long as it can run checks. Returns why it cannot, unless its device has
// failed.
absl::Status HearAll(const Deadline& deadline, TellingProcess& process, Progress& progress) {
  bool usable = true;
  while (usable && !progress.complete()) {
    const Json told = process.Next(deadline.left_seconds_with_grace());
    if (told.is_null()) {
      return process.ended() ? absl::InternalError(
                                   absl::StrCat("the process of the checks ", process.HowItEnded()))
                             : deadline.NotEnded();
    }
    if (told.contains("error")) {
      return absl::Status(told["error"].get<absl::StatusCode>(),
                          told["message"].get<std::string>());
    }
    progress.Hear(told);
    usable = told.value("usable", true);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckResults> RunChecksHere(const MakeChecks& make, const std::string& only,
                                           const Deadline& deadline,
                                           const std::function<void(const CheckResults&)>& ended) {
  Progress progress(ended);
  TESSERA_RETURN_IF_ERROR(
      RunHere(make, only, 0, deadline, [&](const Json& told) { progress.Hear(told); }));
  progress.LeaveOutTheRest(kDeviceHasFailed);
  return progress.all();
}

absl::StatusOr<CheckResults> RunChecks(const MakeChecks& make, const std::string& only,
                                       const Deadline& deadline,
                                       const std::function<void(const CheckResults&)>& ended) {
  Progress progress(ended);
  while (!progress.complete()) {
    const size_t first = progress.next();
    TellingProcess process([&](const Tell& tell) {
      const absl::Status status = RunHere(make, only, first, deadline, tell);
      if (!status.ok()) tell({{"error", status.code()}, {"message", status.message()}});
    });
    const absl::Status status = HearAll(deadline, process, progress);
    if (progress.runs()) {
      progress.End(OutcomeOf(status));
    } else if (!status.ok() && progress.next() == 0) {
      return status;
    } else if (!status.ok() && progress.next() == first) {
      progress.LeaveOutTheRest(std::string(status.message()));
    }
    if (deadline.left_seconds() <= 0) progress.LeaveOutTheRest(deadline.LeftOut().detail);
  }
  return progress.all();
}

}  // namespace tessera::testing
