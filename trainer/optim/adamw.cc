#include "trainer/optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "glog/logging.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

// Elements updated at a time where a caller waits for memory before it is overwritten.
constexpr int64_t kPieceElements = 1 << 20;

}  // namespace

double ClipCoefficient(double grad_norm, double clip_grad) {
  if (clip_grad == 0) return 1.0;
  return std::min(1.0, clip_grad / (grad_norm + 1e-6));
}

AdamW::AdamW(Backend& backend, const OptimizerConfig& config, std::vector<FlatParameter> parameters,
             std::vector<OwnedRange> ranges, DType dtype)
    : backend_(backend),
      config_(config),
      parameters_(std::move(parameters)),
      ranges_(std::move(ranges)),
      has_master_(dtype != DType::kF32),
      state_offsets_(StateOffsets()),
      parts_(OwnedParts()),
      runs_(OwnedRuns()) {
  for (const OwnedRange& range : ranges_) {
    CHECK_EQ(range.values.elements(), range.end - range.begin);
    CHECK_EQ(range.grads.elements(), range.end - range.begin);
    CHECK(range.values.dtype() == dtype);
    CHECK(range.grads.dtype() == DType::kF32) << "gradients must be float32";
  }
  MemoryScope scope(MemoryCategory::kOptimizer);
  const Shape shape = {state_offsets_.back()};
  exp_avg_ = Tensor(DType::kF32, shape, backend_.device());
  exp_avg_sq_ = Tensor(DType::kF32, shape, backend_.device());
  if (has_master_) master_ = Tensor(DType::kF32, shape, backend_.device());
}

std::vector<int64_t> AdamW::StateOffsets() const {
  std::vector<int64_t> offsets = {0};
  int64_t previous_end = 0;
  for (const OwnedRange& range : ranges_) {
    CHECK_GE(range.begin, previous_end) << "ranges must be in flat order, disjoint";
    CHECK_LE(range.begin, range.end);
    previous_end = range.end;
    offsets.push_back(offsets.back() + range.end - range.begin);
  }
  return offsets;
}

std::vector<AdamW::Part> AdamW::OwnedParts() const {
  std::vector<Part> parts(parameters_.size());
  int64_t previous_end = 0;
  int range = 0;
  const int ranges = static_cast<int>(ranges_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int64_t begin = parameters_[i].begin, end = begin + parameters_[i].elements;
    CHECK_GE(begin, previous_end) << "parameters must be in flat order, disjoint";
    previous_end = end;
    while (range < ranges && ranges_[range].end <= begin) ++range;
    for (int r = range; r < ranges && ranges_[r].begin < end; ++r) {
      const Part part = {.range = r,
                         .begin = std::max(begin, ranges_[r].begin) - ranges_[r].begin,
                         .end = std::min(end, ranges_[r].end) - ranges_[r].begin};
      if (part.begin >= part.end) continue;
      CHECK_LT(parts[i].range, 0) << "parameter " << i << " lies in two ranges";
      parts[i] = part;
    }
  }
  return parts;
}

std::vector<AdamW::Run> AdamW::OwnedRuns() const {
  std::vector<Run> runs;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Part& part = parts_[i];
    if (part.range < 0) continue;
    const bool decays = parameters_[i].weight_decay;
    if (!runs.empty() && runs.back().range == part.range && runs.back().end == part.begin &&
        runs.back().weight_decay == decays) {
      runs.back().end = part.end;
    } else {
      runs.push_back({part.range, part.begin, part.end, decays});
    }
  }
  return runs;
}

TensorView AdamW::StatePart(const Tensor& state, int range, int64_t begin, int64_t end) const {
  if (state.view().empty()) return {};
  const int64_t offset = state_offsets_[range];
  return state.view().Slice(0, offset + begin, offset + end);
}

bool AdamW::Step(double learning_rate, double grad_norm, double grad_scale,
                 const BeforeOverwrite& before) {
  if (!std::isfinite(grad_norm) || !std::isfinite(grad_scale)) {
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
  if (before == nullptr) {
    std::vector<AdamWOperands> parts;
    for (const Run& run : runs_) parts.push_back(Operands(run, run.begin, run.end));
    backend_.AdamWAll({options, parts});
    return true;
  }
  for (const Run& run : runs_) {
    for (int64_t begin = run.begin; begin < run.end; begin += kPieceElements) {
      const int64_t end = std::min(begin + kPieceElements, run.end);
      const AdamWOperands piece = Operands(run, begin, end);
      for (const TensorView& memory : {piece.param, piece.master, piece.m, piece.v}) {
        if (!memory.empty()) before(memory);
      }
      backend_.AdamWAll({options, {&piece, 1}});
    }
  }
  return true;
}

AdamWOperands AdamW::Operands(const Run& run, int64_t begin, int64_t end) const {
  return {.grad = ranges_[run.range].grads.Slice(0, begin, end),
          .master = StatePart(master_, run.range, begin, end),
          .m = StatePart(exp_avg_, run.range, begin, end),
          .v = StatePart(exp_avg_sq_, run.range, begin, end),
          .param = ranges_[run.range].values.Slice(0, begin, end),
          .weight_decay = run.weight_decay ? config_.weight_decay() : 0};
}

void AdamW::Reset() {
  if (state_offsets_.back() > 0) {
    backend_.Fill({exp_avg_, 0});
    backend_.Fill({exp_avg_sq_, 0});
  }
  for (const Run& run : runs_) {
    if (!has_master_) break;
    backend_.Copy({ranges_[run.range].values.Slice(0, run.begin, run.end),
                   StatePart(master_, run.range, run.begin, run.end)});
  }
  updates_ = 0;
  skipped_in_a_row_ = 0;
}

int64_t AdamW::state_bytes() const {
  return state_offsets_.back() * ElementSize(DType::kF32) * (has_master_ ? 3 : 2);
}

std::vector<TensorView> AdamW::StateBuffers() const {
  std::vector<TensorView> buffers;
  for (const Tensor* tensor : {&master_, &exp_avg_, &exp_avg_sq_}) {
    if (!tensor->view().empty()) buffers.push_back(*tensor);
  }
  return buffers;
}

AdamW::ParameterState AdamW::State(int parameter) const {
  const Part& part = parts_[parameter];
  ParameterState state;
  if (part.range < 0) return state;
  const OwnedRange& range = ranges_[part.range];
  state.begin = range.begin + part.begin - parameters_[parameter].begin;
  state.value = range.values.Slice(0, part.begin, part.end);
  state.master = StatePart(master_, part.range, part.begin, part.end);
  state.exp_avg = StatePart(exp_avg_, part.range, part.begin, part.end);
  state.exp_avg_sq = StatePart(exp_avg_sq_, part.range, part.begin, part.end);
  return state;
}

}  // namespace tessera
