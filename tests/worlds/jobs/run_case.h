#ifndef TESSERA_TESTS_WORLDS_JOBS_RUN_CASE_H_
#define TESSERA_TESTS_WORLDS_JOBS_RUN_CASE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manager/retention.h"
#include "tests/worlds/jobs/faults.h"

namespace tessera::simulation {

// One run of a job, which resumes, trains, saves, and ends or is ended.
struct Phase {
  int ranks = 1;
  int steps = 3;
  int save_interval = 1;
  int rolling_interval = 0;
  bool async = false;
  bool staging_tier = false;   // saves are uploaded from a staging tier
  bool overlaps = false;       // begins while the phase before is still there
  bool goes_back = false;      // continues from an older step on request
  bool diverges = false;       // the last step's state is not finite
  int blind_rank = -1;         // sees another storage: an empty or an older one
  int64_t clock_offset_s = 0;  // its machine's clock is wrong by so much
  bool skips = false;          // an asynchronous save is skipped while another one is in flight
  bool stops = false;          // has more steps, and is asked to end by a stop file
  bool ranks_differ = false;   // one of them has the stop file, the signal, an unhealthy step
  bool is_signalled = false;   // in its later steps, one rank has got a signal to end
  // Events of the storage and its machine meanwhile.
  bool token_expires = false;  // it can be renewed after so long
  int token_outage_s = 0;
  bool clock_jumps = false;
  bool is_tended = false;  // another process prunes, and verifies what there is
  // Events of the storage before the phase.
  bool user_deletes = false;
  bool file_rots = false;
};

struct Script {
  bool object_store = false;
  bool loses_metadata = false;   // the store does not give back x-amz-meta-*
  bool renames_by_link = false;  // the file system is a network's
  uint64_t capacity_bytes = uint64_t{1} << 40;
  ckpt::RetentionOptions retention;
  std::vector<Phase> phases;
  Faults::Rates rates = {};

  bool tight() const { return capacity_bytes < (uint64_t{1} << 40); }
};

// A case: everything that a seed draws, less the parts that were taken out. As text: "12 -p1.async
// #1000017".
struct Case {
  uint64_t seed = 0;
  std::set<std::string> without;             // parts of the script, see PartsOf()
  std::optional<std::set<uint64_t>> faults;  // those that happen; nullopt: all that are drawn

  std::string ToString() const;
};
absl::StatusOr<Case> ParseCase(const std::string& text);

Script DrawScript(uint64_t seed);
std::string Describe(const Script& script);
// Returns the parts that can be taken out of a case's script, larger ones first.
std::vector<std::string> PartsOf(const Script& script);
Script ScriptOf(const Case& what);

struct Outcome {
  uint64_t hash = 0;                  // of everything that happened
  int64_t calls = 0;                  // to the storages
  std::set<uint64_t> faults;          // that happened, by number
  std::vector<std::string> findings;  // "kind: text"
  std::vector<std::string> trace;     // where it was asked for

  // Returns the kind of the first finding; "" without one.
  std::string kind() const {
    return findings.empty() ? "" : findings.front().substr(0, findings.front().find(':'));
  }
};

// Runs a case in a process of its own, which works in a folder in memory. A process that crashes,
// or does not end, is a finding.
Outcome RunCase(const Case& what, bool with_trace = false);

// Returns a smaller case whose first finding is of the same kind. Runs at most `max_runs` cases.
Case Shrink(const Case& failing, const std::string& kind, int max_runs = 400);

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_WORLDS_JOBS_RUN_CASE_H_
