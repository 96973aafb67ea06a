#ifndef TESSERA_TRAINER_METRICS_METRICS_H_
#define TESSERA_TRAINER_METRICS_METRICS_H_

// The metrics of each step, and the file that records them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "trainer/metrics/record_file.h"

namespace tessera {

// Bytes that all ranks together sent in a step, by one operation along one axis of the mesh.
struct WireBytes {
  std::string axis;       // "dp", "tp", "pp", ...
  std::string operation;  // "reduce-scatter", ...
  int64_t bytes = 0;
};

// Seconds of the training threads, the mean over ranks.
struct TimeSplit {
  double compute = 0;        // the rest
  double communication = 0;  // blocked in operations of several ranks
  double waiting = 0;        // for the neighbours in the pipeline
  double saving = 0;         // held up by saves
};

struct StepMetrics {
  int64_t step = 0;  // number of completed steps, from 1
  double loss = 0;   // mean per token of the global batch
  double lr = 0;
  double grad_norm = 0;
  bool skipped = false;  // no update: the gradients were not finite
  int64_t consumed_samples = 0;
  // The step's link of the run's chain (trainer/state/ledger.h); not recorded if empty.
  std::string ledger;
  std::string ledger_settings;
  int64_t first_sample = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;
  double peak_share =
      0;  // model FLOP/s over the rate of products (step/product_rate.h), at most 1; 0: unknown
  double eta_seconds = 0;  // until the end of the last step
  // The most memory that all processes together have held until now; 0: unknown. On GPUs, the
  // memory of each GPU that is in use.
  int64_t memory_bytes = 0;
  int64_t gpu_memory_bytes = 0;
  // Bytes sent, ordered by axis; empty for one process.
  std::vector<WireBytes> wire;
  // The pipeline bubble: the share of the forward and backward passes spent waiting for other
  // stages, averaged over ranks; negative without a pipeline.
  double pipeline_wait_share = -1;
  // The time since the agreement on the step before, with anything that followed that step, such as
  // a save.
  std::optional<TimeSplit> time;

  int64_t wire_bytes() const;
};

struct EvalMetrics {
  int64_t step = 0;  // completed steps
  double loss = 0;   // mean per token
  int64_t tokens = 0;
  double seconds = 0;
  bool best = false;
};

// The work that a resume lost: the dead process had computed these steps after the checkpoint.
struct ResumeMetrics {
  int64_t step = 0;
  int64_t lost_steps = 0;
  double lost_seconds = 0;
};

// A committed checkpoint: the chain's head at its step and the digest of its state, and the digest
// that binds them.
struct SaveRecord {
  int64_t step = 0;
  std::string ledger;
  std::string state;
  std::string save;
};

// Converts the duration of each step into rates. The ETA uses an exponential mean (the weight of a
// new step is 0.1). A step that is faster than the measured peak raises it, so that no share
// exceeds 1: the peak was measured while the machine was busy, or with other products than the
// step's.
class RateMeter {
 public:
  struct Options {
    int64_t total_steps = 0;
    int64_t tokens_per_step = 0;
    double flops_per_token = 0;
    double peak_flops = 0;  // FLOP/s; 0: unknown
  };
  explicit RateMeter(const Options& options) : options_(options), peak_flops_(options.peak_flops) {}
  // Fills step_seconds and the following fields. Precondition: metrics->step is set.
  void Measure(double step_seconds, StepMetrics* metrics);

 private:
  const Options options_;
  double peak_flops_;
  double mean_seconds_ = 0;
};

// The writer of metrics.jsonl, which has one JSON object per line,
// {"kind":"step","step":N,"loss":...} or {"kind":"eval","step":N,"eval_loss":...}. Numbers have 17
// significant digits; "loss_bits" (and "eval_loss_bits") holds the fp64 loss as 16 hexadecimal
// digits, so that a text tool can compare two runs bit for bit. A number that JSON cannot express
// (NaN, infinity) is null; "grad_norm_bits" records a gradient norm that is null. Steps of several
// ranks add "wire_bytes", their sum by axis and operation in "wire", and, with a pipeline,
// "pipeline_wait_share". "time" has the seconds of TimeSplit by their names. The links of the run's
// ledger are "first_sample", "settings" and "ledger".
//
// Every line is written to the operating system before the call returns: a killed process loses
// none. A power loss may lose the lines since the last Sync().
class MetricsWriter {
 public:
  // Without a `resumed_step`, starts a new run. Earlier records are kept in `path`.before, unless
  // longer ones are there; `notes` (may be null) receives a sentence.
  //
  // With it, the file keeps the records up to that step, each once (KeepRecords()), by rename;
  // `notes` receives a sentence about damaged and missing records.
  //
  // `loaded_ledger` is the ledger of a checkpoint that the run did not save itself; null if it did.
  // Unless the record of that step has it, the file begins anew. Earlier records are then kept
  // likewise, and also if there are some of later steps. Records that begin with the step after the
  // resumed one are of this run, which has died before it saved, unless saves.jsonl in the same
  // folder has the save of a later step. Others count as another run's, also where the checkpoints
  // are gone.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(
      const std::string& path, std::optional<int64_t> resumed_step, const NoteSink& notes = nullptr,
      const std::string* loaded_ledger = nullptr);
  // Opens an existing file to add to it, without an incomplete last line. For records of weights
  // from which the file's run may have gone on long ago.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Append(const std::string& path);
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // Adds a record. Errors: as RecordFile::Write().
  absl::Status Write(const StepMetrics& metrics);
  absl::Status Write(const EvalMetrics& metrics);
  // Adds {"kind":"save","step":N,...}. Such records have a file of their own, saves.jsonl.
  absl::Status Write(const SaveRecord& record);
  // Makes the lines written so far durable against a power loss. May be called from another thread
  // than the writer's, as may status().
  absl::Status Sync() { return file_->Sync(); }
  absl::Status status() const { return file_->status(); }
  // Returns whether the file continues the records that Open() has found, if any.
  bool continues() const { return continues_; }
  // Returns the records of later steps than the resumed one that Open() has dropped; nullopt where
  // it has found none of this run, but perhaps another's.
  const std::optional<ResumeMetrics>& lost() const { return lost_; }
  // Returns the step of the last evaluation that Open() has kept; -1 without one.
  int64_t evaluated_step() const { return evaluated_step_; }

 private:
  explicit MetricsWriter(std::unique_ptr<RecordFile> file) : file_(std::move(file)) {}

  const std::unique_ptr<RecordFile> file_;
  bool continues_ = true;
  std::optional<ResumeMetrics> lost_;
  int64_t evaluated_step_ = -1;
};

// Returns whether the log has a record of an evaluation of this step with this loss.
absl::StatusOr<bool> IsRecorded(const EvalMetrics& metrics, const std::string& path);

// Returns the 64 bits of a double as 16 hexadecimal digits.
std::string LossBits(double loss);

// The records that a resumed run keeps of an existing metrics.jsonl.

struct KeptRecords {
  std::string text;  // whole lines, unchanged, in their order
  // Sentences without the file's name; empty for the log of a killed process without other damage.
  std::vector<std::string> notes;
  // Number of dropped records of steps after the last one, which were computed in vain.
  int64_t lost_steps = 0;
  double lost_seconds = 0;
  // Whether no step up to the last one is recorded, but the next one is.
  bool begins_after = false;
  int64_t evaluated_step = -1;  // the last one; -1 without an evaluation
  std::string ledger;           // of the last step's record; empty without one
};

// Returns the records of `log` up to `last_step`. No content of a log is an error: the log records
// the past, and the run must be able to continue without it.
// - Records of later steps are dropped, and so is an incomplete last line: a process that dies
//   after its last save leaves both.
// - A line that is not a record is dropped. In a line with zero bytes, which a file system may
//   leave after a power loss, the text after the last of them is kept if it is a record. A note
//   names the lines, and the steps up to `last_step` that have no record.
// - If two records have the same kind and step, the first is dropped, with a note, since later
//   steps follow from the second run of the step.
KeptRecords KeepRecords(std::string_view log, int64_t last_step);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_METRICS_H_
