// What the records of a run cost in each step:
//   figure records.ledger <microseconds for the step's link of the chain> us
//   figure records.metrics <for its line in metrics.jsonl> us
//   figure records.events <for its scalars in TensorBoard's event file> us

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "tests/perf/harness.h"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/metrics.h"
#include "trainer/state/ledger.h"

ABSL_FLAG(int, steps, 2000, "Behind each of five measurements.");
ABSL_FLAG(std::string, folder, "", "For the files; a new one below /tmp by default.");

namespace tessera {
namespace {

absl::Status Measure(const std::string& folder) {
  const int steps = absl::GetFlag(FLAGS_steps);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<MetricsWriter> metrics,
                           MetricsWriter::Open(folder + "/metrics.jsonl", std::nullopt));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<EventFile> events, EventFile::Open(folder));
  const std::string settings(64, 'a');
  std::string head;
  int64_t step = 0;
  const auto advance = [&] {
    const double loss = 1.0 / static_cast<double>(++step);
    head = NextLink(head, settings,
                    {.step = step,
                     .loss = loss,
                     .grad_norm = loss,
                     .learning_rate = loss,
                     .first_sample = step,
                     .end_sample = step + 1});
  };
  absl::Status status;
  const auto record = [&] {
    status.Update(metrics->Write(
        StepMetrics{.step = ++step,
                    .loss = 1.0 / static_cast<double>(step),
                    .lr = 1.0 / 3,
                    .grad_norm = 1.0 / 7,
                    .ledger = head,
                    .ledger_settings = settings,
                    .wire = {{"dp", "reduce-scatter", 1 << 20}, {"dp", "all-gather", 1 << 20}}}));
  };
  const auto microseconds = [&](const auto& work) {
    const auto all = [&] {
      for (int i = 0; i < steps; ++i) work();
    };
    return MedianSeconds(all) / steps * 1e6;
  };
  PrintFigure("records.ledger", microseconds(advance), "us");
  const double line = microseconds(record);
  PrintFigure("records.metrics", line, "us");
  status.Update(events->Follow());
  const auto follow = [&] {
    record();
    status.Update(events->Follow());
  };
  PrintFigure("records.events", microseconds(follow) - line, "us");
  return status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::RunProgram(
      "records", [] { return tessera::WithFolder(absl::GetFlag(FLAGS_folder), tessera::Measure); });
}
