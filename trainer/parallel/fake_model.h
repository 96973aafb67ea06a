#ifndef TESSERA_TRAINER_PARALLEL_FAKE_MODEL_H_
#define TESSERA_TRAINER_PARALLEL_FAKE_MODEL_H_

// A model for tests of what happens to gradients: its gradients are random numbers that depend on
// (parameter, contribution, element, global micro-batch) alone.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "trainer/parallel/gradient_buckets.h"
#include "trainer/parallel/gradient_observer.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

struct FakeParameter {
  std::string key;
  int64_t elements = 0;
  bool tied = false;
  bool second = false;  // with a second contribution
  bool on_two_stages = false;
  int contribution = 0;  // which one `grad` gets
};

GradientLayout FakeLayout(const std::vector<FakeParameter>& parameters);

// Of one micro-batch. Of very different sizes, so that the order of sums matters.
float FakeGradient(std::string_view key, int contribution, int64_t element, int64_t micro_batch);
// The binary tree over all micro-batches [begin, end), by the definition.
float FakeGradientTree(std::string_view key, int contribution, int64_t element, int64_t begin,
                       int64_t end);
// In fp64.
double FakeGradientSum(std::string_view key, int contribution, int64_t element,
                       int64_t micro_batches);

// The backward pass alone.
class FakeModel {
 public:
  // `told_at_once`: how many parameters Prepare() and Ready() tell together.
  FakeModel(std::vector<FakeParameter> parameters, int told_at_once)
      : parameters_(std::move(parameters)),
        layout_(FakeLayout(parameters_)),
        told_at_once_(told_at_once),
        grads_(parameters_.size(), nullptr),
        second_grads_(parameters_.size(), nullptr) {}

  const GradientLayout& layout() const { return layout_; }
  void BindGradients(int64_t begin, int64_t end, const TensorView& memory);
  absl::Status Backward(int64_t micro_batch, bool accumulate, GradientObserver& observer);
  // Where the gradient is now; null: nowhere.
  const float* grad(int parameter) const { return grads_[parameter]; }

 private:
  void Write(float* grad, int parameter, int contribution, int64_t micro_batch, bool accumulate);
  absl::Status BackwardSecond(int64_t micro_batch, bool accumulate, GradientObserver& observer);

  const std::vector<FakeParameter> parameters_;
  const GradientLayout layout_;
  const int told_at_once_;
  std::vector<float*> grads_;
  std::vector<float*> second_grads_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_PARALLEL_FAKE_MODEL_H_
