#include "checkpoint/simulation/run_case.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/simulation/faults.h"
#include "checkpoint/simulation/world.h"

namespace tessera::simulation {
namespace {

constexpr unsigned int kMaxSeconds = 30;  // of real time

// One line for each thing.
std::string Encode(bool with_trace) {
  const Journal& journal = Journal::Get();
  std::string text = absl::StrCat("H", journal.hash(), "\nC", Faults::Get().calls(), "\n");
  for (const uint64_t fault : Faults::Get().happened()) absl::StrAppend(&text, "X", fault, "\n");
  const auto add = [&](const char* kind, const std::vector<std::string>& lines) {
    for (std::string line : lines) {
      std::ranges::replace(line, '\n', ' ');
      absl::StrAppend(&text, kind, line, "\n");
    }
  };
  add("F", journal.findings());
  if (with_trace) add("T", journal.lines());
  return text;
}

Outcome Decode(const std::string& text) {
  Outcome outcome;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::string rest = line.substr(1);
    uint64_t number = 0;
    if (line[0] == 'F') outcome.findings.push_back(rest);
    if (line[0] == 'T') outcome.trace.push_back(rest);
    if (!absl::SimpleAtoi(rest, &number)) continue;
    if (line[0] == 'H') outcome.hash = number;
    if (line[0] == 'C') outcome.calls = static_cast<int64_t>(number);
    if (line[0] == 'X') outcome.faults.insert(number);
  }
  return outcome;
}

[[noreturn]] void RunHere(const Case& what, bool with_trace, int out, const std::string& root) {
  // One processor: threads take turns anyway, and numbers of files ascend.
  cpu_set_t processors;
  CPU_ZERO(&processors);
  CPU_SET(sched_getcpu(), &processors);
  sched_setaffinity(0, sizeof(processors), &processors);
  alarm(kMaxSeconds);
  const auto stop = [&] {
    const std::string text = Encode(with_trace);
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = write(out, text.data() + sent, text.size() - sent);
      if (n <= 0) break;
      sent += n;
    }
    _exit(0);
  };
  // Jobs share what protobuf builds at its first use: one that died while it built that would block
  // all others.
  ckpt::Manifest::descriptor();
  World world(what, root, stop);
  world.Run();
  stop();
  _exit(1);
}

// Whether the case still has a finding of the kind.
bool Fails(const Case& what, const std::string& kind, int& runs_left, Case& best) {
  if (--runs_left < 0 || RunCase(what).kind() != kind) return false;
  best = what;
  return true;
}

// Takes out parts of the faults, halves first.
void ShrinkFaults(const std::string& kind, int& runs_left, Case& best) {
  best.faults = RunCase(best).faults;
  for (size_t size = std::max<size_t>(best.faults->size(), 1); size > 0; size /= 2) {
    const std::vector<uint64_t> all(best.faults->begin(), best.faults->end());
    for (size_t begin = 0; begin < all.size(); begin += size) {
      Case smaller = best;
      for (size_t i = begin; i < std::min(begin + size, all.size()); ++i) {
        smaller.faults->erase(all[i]);
      }
      Fails(smaller, kind, runs_left, best);
    }
  }
}

}  // namespace

Outcome RunCase(const Case& what, bool with_trace) {
  // Processes of other sandboxes may have the same number, and share the folder.
  std::string root = "/dev/shm/simulation-XXXXXX";
  if (mkdtemp(root.data()) == nullptr) return {.findings = {"harness: no folder in /dev/shm"}};
  int ends[2];
  if (pipe(ends) != 0) return {.findings = {"harness: no pipe"}};
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    RunHere(what, with_trace, ends[1], root);
  }
  close(ends[1]);
  std::string text;
  char buffer[1 << 16];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  std::error_code ignored;
  std::filesystem::remove_all(root, ignored);
  Outcome outcome = Decode(text);
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    outcome.findings.push_back(signal == SIGALRM ? "hang: it ran too long"
                                                 : absl::StrCat("crash: signal ", signal));
  } else if (WEXITSTATUS(status) != 0 || text.empty()) {
    outcome.findings.push_back(absl::StrCat("crash: exit code ", WEXITSTATUS(status)));
  }
  return outcome;
}

Case Shrink(const Case& failing, const std::string& kind, int max_runs) {
  Case best = failing;
  int runs_left = max_runs;
  for (bool smaller = true; smaller && runs_left > 0;) {
    const std::string before = best.ToString();
    for (const std::string& part : PartsOf(ScriptOf(best))) {
      Case candidate = best;
      if (candidate.without.insert(part).second) Fails(candidate, kind, runs_left, best);
    }
    ShrinkFaults(kind, runs_left, best);
    smaller = best.ToString() != before;
  }
  return best;
}

}  // namespace tessera::simulation
