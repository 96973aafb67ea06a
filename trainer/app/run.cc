#include "trainer/app/run.h"

#include <fcntl.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/no_memory.h"
#include "base/program.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/checkpoint.h"
#include "storage/lock/folder_lock.h"
#include "trainer/app/measurements.h"
#include "trainer/app/memory_reserve.h"
#include "trainer/app/sample_text.h"
#include "trainer/app/session.h"
#include "trainer/app/train_loop.h"
#include "trainer/config/config.h"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"
#include "trainer/metrics/run_events.h"
#include "trainer/report/report.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/saved_run.h"

namespace tessera {
namespace {

// Keeps other processes out of run_dir before anything in it is touched. Called by rank 0 if there
// is a run_dir.
absl::Status HoldRunFolder(Session& session, ProgressLine& progress_line) {
  const std::string& run_dir = session.config.output().run_dir();
  if (const absl::Status made = MakeDirectories(AT_FDCWD, run_dir); !made.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("run_dir=", run_dir, ": cannot create the folder: ", made.message()));
  }
  std::error_code no_folder;
  if (Saves(session.config) &&
      std::filesystem::equivalent(run_dir, session.config.checkpoint().save(), no_folder)) {
    return absl::OkStatus();
  }
  const auto note = [&](const std::string& text) { progress_line.Message(text); };
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, OpenStorage(run_dir));
  TESSERA_ASSIGN_OR_RETURN(session.run_folder,
                           FolderLock::Acquire(std::move(storage), {.on_wait = note}));
  if (!session.run_folder->warning().empty()) note(session.run_folder->warning());
  return absl::OkStatus();
}

// Checks and opens, on rank 0, the outputs of a run other than checkpoints. Null without a run_dir.
absl::StatusOr<std::unique_ptr<MetricsWriter>> OpenOutput(Session& session,
                                                          ProgressLine& progress_line) {
  const std::string& run_dir = session.config.output().run_dir();
  if (!run_dir.empty()) {
    TESSERA_RETURN_IF_ERROR(HoldRunFolder(session, progress_line));
    TrainConfig config = session.config;
    *config.mutable_checkpoint() = session.given_checkpoint;
    TESSERA_RETURN_IF_ERROR(WriteConfig(config, run_dir));
  }
  // Only now does run_dir, which may be the destination of the weights, exist.
  TESSERA_RETURN_IF_ERROR(CheckExport(session));
  if (run_dir.empty()) return nullptr;
  const std::optional<int64_t> resumed_step =
      session.resumed ? std::optional(session.progress.step) : std::nullopt;
  return MetricsWriter::Open(
      run_dir + "/metrics.jsonl", resumed_step,
      [&](const std::string& note) { progress_line.Message(note); },
      session.resumed && !session.resumed_own ? &session.progress.ledger : nullptr);
}

// The records of checkpoints are copies of what those hold: nothing is said of lines that are lost.
absl::Status OpenSaveRecords(Session& session) {
  const std::optional<int64_t> resumed_step =
      session.metrics->continues() ? std::optional(session.progress.step) : std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(
      session.saves,
      MetricsWriter::Open(session.config.output().run_dir() + "/saves.jsonl", resumed_step));
  return session.loaded.has_value() ? session.saves->Write(*session.loaded) : absl::OkStatus();
}

void RecordEnd(const Session& session, const absl::Status& status) {
  if (session.events == nullptr) return;
  const int64_t step = session.progress.step;
  RunEvent event = {.name = "end",
                    .step = step,
                    .text = absl::StrCat("ended after step ", step, " of ",
                                         session.config.training().train_iters())};
  if (!status.ok()) {
    event.name = session.diverged ? "diverged" : "failed";
    event.text = std::string(status.message());
  }
  session.events->Add(event);
}

// Trains, and returns the exit code.
absl::StatusOr<int> Train(Session& session, ProgressLine& progress_line) {
  if (session.first_rank()) {
    const std::string& run_dir = session.config.output().run_dir();
    const std::optional<double> idle_seconds = IdleSeconds(run_dir);
    TESSERA_ASSIGN_OR_RETURN(session.metrics, OpenOutput(session, progress_line));
    if (session.metrics != nullptr) {
      TESSERA_RETURN_IF_ERROR(OpenSaveRecords(session));
      session.events = std::make_unique<RunEvents>(
          run_dir, idle_seconds,
          [&](const std::string& failure) { progress_line.Message(failure); });
      for (const SkippedRun& skipped : session.skipped) {
        session.events->Add({.name = absl::StrCat("skipped_", skipped.word),
                             .step = session.progress.step,
                             .text = skipped.sentence});
      }
    }
  }
  TrainLoop loop(session, progress_line);
  const absl::Status status = loop.Run();
  progress_line.Finish();
  TESSERA_RETURN_IF_ERROR(status);
  if (session.metrics != nullptr) TESSERA_RETURN_IF_ERROR(session.metrics->Sync());
  const bool is_complete = session.progress.step == session.config.training().train_iters();
  if (is_complete) TESSERA_RETURN_IF_ERROR(session.saver->DeleteReplicas());
  return loop.stopped_by();
}

// Evaluates the weights where there is nothing to train.
absl::Status EvaluateOnly(Session& session, ProgressLine& progress_line) {
  if (!session.valid_data.has_value() || session.config.training().eval_interval() == 0) {
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::optional<EvalMetrics> evaluated, EvaluateSession(session));
  EvalMetrics metrics = *evaluated;  // nothing stops it
  metrics.best = session.owes_evaluation && metrics.loss < session.progress.best_loss;
  progress_line.Eval(metrics);
  const std::string& run_dir = session.config.output().run_dir();
  if (!session.first_rank() || run_dir.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(HoldRunFolder(session, progress_line));
  // The records and the settings of a run that has trained there remain. A finished run that is
  // started again and again does not add the same one.
  const std::string path = run_dir + "/metrics.jsonl";
  TESSERA_ASSIGN_OR_RETURN(const bool is_recorded, IsRecorded(metrics, path));
  if (is_recorded) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<MetricsWriter> records,
                           MetricsWriter::Append(path));
  TESSERA_RETURN_IF_ERROR(records->Write(metrics));
  return records->Sync();
}

// Samples the same text on every rank; rank 0 prints it and, after a training, records it.
absl::Status Sample(const Session& session, ProgressLine& progress_line) {
  if (session.tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        "num_tokens_to_generate: printing text needs tokenizer_model");
  }
  const RandomStream stream{.seed = session.progress.seed,
                            .use = RandomUse::kSampling,
                            .stream = static_cast<uint64_t>(session.progress.step)};
  std::string sample, lines;
  size_t printed = 0;  // bytes of the sample
  const auto emit = [&](std::string_view text) {
    if (!session.first_rank()) return;
    sample.append(text);
    // A token may end inside of a character.
    const size_t whole = WholeCharacters(std::string_view(sample).substr(printed));
    Print(std::string_view(sample).substr(printed, whole));
    std::fflush(stdout);
    printed += whole;
  };
  emit(session.config.sampling().prompt());
  const absl::Status status = SampleText(
      [&session](std::span<const int32_t> context) { return session.trainer->NextLogits(context); },
      *session.tokenizer, session.config.sampling(), session.config.training().seq_length(), stream,
      [&](const SampledToken& token) -> absl::Status {
        emit(token.text);
        if (!session.config.sampling().print_log_probabilities()) return absl::OkStatus();
        TESSERA_ASSIGN_OR_RETURN(const float log_probability,
                                 session.trainer->LogProbability(token.logits, token.id));
        absl::StrAppendFormat(&lines, "%d\t%.9g\t%s\n", token.id, log_probability,
                              absl::CEscape({token.text.data(), token.text.size()}));
        return absl::OkStatus();
      });
  emit("\n");
  if (session.first_rank()) Print(lines);
  if (session.events != nullptr && status.ok()) {
    session.events->Add({.name = "sample",
                         .step = session.progress.step,
                         .text = sample,
                         .strings = {{"prompt", session.config.sampling().prompt()}}});
  }
  if (session.metrics == nullptr || !status.ok()) return status;
  const auto events = EventFile::Open(session.config.output().run_dir());
  const absl::Status recorded =
      events.ok() ? (*events)->AddText(session.progress.step, "sample", sample) : events.status();
  if (!recorded.ok()) progress_line.Message(std::string(recorded.message()));
  return absl::OkStatus();
}

ProgressLine::Options LineOptions(const TrainConfig& config, const Launch& launch,
                                  RankOutput* output) {
  ProgressLine::Options options{.total_steps = config.training().train_iters(),
                                .log_interval = config.output().log_interval()};
  if (output != nullptr) {
    options.out = output->file();
    options.detect_terminal = false;
  } else if (launch.terminal_columns >= 0) {
    options.detect_terminal = false;
    options.terminal = launch.terminal_columns > 0;
    options.width = launch.terminal_columns;
  }
  return options;
}

// Writes the page about the run, which a reader opens; the run does not depend on it.
void ReportRun(const Session& session, ProgressLine& progress_line) {
  // Somebody else's folder stays as it is.
  if (session.run_folder == nullptr && session.metrics == nullptr) return;
  const absl::Status written = WriteReport(session.config.output().run_dir());
  if (!written.ok()) progress_line.Message("no report: " + std::string(written.message()));
}

// Writes the weights of export_llmc and last_save_in_hf and, where nothing was left to train, those
// that the run owes.
absl::Status ExportAtEnd(const Session& session, ProgressLine& progress_line) {
  const CheckpointConfig& checkpoint = session.config.checkpoint();
  const auto write = [&](const ForeignWeights& weights) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(ExportWeights(session, weights));
    progress_line.Message("weights written to " + weights.path);
    return absl::OkStatus();
  };
  if (!checkpoint.export_llmc().empty()) TESSERA_RETURN_IF_ERROR(write(LlmcExport(session)));
  const int64_t step = session.progress.step;
  const bool is_last = step == session.config.training().train_iters();
  if (checkpoint.last_save_in_hf() && is_last && session.hf_step != step) {
    TESSERA_RETURN_IF_ERROR(write(HuggingFaceExportOfStep(session)));
  }
  if (session.trains) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<ForeignWeights> owed,
      OwedExports(session, [&](const std::string& note) { progress_line.Message(note); }));
  for (const ForeignWeights& weights : owed) {
    const absl::Status written = write(weights);
    if (!written.ok()) progress_line.Message(std::string(written.message()));
  }
  return absl::OkStatus();
}

// Trains, or does the rest if there is nothing to train.
absl::Status RunSession(Session& session, ProgressLine& progress_line, int* stopped_by) {
  const TrainConfig& config = session.config;
  if (session.trains) {
    TESSERA_ASSIGN_OR_RETURN(*stopped_by, Train(session, progress_line));
  } else {
    progress_line.Message("nothing left to train: step " + std::to_string(session.progress.step) +
                          " of " + std::to_string(config.training().train_iters()));
    TESSERA_RETURN_IF_ERROR(EvaluateOnly(session, progress_line));
    if (config.training().train_iters() > 0 && !session.resumed_healthy) {
      return absl::AbortedError(
          "training has diverged: the last step's loss or state is not finite; resume from an "
          "earlier checkpoint with a lower --lr (--ckpt-step)");
    }
  }
  if (*stopped_by != 0) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(ExportAtEnd(session, progress_line));
  if (config.sampling().num_tokens_to_generate() > 0) return Sample(session, progress_line);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunRank(const TrainConfig& config, const Launch& launch, Communicator* world,
                     ComputeDevices& devices, int* stopped_by) {
  *stopped_by = 0;
  std::unique_ptr<RankOutput> output;
  if (world != nullptr && world->rank() != 0) {
    TESSERA_ASSIGN_OR_RETURN(output, RankOutput::Open(config.output().run_dir(), world->rank()));
  } else {
    Print(ConfigDifferences(config) + "\n");
    std::fflush(stdout);
  }
  ProgressLine progress_line(LineOptions(config, launch, output.get()));
  const auto note = [&](const std::string& text) { progress_line.Message(text); };
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      CatchExceptions("begin the run", [&] { return BuildSession(config, world, devices, note); }));
  session->began = launch.began;
  TESSERA_RETURN_IF_ERROR(CheckMemory("begin the run"));
  const absl::Status status = CatchExceptions(
      "continue the run", [&] { return RunSession(*session, progress_line, stopped_by); });
  // The other ranks are notified immediately; the session then waits for a save in flight, unless
  // nothing answers that one.
  if (!status.ok() && world != nullptr) world->Abort(status);
  if (!status.ok()) session->saver->manager().Abandon();
  RecordEnd(*session, status);
  ReportRun(*session, progress_line);
  return status;
}

}  // namespace tessera
