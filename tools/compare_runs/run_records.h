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

// The largest number of a step, and of its negative; steps beyond are not read.
inline constexpr int64_t kMaxStep = 1'000'000'000'000'000;

inline constexpr double kNotRecorded = std::numeric_limits<double>::infinity();

// The records of a run.
struct RunRecords {
  std::string path;                     // of metrics.jsonl, or of another trainer's records
  std::map<int64_t, StepRecord> steps;  // by the number of completed steps
  std::map<int64_t, double> evaluation_losses;
  std::optional<bool> bf16;        // from config.textproto beside it, or the log; nullopt: unknown
  std::vector<std::string> notes;  // sentences about lines that are damaged or recorded twice

  // The kind of another trainer's records, which need not have each step and each number: "a log of
  // llm.c". Empty: metrics.jsonl.
  std::string foreign;
  // Half a unit of the last printed digit, for each number in `steps`: 0 for an exact number,
  // kNotRecorded for a missing one.
  std::map<int64_t, StepRecord> roundings;
  std::map<int64_t, double> evaluation_roundings;

  double Rounding(int64_t step, double StepRecord::*number) const;
  double EvaluationRounding(int64_t step) const;
  // Adds a note to `notes`, which keeps only the first ones, and the number of the others.
  void Note(const std::string& note);
  int64_t more_notes = 0;
};

// Reads a run folder, a metrics.jsonl file, an event file of TensorBoard or a folder of them, or a
// log of llm.c, InfiniTrain, Megatron-LM or torchtitan; the contents tell which. Losses of
// metrics.jsonl are exact, since they are taken from "loss_bits". If a step has two records, the
// later one is used. A damaged record is left out, with a note. Files are read as a stream: memory
// depends on the number of steps, not of bytes.
//
// NotFound if there is no such file; InvalidArgument if it holds no record.
absl::StatusOr<RunRecords> ReadRunRecords(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_TOOLS_COMPARE_RUNS_RUN_RECORDS_H_
