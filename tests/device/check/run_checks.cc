// A process runs the checks, and tells of them in lines of JSON through a pipe:
//   {"error": code, "message": text}                 the process cannot run them
//   {"about": ..., "grace": seconds}                 it can
//   {"begins": index, "name": name}                  a check
//   {"ends": kind, "detail": text, "figures": ...}   the check that has begun last
//   {"complete": true}                               no check is left; false: it can run no other

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
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

CheckOutcome RunOne(const Check& check, const Deadline& deadline) {
  if (deadline.left_seconds() <= check.expected_seconds) return deadline.LeftOut();
  CheckOutcome outcome;
  const absl::Status thrown = CatchExceptions("check", [&] {
    outcome = check.run();
    return absl::OkStatus();
  });
  return thrown.ok() ? outcome : OutcomeOf(thrown);
}

absl::Status CheckName(const CheckList& list, const std::string& only) {
  std::vector<std::string> names;
  for (const Check& check : list.checks) names.push_back(check.name);
  if (only.empty() || std::ranges::count(names, only) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no check is named ", only, "; there are ", absl::StrJoin(names, ", ")));
}

// Runs the checks from `first` on in this process.
absl::Status RunHere(const MakeChecks& make, const std::string& only, size_t first,
                     const Deadline& deadline, const Tell& tell) {
  const absl::StatusOr<CheckList> list = make();
  if (!list.ok()) return list.status();
  TESSERA_RETURN_IF_ERROR(CheckName(*list, only));
  tell({{"about", list->about}, {"grace", list->grace_seconds}});
  for (size_t i = first; i < list->checks.size(); ++i) {
    const Check& check = list->checks[i];
    if (!only.empty() && check.name != only) continue;
    tell({{"begins", i}, {"name", check.name}});
    const CheckOutcome outcome = RunOne(check, deadline);
    tell({{"ends", outcome.kind}, {"detail", outcome.detail}, {"figures", outcome.figures}});
    if (list->usable == nullptr || list->usable()) continue;
    tell({{"complete", false}});
    return absl::OkStatus();
  }
  tell({{"complete", true}});
  return absl::OkStatus();
}

// Another process, which tells something in lines, until its end.
class TellingProcess {
 public:
  explicit TellingProcess(const std::function<void(const Tell&)>& run) {
    int ends[2];
    PCHECK(pipe2(ends, O_CLOEXEC) == 0);
    pid_ = fork();
    PCHECK(pid_ >= 0);
    pipe_ = ends[pid_ == 0 ? 1 : 0];
    close(ends[pid_ == 0 ? 0 : 1]);
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run([this](const Json& json) {
      const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
      PCHECK(write(pipe_, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    });
    _exit(0);
  }
  ~TellingProcess() {
    close(pipe_);
    if (!how_.empty()) return;
    Kill();
    HowItEnded();
  }
  TellingProcess(const TellingProcess&) = delete;
  TellingProcess& operator=(const TellingProcess&) = delete;

  // Returns what it tells next, in so many seconds; null if it does not, or has ended.
  Json Next(double seconds) {
    const absl::Duration start = SteadyNow();
    while (!ended_) {
      if (const size_t end = told_.find('\n'); end != told_.npos) {
        const std::string line = told_.substr(0, end);
        told_.erase(0, end + 1);
        return Json::parse(line);
      }
      const double left = seconds - SecondsSince(start);
      pollfd readable = {.fd = pipe_, .events = POLLIN, .revents = 0};
      if (left <= 0) break;
      if (poll(&readable, 1, static_cast<int>(std::ceil(1e3 * left))) == 0) continue;
      char some[4096];
      const ssize_t count = read(pipe_, some, sizeof(some));
      ended_ = count <= 0;
      told_.append(some, static_cast<size_t>(std::max<ssize_t>(count, 0)));
    }
    return {};
  }
  bool ended() const { return ended_; }
  void Kill() const { kill(pid_, SIGKILL); }
  // Waits for its end.
  std::string HowItEnded() {
    int status = 0;
    waitpid(pid_, &status, 0);
    how_ = WIFSIGNALED(status) ? absl::StrCat("by signal ", WTERMSIG(status))
                               : absl::StrCat("with ", WEXITSTATUS(status));
    return how_;
  }

 private:
  pid_t pid_;
  int pipe_;
  bool ended_ = false;
  std::string told_, how_;
};

// The checks that have run, and the one that runs.
class Progress {
 public:
  explicit Progress(const std::function<void(const CheckResults&)>& ended) : ended_(ended) {}

  void Hear(const Json& told) {
    if (told.contains("about")) {
      all_.about = told["about"];
      grace_ = told["grace"];
    }
    if (told.contains("complete")) complete_ = told["complete"];
    if (told.contains("begins")) {
      next_ = told["begins"].get<size_t>() + 1;
      running_ = told["name"];
      start_ = SteadyNow();
    }
    if (told.contains("ends")) {
      End({told["ends"].get<CheckOutcome::Kind>(), told["detail"], told["figures"]});
    }
  }
  // Ends the check that runs.
  void End(CheckOutcome outcome) {
    all_.results.push_back({running_, std::move(outcome), SecondsSince(start_)});
    running_.clear();
    ended_(all_);
  }

  size_t next() const { return next_; }
  bool complete() const { return complete_; }
  bool runs() const { return !running_.empty(); }
  double grace_seconds() const { return grace_; }
  const CheckResults& all() const { return all_; }

 private:
  const std::function<void(const CheckResults&)>& ended_;
  CheckResults all_;
  size_t next_ = 0;  // the first check that has not begun
  bool complete_ = false;
  double grace_ = 0;
  std::string running_;  // empty: none
  absl::Duration start_;
};

}  // namespace

absl::StatusOr<CheckResults> RunChecksHere(const MakeChecks& make, const std::string& only,
                                           const Deadline& deadline,
                                           const std::function<void(const CheckResults&)>& ended) {
  Progress progress(ended);
  TESSERA_RETURN_IF_ERROR(
      RunHere(make, only, 0, deadline, [&](const Json& told) { progress.Hear(told); }));
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
    while (true) {
      const double left = deadline.left_seconds() + progress.grace_seconds();
      const Json told = process.Next(progress.runs() ? std::min(left, kMostSeconds) : kMostSeconds);
      if (told.is_null()) break;
      if (told.contains("error")) {
        return absl::Status(told["error"].get<absl::StatusCode>(),
                            told["message"].get<std::string>());
      }
      progress.Hear(told);
      if (told.contains("complete")) break;
    }
    if (progress.runs() && !process.ended()) {
      process.Kill();
      progress.End(deadline.LeftOut());
    } else if (progress.runs()) {
      progress.End(
          OutcomeOf(absl::InternalError(absl::StrCat("ended its process ", process.HowItEnded()))));
    } else if (!progress.complete() && progress.next() == first) {
      return absl::InternalError(
          absl::StrCat("the process of the checks ended ", process.HowItEnded()));
    }
  }
  return progress.all();
}

}  // namespace tessera::testing
