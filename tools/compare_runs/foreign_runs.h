#ifndef TESSERA_TOOLS_COMPARE_RUNS_FOREIGN_RUNS_H_
#define TESSERA_TOOLS_COMPARE_RUNS_FOREIGN_RUNS_H_

// Readers of other trainers' records: lines of text, and event files of TensorBoard.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "tools/compare_runs/run_records.h"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/input_stream.h"

namespace tessera {

// A printed number; see RunRecords::roundings.
struct PrintedNumber {
  double value = std::numeric_limits<double>::quiet_NaN();
  double rounding = kNotRecorded;
};

// The contents of a line of another trainer's log.
struct LogLine {
  const char* trainer = nullptr;
  std::optional<int64_t> step;  // nullopt: the last one
  bool is_evaluation = false;
  bool is_final = false;  // of a second evaluation at the end, which does not replace the first
  PrintedNumber loss, grad_norm, lr, tokens_per_second;
};

// Reads a log of llm.c (main.log, or its output), InfiniTrain, Megatron-LM or torchtitan line by
// line. The first known line identifies the trainer.
class LogReader {
 public:
  explicit LogReader(RunRecords& run) : run_(run) {}

  // Adds a line; returns whether it is about a step or an evaluation.
  bool Add(std::string_view line);
  // Completes the records. Call once, after the last line.
  void Finish();

 private:
  bool AddEvaluation(const LogLine& line);
  void AddStep(const LogLine& line);

  RunRecords& run_;
  const char* trainer_ = nullptr;
  std::optional<int64_t> last_step_;
  std::optional<PrintedNumber> evaluation_before_;  // the first step
  int64_t others_ = 0;                              // lines of another trainer
  int64_t repeated_ = 0, first_repeated_ = 0;
};

// Reads TensorBoard's event files in TensorBoard's order, by name. Takes the scalars whose tags are
// known, or say, to be a training loss, a gradient norm, a learning rate, tokens/s or the loss of
// an evaluation.
class EventReader {
 public:
  explicit EventReader(RunRecords& run) : run_(run) {}

  static bool IsEventFile(InputStream& file);
  void Read(InputStream& file, const std::string& name);
  // Completes the records. Call once, after the last file. InvalidArgument if no tag names a loss.
  absl::Status Finish();

 private:
  struct Series {
    int rank = 0;
    std::map<int64_t, double> values;
  };

  void Add(const tensorboard::Event& event);
  const Series* Choose(int quantity, const char* what);

  RunRecords& run_;
  std::map<int, std::map<std::string, Series>> series_;  // by quantity and tag
  std::map<std::string, int> tags_;                      // and their quantities; the first ones
};

}  // namespace tessera

#endif  // TESSERA_TOOLS_COMPARE_RUNS_FOREIGN_RUNS_H_
