#include "tests/worlds/jobs/run_case.h"

#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checkpoint/include/manifest.pb.h"
#include "tests/worlds/jobs/scheduler.h"
#include "tests/worlds/jobs/world.h"

namespace tessera::simulation {
namespace {

// In processor time, since real time tells how busy the machine is. A case that waits for something
// outside of the simulation uses none, and has much more real time.
constexpr unsigned int kMaxSeconds = 30;

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
  const itimerval limit = {.it_interval = {}, .it_value = {.tv_sec = kMaxSeconds, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);
  alarm(4 * kMaxSeconds);
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
    const bool hangs = signal == SIGPROF || signal == SIGALRM;
    outcome.findings.push_back(hangs ? "hang: it ran too long"
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

namespace {

// Draws one number after the other.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  int Below(int limit) { return static_cast<int>(Hash(seed_, 1000, ++drawn_) % limit); }
  bool OneIn(int n) { return Below(n) == 0; }

 private:
  const uint64_t seed_;
  uint64_t drawn_ = 0;
};

Phase DrawPhase(Dice& dice, bool object_store, bool is_first) {
  Phase phase;
  phase.ranks = dice.OneIn(2) ? 1 : 1 + dice.Below(3);
  phase.steps = 1 + dice.Below(5);
  phase.save_interval = 1 + dice.Below(2);
  if (dice.OneIn(3)) phase.rolling_interval = 1 + dice.Below(2);
  if (phase.rolling_interval > 0 && dice.OneIn(2)) phase.save_interval = 4;
  phase.async = dice.OneIn(3);
  phase.staging_tier = dice.OneIn(6);
  phase.overlaps = !is_first && dice.OneIn(object_store ? 3 : 6);
  phase.goes_back = !is_first && dice.OneIn(4) && !phase.overlaps;
  phase.diverges = dice.OneIn(8);
  if (phase.ranks > 1 && dice.OneIn(10)) phase.blind_rank = 1;
  if (dice.OneIn(10)) phase.clock_offset_s = dice.Below(1200) - 600;
  phase.user_deletes = !is_first && dice.OneIn(10) && !phase.overlaps;
  phase.file_rots = !is_first && dice.OneIn(10);
  return phase;
}

// By dice of their own, so that what the others draw does not depend on them.
void DrawMore(Dice& dice, bool object_store, Phase& phase) {
  phase.skips = dice.OneIn(2);
  phase.stops = dice.OneIn(10);
  phase.token_expires = dice.OneIn(5) && object_store;
  phase.token_outage_s = dice.OneIn(2) ? 0 : dice.Below(1200);
  phase.clock_jumps = dice.OneIn(8);
  phase.is_tended = dice.OneIn(6);
  if (phase.stops) phase.steps += 20;
}

// Most runs meet few kinds of faults, some of them often.
void DrawRates(Dice& dice, Faults::Rates& rates) {
  constexpr int kOften[kFaultKinds] = {0, 2000, 50, 200, 300, 300, 300, 100, 50, 50, 30};
  if (dice.OneIn(8)) return;
  for (int kind = 1; kind < kFaultKinds; ++kind) {
    if (dice.OneIn(3)) rates[kind] = kOften[kind] * (dice.OneIn(4) ? 10 : 2);
  }
}

// The switches of a phase, by the parts that name them.
constexpr std::pair<const char*, bool Phase::*> kSwitches[] = {
    {"async", &Phase::async},         {"staging", &Phase::staging_tier},
    {"overlaps", &Phase::overlaps},   {"back", &Phase::goes_back},
    {"diverges", &Phase::diverges},   {"deletes", &Phase::user_deletes},
    {"rots", &Phase::file_rots},      {"skips", &Phase::skips},
    {"stops", &Phase::stops},         {"token", &Phase::token_expires},
    {"jumps", &Phase::clock_jumps},   {"tended", &Phase::is_tended},
    {"differ", &Phase::ranks_differ}, {"signal", &Phase::is_signalled},
};

void TakeOut(const std::string& part, Script& script) {
  const std::vector<std::string> names = absl::StrSplit(part, '.');
  size_t number = 0;
  if (names.size() != 2 || !absl::SimpleAtoi(names[0].substr(1), &number)) return;
  if (number >= script.phases.size()) return;
  Phase& phase = script.phases[number];
  const std::string& name = names[1];
  if (name == "all") phase.steps = 0;
  if (name == "ranks") phase.ranks = 1, phase.blind_rank = -1;
  if (name == "blind") phase.blind_rank = -1;
  if (name == "rolling") phase.rolling_interval = 0;
  if (name == "clock") phase.clock_offset_s = 0;
  for (const auto& [part_name, flag] : kSwitches) {
    if (name == part_name) phase.*flag = false;
  }
}

}  // namespace

Script DrawScript(uint64_t seed) {
  Dice dice(seed);
  Script script;
  script.object_store = dice.OneIn(2);
  if (script.object_store) script.loses_metadata = dice.OneIn(6);
  if (!script.object_store) script.renames_by_link = dice.OneIn(3);
  if (!script.object_store && dice.OneIn(6)) script.capacity_bytes = 4000 + dice.Below(10'000);
  if (!dice.OneIn(3)) script.retention.newest = 1 + dice.Below(3);
  if (dice.OneIn(3)) script.retention.best = 1 + dice.Below(2);
  const int phases = 1 + dice.Below(4);
  for (int i = 0; i < phases; ++i) {
    script.phases.push_back(DrawPhase(dice, script.object_store, i == 0));
  }
  DrawRates(dice, script.rates);
  Dice more(~seed);
  for (Phase& phase : script.phases) DrawMore(more, script.object_store, phase);
  Dice facts(Hash(seed, 1001));
  for (Phase& phase : script.phases) {
    phase.ranks_differ = facts.OneIn(2);
    phase.is_signalled = facts.OneIn(4);
  }
  return script;
}

std::vector<std::string> PartsOf(const Script& script) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < script.phases.size(); ++i) parts.push_back(absl::StrCat("p", i, ".all"));
  for (size_t i = 0; i < script.phases.size(); ++i) {
    const Phase& phase = script.phases[i];
    if (phase.steps == 0) continue;
    const auto add = [&](const char* name) { parts.push_back(absl::StrCat("p", i, ".", name)); };
    for (const auto& [name, flag] : kSwitches) {
      if (phase.*flag) add(name);
    }
    if (phase.ranks > 1) add("ranks");
    if (phase.blind_rank >= 0) add("blind");
    if (phase.rolling_interval > 0) add("rolling");
    if (phase.clock_offset_s != 0) add("clock");
  }
  return parts;
}

Script ScriptOf(const Case& what) {
  Script script = DrawScript(what.seed);
  for (const std::string& part : what.without) TakeOut(part, script);
  return script;
}

std::string Describe(const Script& script) {
  std::string text = absl::StrCat(
      script.object_store ? "object store" : "file system",
      script.loses_metadata ? " without metadata" : "", script.renames_by_link ? " by network" : "",
      script.tight() ? absl::StrCat(" of ", script.capacity_bytes, " bytes") : "",
      ", keeps newest ", script.retention.newest, " and best ", script.retention.best);
  for (size_t i = 0; i < script.phases.size(); ++i) {
    const Phase& phase = script.phases[i];
    if (phase.steps == 0) continue;
    absl::StrAppend(&text, "; p", i, ": ", phase.ranks, " ranks, ", phase.steps,
                    " steps, saves at ", phase.save_interval, ", rolling ", phase.rolling_interval);
  }
  return text;
}

std::string Case::ToString() const {
  std::string text = absl::StrCat(seed);
  for (const std::string& part : without) absl::StrAppend(&text, " -", part);
  if (!faults.has_value()) return text;
  if (faults->empty()) absl::StrAppend(&text, " #");
  for (const uint64_t number : *faults) absl::StrAppend(&text, " #", number);
  return text;
}

absl::StatusOr<Case> ParseCase(const std::string& text) {
  Case what;
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  const auto bad = [&] { return absl::InvalidArgumentError(absl::StrCat("no case: ", text)); };
  if (words.empty() || !absl::SimpleAtoi(words[0], &what.seed)) return bad();
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string rest = words[i].substr(1);
    if (words[i][0] == '-') {
      what.without.insert(rest);
    } else if (words[i][0] == '#') {
      if (!what.faults.has_value()) what.faults.emplace();
      uint64_t number = 0;
      if (!rest.empty() && !absl::SimpleAtoi(rest, &number)) return bad();
      if (!rest.empty()) what.faults->insert(number);
    } else {
      return bad();
    }
  }
  return what;
}

}  // namespace tessera::simulation
