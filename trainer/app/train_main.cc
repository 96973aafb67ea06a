// Trains a model: `train --config FILE --flag=value ...`, see --help.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/base/users_folder.h"
#include "glog/logging.h"
#include "models/llmc.h"
#include "models/model.h"
#include "trainer/app/evaluate.h"
#include "trainer/app/sample_text.h"
#include "trainer/app/session.h"
#include "trainer/app/stop_signal.h"
#include "trainer/app/train_loop.h"
#include "trainer/config/config.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"
#include "trainer/metrics/standard_streams.h"

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
  absl::Status status = loop.Run();
  progress_line.Finish();
  if (metrics != nullptr) status.Update(metrics->Close());  // the first error is the one to report
  return status;
}

// What the weights are worth, where there is nothing to train.
absl::Status EvaluateOnly(const Session& session, ProgressLine& progress_line) {
  const TrainingConfig& training = session.config.training();
  if (!session.valid_data.has_value() || training.eval_interval() == 0) return absl::OkStatus();
  Evaluator evaluator(*session.model, *session.valid_data->loader,
                      training.eval_iters() * training.global_batch_size(),
                      training.micro_batch_size(), training.seq_length());
  TESSERA_ASSIGN_OR_RETURN(EvalMetrics metrics, evaluator.Run());
  metrics.step = session.progress.step;
  progress_line.Eval(metrics);
  return absl::OkStatus();
}

absl::Status ExportWeights(const Session& session) {
  const ParameterSet& parameters = session.model->parameters();
  const LlmcFileOptions options{.dtype = parameters.values().view().dtype()};
  return ExportLlmc(session.config.checkpoint().export_llmc(), session.config.model(), options,
                    parameters, parameters.values());
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
    progress_line.Message("nothing left to train: step " + std::to_string(session->progress.step) +
                          " of " + std::to_string(config.training().train_iters()));
    TESSERA_RETURN_IF_ERROR(EvaluateOnly(*session, progress_line));
  }
  if (StopSignal() != 0) return absl::OkStatus();
  if (!config.checkpoint().export_llmc().empty()) {
    TESSERA_RETURN_IF_ERROR(ExportWeights(*session));
    progress_line.Message("weights written to " + config.checkpoint().export_llmc());
  }
  if (config.sampling().num_tokens_to_generate() > 0) return Sample(*session);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  ckpt::EnterUsersFolder();
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
  if (!tessera::OpenMissingStandardStreams()) return 1;
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  return tessera::Main(argc, argv);
}
