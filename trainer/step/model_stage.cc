#include "trainer/step/model_stage.h"

#include <cstddef>
#include <limits>
#include <optional>

#include "base/status_macros.h"
#include "base/trace.h"
#include "glog/logging.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

// Until there is one.
constexpr double kNoLoss = std::numeric_limits<double>::quiet_NaN();

std::span<int32_t> Span(const Tensor& tensor) {
  return {tensor.view().as<int32_t>(), static_cast<size_t>(tensor.view().elements())};
}

// Calls fill(ids, targets) with host memory whose contents the slot's tensors become.
template <typename Fill>
absl::Status FillSlot(Backend& backend, const BatchSlot& slot, const Fill& fill) {
  const TraceSpan span("data", "read samples");
  if (backend.device().type == DeviceType::kCpu) return fill(Span(slot.ids), Span(slot.targets));
  const auto elements = static_cast<size_t>(slot.ids.view().elements());
  std::vector<int32_t> ids(elements), targets(elements);
  TESSERA_RETURN_IF_ERROR(fill(std::span(ids), std::span(targets)));
  backend.Upload(ids.data(), slot.ids);
  backend.Upload(targets.data(), slot.targets);
  return absl::OkStatus();
}

}  // namespace

MicroBatch TrainingStage::Batch(const PipelinePass& pass) {
  ModelChunk& chunk = chunks_[pass.chunk];
  const BatchSlot& slot = chunk.slot(pass.slot);
  std::optional<BackwardCall> follows;
  if (BackwardFollows(pass)) {
    follows = {step_.loss_scale, chunk.reducer().accumulate(), &chunk.reducer()};
  }
  return {.ids = slot.ids,
          .targets = slot.targets,
          .step = step_.step,
          .first_sample = GlobalMicroBatch(step_.split, step_.data_rank, LocalMicroBatch(pass)) *
                          step_.micro_batch_size,
          .training = true,
          .backward_follows = follows};
}

absl::StatusOr<double> TrainingStage::Forward(const PipelinePass& pass, TensorView input,
                                              TensorView output) {
  ModelChunk& chunk = chunks_[pass.chunk];
  const BatchSlot& slot = chunk.slot(pass.slot);
  if (BackwardFollows(pass)) chunk.reducer().StartMicroBatch(pass.micro_batch);
  MicroBatch batch = Batch(pass);
  PassTrace* const trace = TraceOf(pass);
  const bool late = chunk.has_head() && trace == nullptr;
  if (late) batch.late_loss = losses_[pass.micro_batch] = std::make_shared<double>(kNoLoss);
  if (chunk.reads_data()) {
    const auto fill = [&](std::span<int32_t> ids, std::span<int32_t> targets) {
      return step_.data->FillBatch(step_.consumed_samples, batch.first_sample,
                                   step_.micro_batch_size, ids, targets);
    };
    TESSERA_RETURN_IF_ERROR(FillSlot(chunk.backend(), slot, fill));
  }
  TESSERA_ASSIGN_OR_RETURN(const double loss,
                           chunk.model().Forward(batch, *slot.activations, input, output));
  if (trace != nullptr) trace->AddForward(pass.chunk, output, loss);
  if (chunk.has_head() && !late) losses_[pass.micro_batch] = std::make_shared<double>(loss);
  return loss;
}

std::vector<double> TrainingStage::Losses() const {
  std::vector<double> losses;
  for (const auto& [micro_batch, loss] : losses_) losses.push_back(*loss);
  return losses;
}

absl::Status TrainingStage::Backward(const PipelinePass& pass, TensorView d_output,
                                     TensorView d_input) {
  ModelChunk& chunk = chunks_[pass.chunk];
  if (step_.replays) {
    ScratchGradients scratch(chunk.parameters(), chunk.backend().device());
    return Backward(pass, d_output, d_input, /*accumulate=*/false, scratch);
  }
  GradientReducer& reducer = chunk.reducer();
  if (!BackwardFollows(pass)) reducer.StartMicroBatch(pass.micro_batch);
  return Backward(pass, d_output, d_input, reducer.accumulate(), reducer);
}

absl::Status TrainingStage::Backward(const PipelinePass& pass, TensorView d_output,
                                     TensorView d_input, bool accumulate,
                                     GradientObserver& gradients) {
  ModelChunk& chunk = chunks_[pass.chunk];
  const auto backward = [&](GradientObserver& observer) {
    return chunk.model().Backward(Batch(pass), *chunk.slot(pass.slot).activations, step_.loss_scale,
                                  accumulate, d_output, d_input, &observer);
  };
  PassTrace* const trace = TraceOf(pass);
  if (trace == nullptr) return backward(gradients);
  CHECK(!accumulate) << "micro-batch " << step_.traced << " has no gradient of its own";
  TracedGradients traced(*trace, pass.chunk, chunk.parameters(), gradients);
  TESSERA_RETURN_IF_ERROR(backward(traced));
  trace->AddBackward(pass.chunk, d_input);
  return absl::OkStatus();
}

EvaluationStage::EvaluationStage(std::vector<ModelChunk>& chunks, const BatchLoader& data,
                                 const BatchShape& shape, std::span<const int64_t> micro_batches)
    : chunks_(chunks), data_(data), shape_(shape), micro_batches_(micro_batches) {
  for (const ModelChunk& chunk : chunks) {
    slots_.emplace_back(chunk.model(), chunk.backend().device(), shape.batch, shape.sequence,
                        ActivationUse::kForwardOnly);
  }
}

absl::StatusOr<double> EvaluationStage::Forward(const PipelinePass& pass, TensorView input,
                                                TensorView output) {
  ModelChunk& chunk = chunks_[pass.chunk];
  const BatchSlot& slot = slots_[pass.chunk];
  const int64_t first = micro_batches_[first_ + pass.micro_batch] * shape_.batch;
  if (chunk.reads_data()) {
    const auto fill = [&](std::span<int32_t> ids, std::span<int32_t> targets) {
      return data_.FillEvaluationBatch(first, shape_.batch, ids, targets);
    };
    TESSERA_RETURN_IF_ERROR(FillSlot(chunk.backend(), slot, fill));
  }
  const MicroBatch batch{.ids = slot.ids, .targets = slot.targets, .first_sample = first};
  return chunk.model().Forward(batch, *slot.activations, input, output);
}

absl::Status EvaluationStage::Backward(const PipelinePass&, TensorView, TensorView) {
  LOG(FATAL) << "an evaluation has no backward pass";
}

absl::StatusOr<double> SamplingStage::Forward(const PipelinePass& pass, TensorView input,
                                              TensorView output) {
  ModelChunk& chunk = chunks_[pass.chunk];
  AllocationScope allocations;
  const BatchSlot slot(chunk.model(), chunk.backend().device(), 1,
                       static_cast<int64_t>(tokens_.size()), ActivationUse::kForwardOnly);
  TESSERA_RETURN_IF_ERROR(allocations.End());
  chunk.backend().Upload(tokens_.data(), slot.ids);
  const MicroBatch batch{.ids = slot.ids,
                         .cache = caches_.empty() ? nullptr : &caches_[pass.chunk]};
  TESSERA_RETURN_IF_ERROR(chunk.model().Forward(batch, *slot.activations, input, output).status());
  if (!chunk.has_head()) return 0.0;
  TESSERA_RETURN_IF_ERROR(chunk.model().LastLogits(batch, *slot.activations, logits_));
  return 0.0;
}

absl::Status SamplingStage::Backward(const PipelinePass&, TensorView, TensorView) {
  LOG(FATAL) << "sampling has no backward pass";
}

}  // namespace tessera
