#ifndef TESSERA_TRAINER_STEP_SAMPLER_H_
#define TESSERA_TRAINER_STEP_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/mesh.h"
#include "compute/parallel/pipeline.h"
#include "models/config/config.pb.h"
#include "models/layers/model.h"
#include "trainer/step/model_chunk.h"

namespace tessera {

// Computes the probabilities of the token after a context. Every rank of the mesh makes the same
// calls.
class Sampler {
 public:
  // `shards` are the model's virtual shards. Everything must outlive the sampler.
  Sampler(const ModelConfig& config, int64_t shards, Mesh& mesh, Backend& backend,
          std::vector<ModelChunk>& chunks, Pipeline& pipeline)
      : config_(config),
        shards_(shards),
        mesh_(mesh),
        backend_(backend),
        chunks_(chunks),
        pipeline_(pipeline) {}

  // Forgets the last context. Call when the weights change.
  void Forget() { caches_.clear(); }

  // Implement Trainer's functions of these names.
  absl::StatusOr<std::vector<float>> NextLogits(std::span<const int32_t> context);
  absl::StatusOr<float> LogProbability(std::span<const float> logits, int32_t token);

 private:
  // Returns the tokens of `context` that the caches do not have; they have it after the next pass.
  // A context that does not continue the last one is computed anew.
  std::span<const int32_t> NewTokens(std::span<const int32_t> context);

  const ModelConfig& config_;
  const int64_t shards_;
  Mesh& mesh_;
  Backend& backend_;
  std::vector<ModelChunk>& chunks_;
  Pipeline& pipeline_;
  // The last context that was sampled from, by chunk; none on GPUs, and after a step.
  std::vector<KeyValueCache> caches_;
  std::vector<int32_t> cached_;  // the tokens in them
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_SAMPLER_H_
