#ifndef TESSERA_MODELS_TESTING_SHARDED_RUN_H_
#define TESSERA_MODELS_TESTING_SHARDED_RUN_H_

// Models under tensor parallelism: runs the same forward and backward passes on any number of
// ranks, and assembles their results.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layout/topology.h"
#include "models/config/config.pb.h"
#include "models/layers/model.h"
#include "models/layers/parameter.h"
#include "tensor/tensor.h"

namespace tessera::testing {

// Small configurations that are divisible by four shards; the last shard of the vocabulary has no
// token at all.
ModelConfig ShardedGpt2();
ModelConfig ShardedLlama3(bool tied);  // grouped-query attention
ModelConfig WithDropout(ModelConfig config);

struct ShardedRun {
  ModelConfig config;
  DType dtype = DType::kF32;  // kF64: the reference backend
  int shards = 1;
  int ranks = 1;
  bool sequence_parallel = false;
  ActivationUse use = ActivationUse::kTraining;
  int64_t batch = 3;
  int64_t sequence = 8;
  int micro_batches = 1;
  bool separate_tied_gradients = false;
  bool sums_by_unit = false;
  std::vector<std::optional<ChunkLayers>> stages = {std::nullopt};  // run one after the other
};

// Tensors by Parameter::key. Second contributions are at key + "/second"; if a tied table is on two
// stages, the last stage's is at key + "/last".
using TensorsByKey = std::map<std::string, Tensor>;

struct ShardedResult {
  double loss = 0;
  std::map<std::string, Parameter> parameters;  // their views are dead
  TensorsByKey values;
  TensorsByKey grads;
  Tensor last_logits;            // [B,V], of the last micro-batch, without dropout
  int64_t activation_bytes = 0;  // of rank 0, all stages
};

// Runs a model with random weights and tokens. Fails the test if ranks disagree about the loss, the
// logits or replicated tensors.
ShardedResult RunSharded(const ShardedRun& run);

// Returns `tensors` (values or grads) as logical tensors: name -> [global shape], fp64. Fails the
// test if an element is missing or there twice.
std::map<std::string, Tensor> Logical(const ShardedResult& result, const TensorsByKey& tensors);

// Expects the same losses, gradients and logits, to the bit, of results with the same number of
// shards.
void ExpectSameBits(const ShardedResult& actual, const ShardedResult& expected,
                    const std::string& what);

}  // namespace tessera::testing

#endif  // TESSERA_MODELS_TESTING_SHARDED_RUN_H_
