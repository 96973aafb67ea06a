#ifndef TESSERA_MODELS_TESTING_TEST_MODEL_H_
#define TESSERA_MODELS_TESTING_TEST_MODEL_H_

#include <cstdint>
#include <memory>

#include "models/config/config.pb.h"
#include "models/layers/model.h"
#include "tensor/tensor.h"

namespace tessera::testing {

// Small configurations with distinct extents, so that swapped dims are detected.
ModelConfig SmallGpt2();
ModelConfig SmallLlama3(bool tied);  // grouped-query attention, effective RoPE scaling

// Builds the model or fails the test program.
std::unique_ptr<Model> MakeTestModel(const ModelConfig& config, const ModelOptions& options,
                                     Backend& backend);

// Draws every weight from the same random numbers in fp32 and fp64, deviation 0.2, norms' weights
// around one, biases too, so that gradients of every kind are far from zero.
void RandomizeWeights(Model& model, uint64_t seed);

// A micro-batch of random tokens that owns its buffers; one target is ignored.
struct TestBatch {
  Tensor ids;
  Tensor targets;
  MicroBatch batch;
};
TestBatch MakeTestBatch(int64_t batch, int64_t sequence, int64_t vocab_size, uint64_t seed);

// Runs one forward and backward pass in fresh activations; returns the sum of the losses.
double ForwardBackward(Model& model, const MicroBatch& batch, ActivationUse use, double loss_scale,
                       bool accumulate);

}  // namespace tessera::testing

#endif  // TESSERA_MODELS_TESTING_TEST_MODEL_H_
