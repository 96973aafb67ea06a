#ifndef TESSERA_TRAINER_METRICS_PROGRESS_H_
#define TESSERA_TRAINER_METRICS_PROGRESS_H_

// Progress output on the terminal.

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "trainer/metrics/metrics.h"

namespace tessera {

// Prints progress. On a terminal: one live line, redrawn in place and truncated to the terminal's
// width. Elsewhere: plain lines.
class ProgressLine {
 public:
  struct Options {
    int64_t total_steps = 0;
    // Steps between plain lines; the first, the last and skipped steps are always printed. A live
    // line shows every step.
    int64_t log_interval = 1;
    std::FILE* out = stdout;
    // Whether to detect that `out` is a terminal, and its width; otherwise the next two fields
    // apply.
    bool detect_terminal = true;
    bool terminal = false;
    int width = 80;
  };
  explicit ProgressLine(const Options& options);
  ~ProgressLine();  // ends a live line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Step(const StepMetrics& metrics);
  void Eval(const EvalMetrics& metrics);  // prints a permanent line
  void Message(std::string_view text);    // prints a permanent line, above the live line
  void Finish();                          // keeps the live line and starts a new one

 private:
  int Width() const;
  void ClearLive();

  Options options_;
  std::string live_;
  bool printed_any_ = false;
};

// Returns "step 12/100 | loss 3.2101 | lr 3.00e-04 | norm 0.91 | 12.3k tok/s | 78% peak | eta
// 1m05s". Before the last part are, with several ranks, "| 1.2 GB wire" and, with a pipeline, "| 9%
// bubble".
std::string FormatStep(const StepMetrics& metrics, int64_t total_steps);
std::string FormatEval(const EvalMetrics& metrics);
// Returns "42s", "3m05s", "2h07m" or "3d04h"; "?" if unknown (negative or not finite).
std::string FormatDuration(double seconds);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_PROGRESS_H_
