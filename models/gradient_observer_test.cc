// The calls that observers of the backward pass receive, and gradients whose memory is allocated
// and freed during the pass.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/parallel/gradient_buckets.h"
#include "compute/parallel/tensor_parallel.h"
#include "gtest/gtest.h"
#include "models/layers/model.h"
#include "models/testing/sharded_run.h"
#include "models/testing/test_model.h"

namespace tessera {
namespace {

using testing::ExpectBitwiseEqual;
using testing::MakeTestBatch;
using testing::MakeTestModel;
using testing::RandomizeWeights;
using testing::ShardedGpt2;
using testing::ShardedLlama3;
using testing::TestBatch;

struct ObservedCase {
  std::string name;
  ModelConfig config;
  std::optional<ChunkLayers> stage;
  bool separate_tied_gradients = false;
};
std::ostream& operator<<(std::ostream& out, const ObservedCase& c) { return out << c.name; }

// Allocates memory for gradients when they are prepared, fills it with garbage, copies them when
// they are ready, and frees the memory.
class LendingObserver final : public GradientObserver {
 public:
  LendingObserver(ParameterSet& parameters, Backend& backend)
      : parameters_(parameters),
        backend_(backend),
        prepared_(parameters.gradient_elements()),
        ready_(parameters.gradient_elements()),
        result_(parameters.grad_dtype(), {parameters.gradient_elements()}) {}

  absl::Status Prepare(int64_t begin, int64_t end) override {
    for (int64_t i = begin; i < end; ++i) ++prepared_[i];
    const TensorView memory = result_.view().Slice(0, begin, end);
    backend_.Fill({memory, 1e3});
    parameters_.BindGradients(begin, end, memory);
    return absl::OkStatus();
  }
  absl::Status Ready(int64_t begin, int64_t end) override {
    EXPECT_TRUE(std::all_of(prepared_.begin() + begin, prepared_.begin() + end,
                            [](int count) { return count == 1; }))
        << "[" << begin << ", " << end << ")";
    for (int64_t i = begin; i < end; ++i) ++ready_[i];
    ready_ranges_.emplace_back(begin, end);
    parameters_.BindGradients(begin, end, {});
    return absl::OkStatus();
  }

  const std::vector<int>& prepared() const { return prepared_; }
  const std::vector<int>& ready() const { return ready_; }
  const std::vector<std::pair<int64_t, int64_t>>& ready_ranges() const { return ready_ranges_; }
  const Tensor& result() const { return result_; }

 private:
  ParameterSet& parameters_;
  Backend& backend_;
  std::vector<int> prepared_, ready_;
  std::vector<std::pair<int64_t, int64_t>> ready_ranges_;
  Tensor result_;
};

class GradientObserverTest : public ::testing::TestWithParam<ObservedCase> {
 protected:
  GradientObserverTest() : backend_(MakeReferenceBackend()), tensor_parallel_(nullptr, 2, false) {}

  std::unique_ptr<Model> Make(bool with_gradients) {
    ModelOptions options;
    options.compute_dtype = DType::kF64;
    options.with_gradients = with_gradients;
    options.stage = GetParam().stage;
    options.separate_tied_gradients = GetParam().separate_tied_gradients;
    options.tensor_parallel = &tensor_parallel_;
    auto model = MakeTestModel(GetParam().config, options, *backend_);
    RandomizeWeights(*model, 3);
    return model;
  }

  absl::Status Backward(Model& model, GradientObserver* observer, bool follows = false) {
    MicroBatch batch = batch_.batch;
    if (follows) batch.backward_follows = {0.1, /*accumulate=*/false, observer};
    const ChunkLayers stage = GetParam().stage.value_or(AllLayers(2));
    const auto activations = model.NewActivations(2, 5, ActivationUse::kTraining);
    Tensor input, output, d_input, d_output;
    const auto boundary = [&](double value) {
      Tensor x(DType::kF64, {model.BoundaryRows(2, 5), GetParam().config.hidden_size()});
      backend_->Fill({x, value});
      return x;
    };
    if (!stage.has_embedding) input = boundary(0.5), d_input = boundary(0);
    if (!stage.has_head) output = boundary(0), d_output = boundary(0.5);
    TESSERA_RETURN_IF_ERROR(model.Forward(batch, *activations, input, output).status());
    if (const auto* const lending = dynamic_cast<LendingObserver*>(observer)) {
      EXPECT_EQ(lending->prepared().back(), follows && stage.has_head ? 1 : 0)
          << "the head's gradients, after the forward pass";
    }
    return model.Backward(batch, *activations, 0.1, /*accumulate=*/false, d_output, d_input,
                          observer);
  }

  // That every element was prepared and ready once, in reverse order, with the expected gradients.
  static void Compare(const Model& expected, const LendingObserver& observer) {
    const ParameterSet& parameters = expected.parameters();
    const std::vector<int> once(parameters.gradient_elements(), 1);
    EXPECT_EQ(observer.prepared(), once);
    EXPECT_EQ(observer.ready(), once);
    int64_t begin = parameters.gradient_elements();
    for (const auto& range : observer.ready_ranges()) {
      EXPECT_EQ(range.second, begin);
      begin = range.first;
    }
    EXPECT_GE(observer.ready_ranges().size(), 2u);  // layers are announced one by one

    const auto check = [&](int64_t offset, const TensorView& wanted, const std::string& what) {
      const TensorView found =
          observer.result().view().Slice(0, offset, offset + wanted.elements());
      ExpectBitwiseEqual(found.Reshape(wanted.shape()), wanted, what);
    };
    for (const Parameter* parameter : expected.parameters().parameters()) {
      EXPECT_EQ(parameter->flat_offset % 256, 0) << parameter->key;
      check(parameter->flat_offset, parameter->grad, parameter->key);
      if (!parameter->has_second_grad) continue;
      EXPECT_GE(parameter->second_grad_offset, parameters.flat_elements());
      check(parameter->second_grad_offset, parameter->second_grad, parameter->key + "/second");
    }
  }

  const std::unique_ptr<Backend> backend_;
  const TensorParallel tensor_parallel_;
  const TestBatch batch_ = MakeTestBatch(2, 5, GetParam().config.vocab_size(), 1);
};

TEST_P(GradientObserverTest, EveryElementIsPreparedAndReadyOnceInReverseOrder) {
  const auto expected = Make(/*with_gradients=*/true);
  ASSERT_OK(Backward(*expected, nullptr));

  for (const bool follows : {false, true}) {
    const auto model = Make(/*with_gradients=*/false);
    ParameterSet& parameters = model->parameters();
    EXPECT_EQ(parameters.gradient_elements(), expected->parameters().gradient_elements());
    LendingObserver observer(parameters, *backend_);
    ASSERT_EQ(Backward(*model, &observer, follows), absl::OkStatus());
    Compare(*expected, observer);
  }
}

class FailingObserver final : public GradientObserver {
 public:
  explicit FailingObserver(int calls) : calls_(calls) {}
  absl::Status Prepare(int64_t, int64_t) override { return Next(); }
  absl::Status Ready(int64_t, int64_t) override { return Next(); }

 private:
  absl::Status Next() {
    return calls_-- > 0 ? absl::OkStatus() : absl::UnavailableError("rank 3 is gone");
  }
  int calls_;
};

TEST_P(GradientObserverTest, AnErrorEndsTheBackwardPass) {
  const auto model = Make(/*with_gradients=*/true);
  for (const int calls : {0, 1, 2, 3}) {
    FailingObserver observer(calls);
    EXPECT_EQ(Backward(*model, &observer).message(), "rank 3 is gone") << calls;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, GradientObserverTest,
    ::testing::Values(
        ObservedCase{"Gpt2", ShardedGpt2(), {}}, ObservedCase{"Gpt2Apart", ShardedGpt2(), {}, true},
        ObservedCase{"Gpt2First", ShardedGpt2(), {{.last = 1, .has_embedding = true}}},
        ObservedCase{"Gpt2Last", ShardedGpt2(), {{.first = 1, .last = 2, .has_head = true}}},
        ObservedCase{"Gpt2Middle", ShardedGpt2(), {{.last = 2}}},
        ObservedCase{"Llama3Tied", ShardedLlama3(true), {}},
        ObservedCase{"Llama3Apart", ShardedLlama3(true), {}, true},
        ObservedCase{"Llama3TiedLast",
                     ShardedLlama3(true),
                     {{.first = 1, .last = 2, .has_head = true}},
                     true},
        ObservedCase{"Llama3Untied", ShardedLlama3(false), {}, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
