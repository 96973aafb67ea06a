#ifndef TESSERA_TRAINER_METRICS_RUN_EVENTS_H_
#define TESSERA_TRAINER_METRICS_RUN_EVENTS_H_

// The file events.jsonl: the events of a run, over all its processes.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/program.h"
#include "trainer/metrics/record_file.h"

namespace tessera {

// Bytes or seconds, by kind.
using NumbersOfRank = std::map<std::string, double>;

struct RunEvent {
  std::string name;
  int64_t step = 0;      // completed steps
  std::string text;      // one sentence, or the text of a sample
  std::string topology;  // of the run; empty: not written
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> strings;
  std::map<int, NumbersOfRank> ranks;
};

// Returns the ranks with the largest numbers of a kind, at most `most`, so that an event that
// repeats stays small in jobs of thousands of ranks. `ranks` is indexed by rank; all have the kind.
std::map<int, NumbersOfRank> LargestOf(const std::vector<NumbersOfRank>& ranks,
                                       const std::string& kind, size_t most);

// The writer of events.jsonl, which has one JSON object per line:
// {"kind":"event","event":NAME,"step":N,"time":SECONDS_SINCE_1970,
// "topology":"dp2_tp2","text":"...", ...}. A resume drops lines that are damaged or torn, and adds
// to the others, which never change. NAME, and the further fields:
//   start, resume  parameters, predicted_step_seconds, ranks: [{"rank", "weights", "gradients",
//                  "optimizer", "activations"}] in bytes. A resume adds "checkpoint",
//                  "saved_topology", for a replica "tier": "memory" and, if this resume or an
//                  earlier one left parts of its checkpoint out, "partial_resumes". If this folder
//                  has records of the former process, it adds lost_steps and lost_seconds, the work
//                  that was lost, and down_seconds, the time from its last record until now. They
//                  are unknown where the records may be another run's (MetricsWriter::Open());
//                  without records of steps, only down_seconds is known.
//   saved          seconds, bytes, directory, ranks: [{"rank", "planning", "copying", "writing",
//                  "syncing", "seconds"}] in seconds, as SavePhases, of the 64 slowest ranks
//   not_saved, not_exported (weights at an interval), signal, stop_file, exit_duration,
//   replicated (the first, and the first after a failure), not_replicated (likewise)
//   skipped_damaged, skipped_diverged: a newer checkpoint than the one that was loaded, which is
//                  damaged or of a run that had diverged
//   sample         prompt
//   end, diverged, failed: the last one of a process that was not killed and had begun to train
//
// A line is written to the operating system before the call returns. Not thread-safe.
class RunEvents {
 public:
  // Adds to the file of `folder`, which exists. `failed` is called once with the reason if events
  // cannot be written; the run continues without them. `idle_seconds` is IdleSeconds() of the
  // folder before the run.
  RunEvents(const std::string& folder, std::optional<double> idle_seconds, NoteSink failed);
  RunEvents(const RunEvents&) = delete;
  RunEvents& operator=(const RunEvents&) = delete;

  void Add(const RunEvent& event);

  std::optional<double> idle_seconds() const { return idle_seconds_; }

 private:
  void Check(const absl::Status& status);

  const std::string path_;
  const NoteSink failed_;
  const std::optional<double> idle_seconds_;
  std::unique_ptr<RecordFile> file_;  // null: it has failed
};

// Returns how long nothing has been recorded in the folder of a run, in seconds; nullopt if nothing
// ever was.
std::optional<double> IdleSeconds(const std::string& folder);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_RUN_EVENTS_H_
