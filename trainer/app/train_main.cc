// Trains a model: `train --config FILE --flag=value ...`, see --help.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/base/status_macros.h"
#include "glog/logging.h"
#include "trainer/app/sample_text.h"
#include "trainer/app/session.h"
#include "trainer/app/stop_signal.h"
#include "trainer/app/train_loop.h"
#include "trainer/config/config.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"

namespace tessera {
namespace {

absl::Status Train(Session& session, ProgressLine& progress_line) {
  const TrainConfig& config = session.config;
  std::unique_ptr<MetricsWriter> metrics;
  if (const std::string& run_dir = config.output().run_dir(); !run_dir.empty()) {
    TESSERA_RETURN_IF_ERROR(WriteConfig(config, run_dir));
    const std::optional<int64_t> resumed_step =
        session.resumed ? std::optional(session.progress.step) : std::nullopt;
    TESSERA_ASSIGN_OR_RETURN(metrics,
                             MetricsWriter::Open(run_dir + "/metrics.jsonl", resumed_step));
  }
  TrainLoop loop(session, progress_line, metrics.get());
  const absl::Status status = loop.Run();
  progress_line.Finish();
  if (metrics != nullptr) TESSERA_RETURN_IF_ERROR(metrics->Close());
  return status;
}

absl::Status Sample(const Session& session) {
  if (session.tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        "num_tokens_to_generate: printing text needs tokenizer_model");
  }
  const RandomStream stream{.seed = session.progress.seed,
                            .use = RandomUse::kSampling,
                            .stream = static_cast<uint64_t>(session.progress.step)};
  std::printf("%s", session.config.sampling().prompt().c_str());
  const absl::Status status =
      SampleText(*session.model, *session.tokenizer, session.config.sampling(),
                 session.config.training().seq_length(), stream, [](std::string_view text) {
                   std::fwrite(text.data(), 1, text.size(), stdout);
                   std::fflush(stdout);
                 });
  std::printf("\n");
  return status;
}

absl::Status Run(const TrainConfig& config) {
  std::printf("%s\n", ConfigDifferences(config).c_str());
  ProgressLine progress_line({.total_steps = config.training().train_iters(),
                              .log_interval = config.output().log_interval()});
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      BuildSession(config, [&](const std::string& note) { progress_line.Message(note); }));
  if (session->optimizer != nullptr) {
    TESSERA_RETURN_IF_ERROR(Train(*session, progress_line));
  } else {
    progress_line.Message("nothing left to train");
  }
  if (StopSignal() == 0 && config.sampling().num_tokens_to_generate() > 0) return Sample(*session);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
  if (line.ok() && !line->help.empty()) {
    std::printf("%s", line->help.c_str());
    return 0;
  }
  const absl::StatusOr<TrainConfig> config =
      line.ok() ? ResolveConfig(line->config) : absl::StatusOr<TrainConfig>(line.status());
  CatchStopSignals();
  const absl::Status status = config.ok() ? Run(*config) : config.status();
  if (!status.ok()) {
    std::fflush(stdout);
    std::fprintf(stderr, "train: %s\n", std::string(status.message()).c_str());
    return absl::IsInvalidArgument(status) ? 2 : 1;
  }
  return StopSignal() == 0 ? 0 : 128 + StopSignal();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  return tessera::Main(argc, argv);
}
