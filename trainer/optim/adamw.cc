#include "trainer/optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "glog/logging.h"

namespace tessera {
namespace {

TensorView Part(const TensorView& flat, int64_t begin, int64_t end) {
  return flat.empty() ? TensorView() : flat.Slice(0, begin, end);
}

}  // namespace

double GradNorm(Backend& backend, std::span<const TensorView> grads) {
  double sum = 0;
  for (const TensorView& grad : grads) sum += backend.SumOfSquares(grad);
  return std::sqrt(sum);
}

double ClipCoefficient(double grad_norm, double clip_grad) {
  if (clip_grad == 0) return 1.0;
  return std::min(1.0, clip_grad / (grad_norm + 1e-6));
}

AdamW::AdamW(Backend& backend, const OptimizerConfig& config, std::vector<FlatParameter> parameters,
             int64_t begin, int64_t end, TensorView values, TensorView grads)
    : backend_(backend),
      config_(config),
      parameters_(std::move(parameters)),
      begin_(begin),
      end_(end),
      values_(std::move(values)),
      grads_(std::move(grads)),
      has_master_(values_.dtype() != DType::kF32),
      runs_(OwnedRuns()) {
  CHECK_LE(begin_, end_);
  CHECK_EQ(values_.elements(), end_ - begin_);
  CHECK_EQ(grads_.elements(), end_ - begin_);
  CHECK(grads_.dtype() == DType::kF32) << "gradients must be float32";
  const Shape shape = {end_ - begin_};
  exp_avg_ = Tensor(DType::kF32, shape, backend_.device());
  exp_avg_sq_ = Tensor(DType::kF32, shape, backend_.device());
  if (has_master_) {
    master_ = Tensor(DType::kF32, shape, backend_.device());
    ResetMaster();
  }
}

std::vector<AdamW::Run> AdamW::OwnedRuns() const {
  std::vector<Run> runs;
  int64_t previous_end = 0;
  for (const FlatParameter& parameter : parameters_) {
    CHECK_GE(parameter.flat_offset, previous_end) << "parameters must be in flat order, disjoint";
    previous_end = parameter.flat_offset + parameter.elements;
    const int64_t run_begin = std::max(parameter.flat_offset, begin_) - begin_;
    const int64_t run_end = std::min(previous_end, end_) - begin_;
    if (run_begin >= run_end) continue;
    if (!runs.empty() && runs.back().end == run_begin &&
        runs.back().weight_decay == parameter.weight_decay) {
      runs.back().end = run_end;
    } else {
      runs.push_back({run_begin, run_end, parameter.weight_decay});
    }
  }
  return runs;
}

bool AdamW::Step(double learning_rate, double grad_norm, double grad_scale) {
  if (!std::isfinite(grad_norm) || !std::isfinite(grad_scale)) {
    ++skipped_steps_;
    ++skipped_in_a_row_;
    return false;
  }
  skipped_in_a_row_ = 0;
  ++updates_;
  AdamWOptions options;
  options.learning_rate = learning_rate;
  options.beta1 = config_.adam_beta1();
  options.beta2 = config_.adam_beta2();
  options.epsilon = config_.adam_eps();
  options.step = updates_;
  options.grad_scale = grad_scale;
  for (const Run& run : runs_) {
    options.weight_decay = run.weight_decay ? config_.weight_decay() : 0;
    backend_.AdamW(options, Part(grads_, run.begin, run.end), Part(master_, run.begin, run.end),
                   Part(exp_avg_, run.begin, run.end), Part(exp_avg_sq_, run.begin, run.end),
                   Part(values_, run.begin, run.end));
  }
  return true;
}

void AdamW::ResetMaster() {
  if (!has_master_) return;
  // Run by run: an empty range has no master to copy to.
  for (const Run& run : runs_) {
    backend_.Copy(Part(values_, run.begin, run.end), Part(master_, run.begin, run.end));
  }
}

void AdamW::Reset() {
  if (begin_ != end_) {
    backend_.Fill(exp_avg_, 0);
    backend_.Fill(exp_avg_sq_, 0);
  }
  ResetMaster();
  updates_ = 0;
  skipped_steps_ = 0;
  skipped_in_a_row_ = 0;
}

int64_t AdamW::state_bytes() const {
  return (end_ - begin_) * ElementSize(DType::kF32) * (has_master_ ? 3 : 2);
}

AdamW::ParameterState AdamW::State(int parameter) const {
  const FlatParameter& flat = parameters_[parameter];
  const int64_t from = std::max(flat.flat_offset, begin_) - begin_;
  const int64_t to = std::min(flat.flat_offset + flat.elements, end_) - begin_;
  ParameterState state;
  if (from >= to) return state;
  state.begin = begin_ + from - flat.flat_offset;
  state.value = Part(values_, from, to);
  state.master = Part(master_, from, to);
  state.exp_avg = Part(exp_avg_, from, to);
  state.exp_avg_sq = Part(exp_avg_sq_, from, to);
  return state;
}

}  // namespace tessera
