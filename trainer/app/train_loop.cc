#include "trainer/app/train_loop.h"

#include <chrono>
#include <span>

#include "absl/strings/str_format.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/base/units.h"
#include "trainer/app/gemm_peak.h"
#include "trainer/app/stop_signal.h"
#include "trainer/optim/schedule.h"
#include "trainer/state/checkpoints.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// After this many updates in a row with broken gradients there is nothing left to save by going on.
constexpr int64_t kMostSkippedInARow = 10;

std::span<int32_t> Span(const Tensor& tensor) {
  return {tensor.view().as<int32_t>(), static_cast<size_t>(tensor.view().elements())};
}

double Seconds(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

RateMeter::Options RateOptions(const Session& session) {
  const TrainingConfig& training = session.config.training();
  return {.total_steps = training.train_iters(),
          .tokens_per_step = training.global_batch_size() * training.seq_length(),
          .flops_per_token = session.model->FlopsPerToken(training.seq_length()),
          .peak_flops =
              MeasureGemmPeak(*session.backend, training.bf16() ? DType::kBF16 : DType::kF32)};
}

}  // namespace

TrainLoop::TrainLoop(Session& session, ProgressLine& progress_line, MetricsWriter* metrics)
    : session_(session),
      config_(session.config),
      progress_line_(progress_line),
      metrics_(metrics),
      rates_(RateOptions(session)),
      saved_step_(session.resumed ? session.progress.step : -1) {
  const TrainingConfig& training = config_.training();
  ids_ = Tensor(DType::kI32, {training.micro_batch_size(), training.seq_length()});
  targets_ = Tensor(DType::kI32, {training.micro_batch_size(), training.seq_length()});
  for (const Parameter* parameter : session_.model->parameters().parameters()) {
    grads_.push_back(parameter->grad);
  }
  if (session_.valid_data.has_value() && training.eval_interval() > 0) {
    evaluator_ = std::make_unique<Evaluator>(*session_.model, *session_.valid_data->loader,
                                             training.eval_iters() * training.global_batch_size(),
                                             training.micro_batch_size(), training.seq_length());
  }
}

absl::Status TrainLoop::Run() {
  const Progress& progress = session_.progress;
  while (progress.step < config_.training().train_iters()) {
    const Clock::time_point start = Clock::now();
    TESSERA_ASSIGN_OR_RETURN(StepMetrics metrics, TrainStep());
    rates_.Measure(Seconds(start), &metrics);
    TESSERA_RETURN_IF_ERROR(Report(metrics));
    if (evaluator_ != nullptr && AtInterval(config_.training().eval_interval())) {
      TESSERA_RETURN_IF_ERROR(Evaluate());
    }
    if (AtInterval(config_.checkpoint().save_interval())) TESSERA_RETURN_IF_ERROR(Save());
    if (StopSignal() != 0) {
      progress_line_.Message(
          absl::StrFormat("stopped by signal %d after step %d", StopSignal(), progress.step));
      return absl::OkStatus();
    }
    if (AtInterval(config_.training().exit_interval())) break;
  }
  return Save();
}

absl::StatusOr<StepMetrics> TrainLoop::TrainStep() {
  Progress& progress = session_.progress;
  AdamW& optimizer = *session_.optimizer;
  const TrainingConfig& training = config_.training();

  TESSERA_ASSIGN_OR_RETURN(const double loss_sum, ForwardBackward());
  const double grad_norm = GradNorm(*session_.backend, grads_);
  const double learning_rate = LearningRate(config_.optimizer(), progress.step);
  const bool updated = optimizer.Step(learning_rate, grad_norm,
                                      ClipCoefficient(grad_norm, config_.optimizer().clip_grad()));

  progress.step += 1;
  progress.updates = optimizer.updates();
  progress.consumed_samples += training.global_batch_size();
  progress.last_loss =
      loss_sum / static_cast<double>(training.global_batch_size() * training.seq_length());
  progress.last_learning_rate = learning_rate;
  return StepMetrics{.step = progress.step,
                     .loss = progress.last_loss,
                     .lr = learning_rate,
                     .grad_norm = grad_norm,
                     .skipped = !updated,
                     .consumed_samples = progress.consumed_samples};
}

absl::StatusOr<double> TrainLoop::ForwardBackward() {
  const TrainingConfig& training = config_.training();
  const int64_t micro = training.micro_batch_size();
  const double loss_scale =
      1.0 / static_cast<double>(training.global_batch_size() * training.seq_length());
  double loss_sum = 0;
  for (int64_t first = 0; first < training.global_batch_size(); first += micro) {
    TESSERA_RETURN_IF_ERROR(session_.train_data->loader->FillBatch(
        session_.progress.consumed_samples, first, micro, Span(ids_), Span(targets_)));
    const MicroBatch batch{.ids = ids_,
                           .targets = targets_,
                           .step = session_.progress.step,
                           .first_sample = first,
                           .training = true};
    TESSERA_ASSIGN_OR_RETURN(const double loss,
                             session_.model->Forward(batch, *session_.activations, {}, {}));
    TESSERA_RETURN_IF_ERROR(session_.model->Backward(batch, *session_.activations, loss_scale,
                                                     /*accumulate=*/first > 0, {}, {}, nullptr));
    loss_sum += loss;
  }
  return loss_sum;
}

absl::Status TrainLoop::Report(const StepMetrics& metrics) {
  progress_line_.Step(metrics);
  if (metrics_ != nullptr) TESSERA_RETURN_IF_ERROR(metrics_->Write(metrics));
  if (metrics.skipped && session_.optimizer->skipped_in_a_row() >= kMostSkippedInARow) {
    return absl::AbortedError(absl::StrFormat(
        "training has diverged: the gradients of the last %d steps were not finite; resume from an "
        "earlier checkpoint with a lower --lr",
        session_.optimizer->skipped_in_a_row()));
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::Evaluate() {
  Progress& progress = session_.progress;
  TESSERA_ASSIGN_OR_RETURN(EvalMetrics metrics, evaluator_->Run());
  metrics.step = progress.step;
  metrics.best = metrics.loss < progress.best_loss;
  if (metrics.best) progress.best_loss = metrics.loss;
  progress_line_.Eval(metrics);
  return metrics_ == nullptr ? absl::OkStatus() : metrics_->Write(metrics);
}

absl::Status TrainLoop::Save() {
  if (config_.checkpoint().save().empty() || saved_step_ == session_.progress.step) {
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(
      const ckpt::SaveReport report,
      SaveRun(config_,
              DescribeRun(config_, config_.model(), session_.progress, session_.data_identity()),
              session_.model->parameters(), *session_.optimizer));
  saved_step_ = session_.progress.step;
  progress_line_.Message(absl::StrFormat("saved step %d: %s in %.2f s", saved_step_,
                                         ckpt::HumanBytes(report.bytes_written), report.seconds));
  return absl::OkStatus();
}

bool TrainLoop::AtInterval(int64_t interval) const {
  return interval > 0 && session_.progress.step % interval == 0;
}

}  // namespace tessera
