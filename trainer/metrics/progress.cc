#include "trainer/metrics/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/program.h"
#include "base/units.h"

namespace tessera {
namespace {

constexpr char kEraseLine[] = "\r\x1b[K";

// A NaN has a sign, which means nothing.
double Unsigned(double value) { return std::isnan(value) ? std::fabs(value) : value; }

std::string FormatRate(double per_second) {
  if (per_second >= 1e6) return absl::StrFormat("%.2fM", per_second / 1e6);
  if (per_second >= 1e3) return absl::StrFormat("%.1fk", per_second / 1e3);
  return absl::StrFormat("%.0f", per_second);
}

}  // namespace

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e11) return "?";
  const int64_t total = std::llround(seconds);
  if (total < 60) return absl::StrFormat("%ds", total);
  if (total < 3600) return absl::StrFormat("%dm%02ds", total / 60, total % 60);
  if (total < 86400) return absl::StrFormat("%dh%02dm", total / 3600, total % 3600 / 60);
  return absl::StrFormat("%dd%02dh", total / 86400, total % 86400 / 3600);
}

std::string FormatStep(const StepMetrics& metrics, int64_t total_steps) {
  std::string line =
      absl::StrFormat("step %d/%d | loss %.4f | lr %.2e | norm %.2f%s | %s tok/s", metrics.step,
                      total_steps, Unsigned(metrics.loss), metrics.lr, Unsigned(metrics.grad_norm),
                      metrics.skipped ? " SKIPPED" : "", FormatRate(metrics.tokens_per_second));
  if (metrics.peak_share > 0) {
    absl::StrAppendFormat(&line, " | %.0f%% peak", metrics.peak_share * 100);
  }
  if (!metrics.wire.empty()) {
    absl::StrAppend(&line, " | ", HumanBytes(metrics.wire_bytes()), " wire");
  }
  if (metrics.pipeline_wait_share >= 0) {
    absl::StrAppendFormat(&line, " | %.0f%% bubble", metrics.pipeline_wait_share * 100);
  }
  absl::StrAppend(&line, " | eta ", FormatDuration(metrics.eta_seconds));
  return line;
}

std::string FormatEval(const EvalMetrics& metrics) {
  return absl::StrFormat("eval at step %d | loss %.4f%s | %d tokens in %s", metrics.step,
                         Unsigned(metrics.loss), metrics.best ? " (best)" : "", metrics.tokens,
                         FormatDuration(metrics.seconds));
}

ProgressLine::ProgressLine(const Options& options) : options_(options) {
  if (!options_.detect_terminal) return;
  const std::string type = EnvironmentVariable("TERM");
  // A terminal without a type, or a dumb one, prints control sequences as text.
  options_.terminal = ::isatty(::fileno(options_.out)) == 1 && !type.empty() && type != "dumb";
}

ProgressLine::~ProgressLine() { Finish(); }

int ProgressLine::Width() const {
  if (!options_.detect_terminal) return options_.width;
  // Queried every time, because windows are resized.
  winsize size = {};
  if (::ioctl(::fileno(options_.out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return options_.width;
}

void ProgressLine::ClearLive() {
  if (live_.empty()) return;
  std::fputs(kEraseLine, options_.out);
}

void ProgressLine::Step(const StepMetrics& metrics) {
  const std::string line = FormatStep(metrics, options_.total_steps);
  if (!options_.terminal) {
    const bool due = options_.log_interval <= 1 || metrics.step % options_.log_interval == 0;
    if (due || !printed_any_ || metrics.step == options_.total_steps || metrics.skipped) {
      std::fprintf(options_.out, "%s\n", line.c_str());
      std::fflush(options_.out);
      printed_any_ = true;
    }
    return;
  }
  // The last column stays empty: a character there makes some terminals wrap to the next line.
  live_ = line.substr(0, static_cast<size_t>(Width() > 1 ? Width() - 1 : 0));
  std::fprintf(options_.out, "%s%s", kEraseLine, live_.c_str());
  std::fflush(options_.out);
}

void ProgressLine::Eval(const EvalMetrics& metrics) { Message(FormatEval(metrics)); }

void ProgressLine::Message(std::string_view text) {
  ClearLive();
  Print(text, options_.out);
  std::fputs("\n", options_.out);
  // Redraws the live line below.
  std::fputs(live_.c_str(), options_.out);
  std::fflush(options_.out);
}

void ProgressLine::Finish() {
  if (live_.empty()) return;
  std::fputs("\n", options_.out);
  std::fflush(options_.out);
  live_.clear();
}

}  // namespace tessera
