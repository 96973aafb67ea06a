#include "trainer/app/train_loop.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/trace.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "trainer/app/dry_run.h"
#include "trainer/app/measurements.h"
#include "trainer/app/memory_reserve.h"
#include "trainer/app/signals.h"
#include "trainer/metrics/run_events.h"
#include "trainer/state/ledger.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/state_health.h"

namespace tessera {
namespace {

// After this many consecutive updates with broken gradients, continuing is pointless.
constexpr int64_t kMaxSkippedInARow = 10;
constexpr size_t kMostRanksOfSave = 64;  // in its event

}  // namespace

TrainLoop::TrainLoop(Session& session, ProgressLine& progress_line)
    : session_(session),
      config_(session.config),
      ledger_settings_(SettingsDigest(config_, session.progress.seed, session.progress.data_seed)),
      progress_line_(progress_line),
      manager_(session.saver->manager()),
      kept_step_(session.resumed_in_memory ? -1 : session.progress.step) {
  manager_.Begin(session.resumed ? session.progress.step : 0);
  if (session.resumed_own && !session.resumed_in_memory && session.resumed_healthy) {
    good_saves_ = {session.progress.step};
  }
  if (config_.checkpoint().save_on_exception()) {
    session.trainer->set_before_update(
        [this] { return EndTogether(session_.train_data->loader->kept_error()); });
  }
}

absl::Status TrainLoop::Run() {
  TESSERA_ASSIGN_OR_RETURN(const RateMeter::Options rates, RateOptions(session_));
  rates_.emplace(rates);
  TESSERA_RETURN_IF_ERROR(AnnounceStart(session_, rates, progress_line_));
  TESSERA_ASSIGN_OR_RETURN(
      timeline_, Timeline::Open(config_, *session_.mesh,
                                [this](const std::string& note) { progress_line_.Message(note); }));
  // Bytes sent while building the session do not belong to any step.
  session_.mesh->TakeTraffic();
  if (session_.metrics != nullptr) {
    absl::StatusOr<std::unique_ptr<EventFile>> events = EventFile::Open(config_.output().run_dir());
    if (events.ok()) {
      events_ = *std::move(events);
      const std::optional<ResumeMetrics>& lost = session_.metrics->lost();
      if (lost.has_value() && lost->lost_steps > 0) {
        AddScalars(lost->step, {{"resume/lost_steps", static_cast<double>(lost->lost_steps)},
                                {"resume/lost_seconds", lost->lost_seconds}});
      }
    } else {
      progress_line_.Message(std::string(events.status().message()));
    }
  }
  TakeTimeSplit();
  if (const absl::Status trained = Train(); !trained.ok()) {
    // Whatever has ended the run, the saves that are done by now are reported and recorded.
    ReportSaves(session_.saver->Poll());
    return config_.checkpoint().save_on_exception() && Saves(config_) ? SaveOnException(trained)
                                                                      : trained;
  }
  const absl::Status saved = FinishSaves();
  // The saves of the last steps are in their timeline.
  const absl::Status recorded = timeline_ == nullptr ? absl::OkStatus() : timeline_->Finish();
  TESSERA_RETURN_IF_ERROR(saved);
  TESSERA_RETURN_IF_ERROR(recorded);
  TESSERA_RETURN_IF_ERROR(CheckRecords());
  return stopped_by() != 0 ? absl::OkStatus() : CheckNotDiverged();
}

absl::Status TrainLoop::Train() {
  const Progress& progress = session_.progress;
  if (session_.owes_evaluation) TESSERA_RETURN_IF_ERROR(Evaluate(/*may_stop=*/false));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ForeignWeights> owed,
                           OwedExports(session_, [this](const std::string& note) {
                             Happened("not_exported", session_.progress.step, note);
                           }));
  TESSERA_RETURN_IF_ERROR(Export(owed));
  while (progress.step < config_.training().train_iters()) {
    if (timeline_ != nullptr) TESSERA_RETURN_IF_ERROR(timeline_->NextStep(progress.step + 1));
    const absl::Duration start = SteadyNow();
    TESSERA_ASSIGN_OR_RETURN(StepMetrics metrics, TrainStep());
    rates_->Measure(SecondsSince(start), &metrics);
    TESSERA_RETURN_IF_ERROR(Report(metrics));
    TESSERA_RETURN_IF_ERROR(CheckMemory("train"));
    ReportSaves(session_.saver->Poll());
    ReportReplicas(session_.saver->PollReplicas());
    // A process that is told to end may soon be killed. It saves first; the next process evaluates.
    const bool is_told = stopped_by() != 0 ||
                         (decision_.program_ends && decision_.end != ckpt::EndReason::kLastStep);
    const bool hurries = decision_.save != ckpt::SaveKind::kNone && is_told;
    if (!hurries) TESSERA_RETURN_IF_ERROR(Evaluate(/*may_stop=*/true));
    const bool ends = decision_.end != ckpt::EndReason::kNone;
    SayEnd();
    // Without checkpoints, what a death costs would grow with each step.
    if (decision_.trouble != ckpt::SaveTrouble::kNone) TESSERA_RETURN_IF_ERROR(CheckSaves());
    // The last save is not skipped because an earlier one is still being written.
    if (ends) ReportSaves(session_.saver->Finish());
    const bool replicates = IsToReplicate();
    if (decision_.save != ckpt::SaveKind::kNone || replicates) {
      TESSERA_RETURN_IF_ERROR(Keep(replicates));
    }
    TESSERA_RETURN_IF_ERROR(Export(DueExports(session_)));
    if (ends) break;
  }
  return absl::OkStatus();
}

void TrainLoop::SayEnd() {
  const int64_t step = session_.progress.step;
  const ckpt::EndReason reason = decision_.end;
  if (stopped_by() != 0) {
    Happened("signal", step,
             absl::StrFormat("stopped by signal %d after step %d", stopped_by(), step));
  } else if (reason == ckpt::EndReason::kStopFile) {
    Happened("stop_file", step,
             absl::StrFormat("stopped by %s after step %d", config_.checkpoint().stop_file_path(),
                             step));
  } else if (reason == ckpt::EndReason::kProgram && time_is_up_) {
    Happened("exit_duration", step,
             absl::StrFormat("stopped after step %d: exit_duration_in_mins=%g has passed", step,
                             config_.training().exit_duration_in_mins()));
  }
}

absl::StatusOr<StepMetrics> TrainLoop::TrainStep() {
  Progress& progress = session_.progress;
  TESSERA_ASSIGN_OR_RETURN(const StepResult result,
                           session_.trainer->Step(*session_.train_data->loader,
                                                  {.step = progress.step,
                                                   .consumed_samples = progress.consumed_samples}));
  healthy_ = result.updated && IsSaneLoss(result.loss, config_.model().vocab_size());
  StepAgreement agreed;
  const auto agree = [&](std::span<int64_t> counts) -> absl::Status {
    const TimeSplit time = TakeTimeSplit();
    TESSERA_ASSIGN_OR_RETURN(agreed, AgreeOnStep(*session_.mesh, counts, result.pipeline_wait_share,
                                                 time, MeasureMemory(session_)));
    return absl::OkStatus();
  };
  time_is_up_ = session_.first_rank() && TimeIsUp(session_);
  const bool lost_records = session_.metrics != nullptr && !session_.metrics->status().ok();
  TESSERA_ASSIGN_OR_RETURN(decision_, manager_.Decide({.step = progress.step + 1,
                                                       .stop_signal = StopSignal(),
                                                       .program_ends = time_is_up_ || lost_records,
                                                       .healthy = healthy_},
                                                      agree));
  progress.step += 1;
  if (healthy_) healthy_step_ = progress.step;
  progress.updates = session_.trainer->updates();
  const int64_t first_sample = progress.consumed_samples;
  progress.consumed_samples += config_.training().global_batch_size();
  progress.last_loss = result.loss;
  if (std::isfinite(result.loss)) {
    progress.best_training_loss = std::min(progress.best_training_loss, result.loss);
  }
  progress.last_learning_rate = result.learning_rate;
  progress.ledger = NextLink(progress.ledger, ledger_settings_,
                             {.step = progress.step,
                              .loss = result.loss,
                              .grad_norm = result.grad_norm,
                              .learning_rate = result.learning_rate,
                              .first_sample = first_sample,
                              .end_sample = progress.consumed_samples});
  StepMetrics metrics{.step = progress.step,
                      .loss = result.loss,
                      .lr = result.learning_rate,
                      .grad_norm = result.grad_norm,
                      .skipped = !result.updated,
                      .consumed_samples = progress.consumed_samples,
                      .ledger = progress.ledger,
                      .ledger_settings = ledger_settings_,
                      .first_sample = first_sample};
  metrics.memory_bytes = agreed.memory.host;
  metrics.gpu_memory_bytes = agreed.memory.gpu;
  metrics.wire = std::move(agreed.wire);
  metrics.pipeline_wait_share = agreed.pipeline_wait_share;
  metrics.time = agreed.time;
  return metrics;
}

TimeSplit TrainLoop::TakeTimeSplit() {
  const absl::Duration now = SteadyNow();
  const double all = absl::ToDoubleSeconds(now - std::exchange(time_split_at_, now));
  const auto [communication, waiting, saving] = TakeTimeSpent();
  return {.compute = std::max(0.0, all - communication - waiting - saving),
          .communication = communication,
          .waiting = waiting,
          .saving = saving};
}

absl::Status TrainLoop::Report(const StepMetrics& metrics) {
  const TraceSpan span("step", "records");
  progress_line_.Step(metrics);
  // CheckRecords() reports the error on every rank.
  if (session_.metrics != nullptr) session_.metrics->Write(metrics).IgnoreError();
  FollowRecords();
  if (metrics.skipped && HasDiverged()) {
    return Diverged(absl::StrFormat("the gradients of the last %d steps were not finite",
                                    session_.trainer->skipped_in_a_row()));
  }
  return absl::OkStatus();
}

bool TrainLoop::HasDiverged() const {
  return session_.trainer->skipped_in_a_row() >= kMaxSkippedInARow;
}

absl::Status TrainLoop::Evaluate(bool may_stop) {
  if (!session_.valid_data.has_value() || !AtInterval(config_.training().eval_interval())) {
    return absl::OkStatus();
  }
  const TraceSpan span("evaluation", "evaluation");
  Progress& progress = session_.progress;
  StopEvaluation stop;
  if (may_stop && Saves(config_) && config_.checkpoint().exit_signal_handler()) {
    stop = [this] { return IsStopped(); };
  }
  TESSERA_ASSIGN_OR_RETURN(std::optional<EvalMetrics> evaluated, EvaluateSession(session_, stop));
  TESSERA_RETURN_IF_ERROR(EndTogether(session_.valid_data->loader->kept_error()));
  if (!evaluated.has_value()) return absl::OkStatus();
  EvalMetrics& metrics = *evaluated;
  metrics.best = metrics.loss < progress.best_loss;
  if (metrics.best) progress.best_loss = metrics.loss;
  progress_line_.Eval(metrics);
  evaluation_ = metrics;
  // A process that was killed before its first save may have recorded the same one.
  if (session_.metrics != nullptr && session_.metrics->evaluated_step() != metrics.step) {
    session_.metrics->Write(metrics).IgnoreError();
  }
  FollowRecords();
  return absl::OkStatus();
}

absl::StatusOr<bool> TrainLoop::IsStopped() {
  int64_t signal = StopSignal();
  if (Communicator* const world = session_.mesh->world(); world != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        world->AllReduce(std::span(&signal, 1), ReduceOp::kMax, {.what = "signals"}));
  }
  if (signal == 0) return false;
  decision_.stop_signal = static_cast<int>(signal);
  if (decision_.end == ckpt::EndReason::kNone) decision_.end = ckpt::EndReason::kSignal;
  decision_.save = ckpt::SaveKind::kPermanent;
  return true;
}

void TrainLoop::FollowRecords() {
  if (events_ != nullptr) CheckEvents(events_->Follow());
}

void TrainLoop::AddScalars(int64_t step, const std::map<std::string, double>& by_tag) {
  if (events_ != nullptr) CheckEvents(events_->AddScalars(step, by_tag));
}

void TrainLoop::CheckEvents(const absl::Status& status) {
  if (status.ok()) return;
  progress_line_.Message(std::string(status.message()));
  events_ = nullptr;
}

void TrainLoop::Happened(const std::string& name, int64_t step, const std::string& text,
                         const ckpt::SaveReport* saved) {
  progress_line_.Message(text);
  if (session_.events == nullptr) return;
  RunEvent event = {.name = name, .step = step, .text = text};
  if (saved != nullptr) {
    event.numbers = {{"seconds", absl::ToDoubleSeconds(saved->duration)},
                     {"bytes", static_cast<double>(saved->bytes_written)}};
    event.strings = {{"directory", saved->directory}};
    const auto rounded = [](absl::Duration duration) {
      return std::round(absl::ToDoubleMicroseconds(duration)) / 1e6;
    };
    std::vector<NumbersOfRank> ranks;
    for (const ckpt::SavePhases& rank : saved->ranks) {
      ranks.push_back({{"planning", rounded(rank.planning)},
                       {"copying", rounded(rank.copying)},
                       {"writing", rounded(rank.writing)},
                       {"syncing", rounded(rank.syncing)},
                       {"seconds", rounded(rank.duration)}});
    }
    event.ranks = LargestOf(ranks, "seconds", kMostRanksOfSave);
  }
  session_.events->Add(event);
}

absl::Status TrainLoop::Agree(const absl::Status& mine) const {
  const RankGroup group = session_.group();
  return ckpt::AgreeOnStatus(group.ranks, mine, group.timeout);
}

absl::Status TrainLoop::CheckRecords() const {
  const absl::Status own =
      session_.metrics == nullptr ? absl::OkStatus() : session_.metrics->status();
  return decision_.program_ends ? Agree(own) : own;
}

absl::Status TrainLoop::CheckNotDiverged() {
  const Progress& progress = session_.progress;
  if (kept_step_ != progress.step) TESSERA_RETURN_IF_ERROR(MeasureState().status());
  if (IsSaneLoss(progress.last_loss, config_.model().vocab_size())) return absl::OkStatus();
  return Diverged(absl::StrFormat("the loss of step %d is %g", progress.step,
                                  std::fabs(progress.last_loss)));  // a NaN has a sign
}

absl::Status TrainLoop::Diverged(const std::string& reason) {
  session_.diverged = true;
  ends_together_ = true;
  ReportSaves(session_.saver->Poll());
  Agree(absl::OkStatus()).IgnoreError();  // so that each finds it by itself
  return absl::AbortedError(
      absl::StrCat("training has diverged: ", reason, "; ", AdviceAfterDivergence()));
}

std::string TrainLoop::AdviceAfterDivergence() const {
  int64_t proven = -1;  // by the loss of a later step
  for (const int64_t step : good_saves_) {
    if (step < healthy_step_) proven = std::max(proven, step);
  }
  if (proven >= 0) {
    return absl::StrCat("step ", proven, " is the last checkpoint after which the loss was ",
                        "plausible: resume from it with a lower --lr (--ckpt-step=", proven, ")");
  }
  return session_.resumed || kept_step_ > 0
             ? "resume from an earlier checkpoint with a lower --lr (--ckpt-step)"
             : "start again with a lower --lr";
}

absl::Status TrainLoop::EndTogether(const absl::Status& mine) {
  if (!config_.checkpoint().save_on_exception()) return mine;
  int64_t failed = mine.ok() ? 0 : 1;
  if (Communicator* const world = session_.mesh->world(); world != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        world->AllReduce(std::span(&failed, 1), ReduceOp::kSum, {.what = "errors of all ranks"}));
  }
  if (failed == 0) return absl::OkStatus();
  ends_together_ = true;
  return Agree(mine);
}

}  // namespace tessera
