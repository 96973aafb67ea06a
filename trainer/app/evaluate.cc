#include "trainer/app/evaluate.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "checkpoint/base/status_macros.h"

namespace tessera {
namespace {

std::span<int32_t> Span(const Tensor& tensor) {
  return {tensor.view().as<int32_t>(), static_cast<size_t>(tensor.view().elements())};
}

}  // namespace

Evaluator::Evaluator(Model& model, const BatchLoader& loader, int64_t samples, int64_t batch,
                     int64_t sequence)
    : model_(model),
      loader_(loader),
      samples_(std::min(samples, loader.order().num_samples())),
      batch_(std::min(batch, samples_)),
      sequence_(sequence) {}

absl::StatusOr<EvalMetrics> Evaluator::Run() {
  const auto start = std::chrono::steady_clock::now();
  if (activations_ == nullptr) {
    ids_ = Tensor(DType::kI32, {batch_, sequence_});
    targets_ = Tensor(DType::kI32, {batch_, sequence_});
    activations_ = model_.NewActivations(batch_, sequence_, ActivationUse::kForwardOnly);
  }
  EvalMetrics metrics;
  double loss_sum = 0;
  for (int64_t first = 0; first + batch_ <= samples_; first += batch_) {
    TESSERA_RETURN_IF_ERROR(loader_.FillEvaluationBatch(first, batch_, Span(ids_), Span(targets_)));
    const MicroBatch batch{.ids = ids_, .targets = targets_, .first_sample = first};
    TESSERA_ASSIGN_OR_RETURN(const double loss, model_.Forward(batch, *activations_, {}, {}));
    loss_sum += loss;
    metrics.tokens += batch_ * sequence_;
  }
  metrics.loss = loss_sum / static_cast<double>(metrics.tokens);
  metrics.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return metrics;
}

}  // namespace tessera
