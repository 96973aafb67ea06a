#include "trainer/step/sampler.h"

#include <algorithm>
#include <iterator>

#include "base/status_macros.h"
#include "comm/communicator.h"
#include "models/config/config_checks.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"
#include "trainer/step/model_stage.h"

namespace tessera {

std::span<const int32_t> Sampler::NewTokens(std::span<const int32_t> context) {
  if (backend_.device().type != DeviceType::kCpu) return context;
  const bool fits = !caches_.empty() && std::ssize(context) <= caches_.front().capacity;
  if (!fits) {
    caches_.clear();
    for (const ModelChunk& chunk : chunks_) {
      caches_.push_back(chunk.model().NewCache(2 * std::ssize(context)));
    }
  }
  const bool continues = fits && cached_.size() < context.size() &&
                         std::equal(cached_.begin(), cached_.end(), context.begin());
  if (!continues) {
    cached_.clear();
    for (KeyValueCache& cache : caches_) cache.tokens = 0;
  }
  const std::span<const int32_t> rest = context.subspan(cached_.size());
  cached_.insert(cached_.end(), rest.begin(), rest.end());
  return rest;
}

absl::StatusOr<std::vector<float>> Sampler::NextLogits(std::span<const int32_t> context) {
  const std::span<const int32_t> tokens = NewTokens(context);
  const int64_t length = static_cast<int64_t>(tokens.size());
  AllocationScope allocations;
  const Tensor logits(DType::kF32, {1, config_.vocab_size()}, backend_.device());
  TESSERA_RETURN_IF_ERROR(allocations.End());
  SamplingStage stage(chunks_, caches_, tokens, logits);
  TESSERA_RETURN_IF_ERROR(
      pipeline_.Forward(stage, 1, chunks_.front().model().BoundaryRows(1, length)).status());
  std::vector<float> values(logits.view().elements());
  if (mesh_.last_stage()) backend_.Download(logits, values.data());
  TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
  if (Communicator* const pipeline = mesh_.host().pipeline; pipeline != nullptr) {
    TESSERA_RETURN_IF_ERROR(pipeline->Broadcast(values, mesh_.topology().pipeline - 1,
                                                {.what = "logits of the next token"}));
  }
  return values;
}

// Computes as the head does: the logits of virtual shards in the compute dtype, then statistics.
absl::StatusOr<float> Sampler::LogProbability(std::span<const float> logits, int32_t token) {
  const int64_t vocabulary = std::ssize(logits), shards = shards_;
  const int64_t rows = PaddedVocabSize(config_, shards) / shards;
  AllocationScope allocations;
  const Device device = backend_.device();
  const Tensor all(DType::kF32, {1, vocabulary}, device), target(DType::kI32, {1}, device);
  const Tensor shard(chunks_.front().parameters().values().view().dtype(), {1, rows}, device);
  const Tensor stats(DType::kF32, {shards, 1, 3}, device), combined(DType::kF32, {1, 3}, device);
  const Tensor loss(DType::kF32, {1}, device);
  TESSERA_RETURN_IF_ERROR(allocations.End());
  backend_.Upload(logits.data(), all);
  backend_.Upload(&token, target);
  for (int64_t v = 0; v < shards; ++v) {
    const int64_t begin = std::min(v * rows, vocabulary), end = std::min(begin + rows, vocabulary);
    if (begin < end) {
      backend_.Copy({all.view().Slice(1, begin, end), shard.view().Slice(1, 0, end - begin)});
    }
    backend_.CrossEntropyStats(
        {shard, end - begin, target, v * rows, stats.view().Slice(0, v, v + 1).Reshape({1, 3})});
  }
  backend_.CrossEntropyLoss({stats, target, combined, loss});
  float result = 0;
  backend_.Download(loss, &result);
  TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
  return -result;
}

}  // namespace tessera
