#ifndef TESSERA_COMPUTE_PARALLEL_TESTING_FAKE_MODEL_H_
#define TESSERA_COMPUTE_PARALLEL_TESTING_FAKE_MODEL_H_

// A model for tests of gradient processing: its gradients are random numbers that depend only on
// (parameter, contribution, element, global micro-batch).

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/parallel/gradient_buckets.h"
#include "tensor/tensor.h"

namespace tessera {

struct FakeParameter {
  std::string key;
  int64_t elements = 0;
  bool tied = false;
  bool second = false;  // with a second gradient
  bool on_two_stages = false;
  int contribution = 0;  // the one that `grad` receives
};

GradientLayout FakeLayout(const std::vector<FakeParameter>& parameters);

// Returns the gradient of one micro-batch. Magnitudes vary widely, so that the order of sums
// matters.
float FakeGradient(std::string_view key, int contribution, int64_t element, int64_t micro_batch);
// Returns the sum in the binary tree over all micro-batches [begin, end), by its definition.
float FakeGradientTree(std::string_view key, int contribution, int64_t element, int64_t begin,
                       int64_t end);
// A model that has only a backward pass.
class FakeModel {
 public:
  // `parameters_per_call` is the number of parameters per call of Prepare() and Ready().
  FakeModel(std::vector<FakeParameter> parameters, int parameters_per_call)
      : parameters_(std::move(parameters)),
        layout_(FakeLayout(parameters_)),
        parameters_per_call_(parameters_per_call),
        grads_(parameters_.size(), nullptr),
        second_grads_(parameters_.size(), nullptr) {}

  const GradientLayout& layout() const { return layout_; }
  void BindGradients(int64_t begin, int64_t end, const TensorView& memory);
  absl::Status Backward(int64_t micro_batch, bool accumulate, GradientObserver& observer);
  // Returns the current address of a gradient; null if it has no memory.
  const float* grad(int parameter) const { return grads_[parameter]; }

 private:
  void Write(float* grad, int parameter, int contribution, int64_t micro_batch, bool accumulate);
  absl::Status BackwardSecond(int64_t micro_batch, bool accumulate, GradientObserver& observer);

  const std::vector<FakeParameter> parameters_;
  const GradientLayout layout_;
  const int parameters_per_call_;
  std::vector<float*> grads_;
  std::vector<float*> second_grads_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_TESTING_FAKE_MODEL_H_
