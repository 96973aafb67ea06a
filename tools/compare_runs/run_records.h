#ifndef TESSERA_TOOLS_COMPARE_RUNS_RUN_RECORDS_H_
#define TESSERA_TOOLS_COMPARE_RUNS_RUN_RECORDS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// The numbers of one step. NaN stands for a number that the record does not have.
struct StepRecord {
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_second = 0;
};

// Steps with larger numbers, or smaller ones than its negative, are not read.
inline constexpr int64_t kMaxStep = 1'000'000'000'000'000;

inline constexpr double kNotRecorded = std::numeric_limits<double>::infinity();

// What a run has recorded about itself.
struct RunRecords {
  std::string path;                     // of metrics.jsonl, or of what another trainer wrote
  std::map<int64_t, StepRecord> steps;  // by the number of completed steps
  std::map<int64_t, double> evaluation_losses;
  std::optional<bool> bf16;        // from config.textproto beside it, or the log; nullopt: unknown
  std::vector<std::string> notes;  // sentences about lines that are damaged or recorded twice

  // What another trainer wrote, which need not have each step and each number: "a log of llm.c".
  // Empty: metrics.jsonl.
  std::string foreign;
  // For each number above half a unit of the last digit that was printed: 0 for one that is exact,
  // kNotRecorded for one that is missing. Empty for metrics.jsonl, which has everything.
  std::map<int64_t, StepRecord> roundings;
  std::map<int64_t, double> evaluation_roundings;

  double Rounding(int64_t step, double StepRecord::*number) const;
  double EvaluationRounding(int64_t step) const;
  // Adds to `notes`, of which only the first are kept, and the number of the others.
  void Note(const std::string& note);
  int64_t more_notes = 0;
};

// Reads a run folder, a metrics.jsonl file, an event file of TensorBoard or a folder of them, or a
// log of llm.c, InfiniTrain, Megatron-LM or torchtitan; the contents tell which. Losses of
// metrics.jsonl are exact: they are taken from "loss_bits". If a step has two records, the later
// counts; a record that is damaged is left out with a note. Files are read as a stream: memory
// depends on the number of steps, not of bytes.
//
// NotFound where there is no such file; InvalidArgument where it holds no record at all.
absl::StatusOr<RunRecords> ReadRunRecords(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_TOOLS_COMPARE_RUNS_RUN_RECORDS_H_
