#ifndef TESSERA_CHECKPOINT_SIMULATION_RUN_CASE_H_
#define TESSERA_CHECKPOINT_SIMULATION_RUN_CASE_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/simulation/script.h"

namespace tessera::simulation {

struct Outcome {
  uint64_t hash = 0;                  // of everything that happened
  int64_t calls = 0;                  // to the storages
  std::set<uint64_t> faults;          // that happened, by number
  std::vector<std::string> findings;  // "kind: text"
  std::vector<std::string> trace;     // where it was asked for

  // The kind of the first; "": none.
  std::string kind() const {
    return findings.empty() ? "" : findings.front().substr(0, findings.front().find(':'));
  }
};

// Runs a case in a process of its own, which works in a folder in memory. A process that crashes,
// or does not end, is a finding.
Outcome RunCase(const Case& what, bool with_trace = false);

// A smaller case whose first finding is of the same kind; runs at most so many cases.
Case Shrink(const Case& failing, const std::string& kind, int max_runs = 400);

}  // namespace tessera::simulation

#endif  // TESSERA_CHECKPOINT_SIMULATION_RUN_CASE_H_
