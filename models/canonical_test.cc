// What EXACT numerics promise of a model. Sums over samples do not depend on the micro-batches that
// they are computed in. Tokens that are decoded one by one, with the keys and values of those
// before, have the losses of the training pass.

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "gtest/gtest.h"
#include "models/layers/sums.h"
#include "models/testing/sharded_run.h"
#include "models/testing/test_model.h"

namespace tessera {
namespace {

using testing::ExpectBitwiseEqual;
using testing::MakeTestBatch;
using testing::MakeTestModel;
using testing::TestBatch;

constexpr int64_t kSamples = 4, kTokens = 8;

struct Kind {
  std::string name;
  DType dtype;
  int shards, ranks;
  bool sequence_parallel = false;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class CanonicalTest : public ::testing::TestWithParam<std::tuple<bool, Kind>> {
 protected:
  static ModelConfig Config() {
    return std::get<0>(GetParam()) ? testing::ShardedLlama3(false)
                                   : testing::WithDropout(testing::ShardedGpt2());
  }
  static const Kind& kind() { return std::get<1>(GetParam()); }

  // Calls body(model) on every rank.
  template <typename Body>
  static void OnRanks(const Body& body) {
    ThreadWorld world(kind().ranks);
    const absl::Status status = world.Run([&](Communicator& comm) {
      const auto backend = MakeCpuBackend(1, /*exact=*/true);
      const TensorParallel tensor_parallel(&comm, kind().shards, kind().sequence_parallel);
      ModelOptions options;
      options.compute_dtype = kind().dtype;
      options.tensor_parallel = &tensor_parallel;
      options.separate_tied_gradients = true;
      options.sums_by_unit = true;
      const std::unique_ptr<Model> model = MakeTestModel(Config(), options, *backend);
      testing::RandomizeWeights(*model, 5);
      return body(*model, *backend);
    });
    EXPECT_OK(status);
  }

  static MicroBatch Samples(const TestBatch& all, int64_t begin, int64_t end) {
    MicroBatch batch = all.batch;
    batch.ids = batch.ids.Slice(0, begin, end);
    batch.targets = batch.targets.Slice(0, begin, end);
    batch.first_sample += begin;
    return batch;
  }
};

TEST_P(CanonicalTest, MicroBatchesOfAnySizeHaveOneSum) {
  OnRanks([](Model& model, Backend& backend) -> absl::Status {
    const TestBatch data = MakeTestBatch(kSamples, kTokens, Config().vocab_size(), 7);
    const TensorView gradients = model.parameters().grads();
    Tensor expected;
    double expected_loss = 0;
    for (const int64_t size : {1, 2, 4}) {
      const int64_t count = kSamples / size;
      const Tensor parts(DType::kF32, {count, gradients.elements()});
      std::vector<double> losses;
      for (int64_t i = 0; i < count; ++i) {
        const MicroBatch batch = Samples(data, i * size, (i + 1) * size);
        const auto activations = model.NewActivations(size, kTokens, ActivationUse::kTraining);
        TESSERA_ASSIGN_OR_RETURN(const double loss, model.Forward(batch, *activations, {}, {}));
        losses.push_back(loss);
        TESSERA_RETURN_IF_ERROR(model.Backward(batch, *activations, /*loss_scale=*/0.25,
                                               /*accumulate=*/false, {}, {}, nullptr));
        backend.Copy({gradients, PartOf(parts, i)});
      }
      AddInTree(backend, parts, 0, count);
      const double loss = losses.size() == 4   ? (losses[0] + losses[1]) + (losses[2] + losses[3])
                          : losses.size() == 2 ? losses[0] + losses[1]
                                               : losses[0];
      if (size == 1) {
        expected = testing::Cloned(PartOf(parts, 0));
        expected_loss = loss;
      }
      EXPECT_EQ(loss, expected_loss) << size;
      for (const Parameter* parameter : model.parameters().parameters()) {
        for (const int64_t begin : {parameter->flat_offset, parameter->second_grad_offset}) {
          if (begin < 0) continue;
          const int64_t end = begin + parameter->elements();
          ExpectBitwiseEqual(PartOf(parts, 0).Slice(0, begin, end),
                             expected.view().Slice(0, begin, end),
                             parameter->key + " of micro-batches of " + std::to_string(size));
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(CanonicalTest, DecodingHasTheLossesOfTheTrainingPass) {
  OnRanks([](Model& model, Backend&) -> absl::Status {
    const int64_t vocabulary = Config().vocab_size();
    const TestBatch data = MakeTestBatch(kSamples, kTokens, vocabulary, 7);
    const int32_t* const ids = data.ids.view().as<int32_t>();
    // The loss of every token of the first sample, in the pass over all samples.
    std::vector<double> expected;
    const auto training = model.NewActivations(kSamples, kTokens, ActivationUse::kTraining);
    for (int64_t t = 0; t + 1 < kTokens; ++t) {
      const Tensor targets(DType::kI32, {kSamples, kTokens});
      int32_t* const target = targets.view().as<int32_t>();
      for (int64_t i = 0; i < kSamples * kTokens; ++i) target[i] = i == t ? ids[t + 1] : -1;
      MicroBatch batch = data.batch;
      batch.targets = targets;
      batch.training = false;
      TESSERA_ASSIGN_OR_RETURN(const double loss, model.Forward(batch, *training, {}, {}));
      expected.push_back(loss);
    }
    for (const int64_t prompt : {1, 5}) {
      KeyValueCache cache = model.NewCache(kTokens);
      for (int64_t begin = 0, end = prompt; end < kTokens; begin = end++) {
        const auto activations = model.NewActivations(1, end - begin, ActivationUse::kForwardOnly);
        const Tensor targets(DType::kI32, {1, end - begin});
        for (int64_t i = begin; i < end; ++i) {
          targets.view().as<int32_t>()[i - begin] = i + 1 == end ? ids[end] : -1;
        }
        const MicroBatch batch = {.ids = data.ids.view().Slice(0, 0, 1).Slice(1, begin, end),
                                  .targets = targets,
                                  .cache = &cache};
        TESSERA_ASSIGN_OR_RETURN(const double loss, model.Forward(batch, *activations, {}, {}));
        EXPECT_EQ(loss, expected[end - 1]) << "token " << end << " after a prompt of " << prompt;
      }
      EXPECT_EQ(cache.tokens, kTokens - 1);
    }
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(All, CanonicalTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Kind{"Fp32", DType::kF32, 1, 1},
                                                              Kind{"Bf16", DType::kBF16, 1, 1},
                                                              Kind{"Fp32Shards", DType::kF32, 4, 1},
                                                              Kind{"Fp32Tp2", DType::kF32, 2, 2},
                                                              Kind{"Bf16Tp2Sp", DType::kBF16, 4, 2,
                                                                   true})),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Llama3" : "Gpt2") +
                                  std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace tessera
