#ifndef TESSERA_TOOLS_COMPARE_RUNS_RUN_RECORDS_H_
#define TESSERA_TOOLS_COMPARE_RUNS_RUN_RECORDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// One "step" line of metrics.jsonl. NaN stands for a number that the line does not have.
struct StepRecord {
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_second = 0;
};

// What a run has recorded about itself.
struct RunRecords {
  std::string path;                     // of metrics.jsonl
  std::map<int64_t, StepRecord> steps;  // by the number of completed steps
  std::map<int64_t, double> evaluation_losses;
  std::optional<bool> bf16;        // from config.textproto beside it; nullopt without that file
  std::vector<std::string> notes;  // sentences about lines that are damaged or recorded twice
};

// Reads a run folder or a metrics.jsonl file. Losses are exact: they are taken from "loss_bits".
// If a step has two records, the later counts; a line that is not a record is left out with a note.
// NotFound where there is no such file; InvalidArgument where it holds no record at all.
absl::StatusOr<RunRecords> ReadRunRecords(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_TOOLS_COMPARE_RUNS_RUN_RECORDS_H_
