#include "models/testing/sharded_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "gtest/gtest.h"
#include "models/testing/test_model.h"

namespace tessera::testing {

ModelConfig ShardedGpt2() {
  ModelConfig config = SmallGpt2();
  config.set_hidden_size(16);
  config.set_num_attention_heads(4);
  config.set_vocab_size(9);
  config.set_make_vocab_size_divisible_by(2);  // 12 rows for four shards: 3, 3, 3, none
  return config;
}

ModelConfig ShardedLlama3(bool tied) {
  ModelConfig config = SmallLlama3(tied);
  config.set_hidden_size(32);
  config.set_num_attention_heads(8);
  config.set_num_query_groups(4);
  config.set_vocab_size(13);
  config.set_make_vocab_size_divisible_by(4);
  return config;
}

ModelConfig WithDropout(ModelConfig config) {
  config.set_hidden_dropout(0.3);
  config.set_attention_dropout(0.2);
  return config;
}

namespace {

// The stages of one rank, as one model.
class RankRun {
 public:
  RankRun(const ShardedRun& run, Communicator& comm)
      : run_(run),
        backend_(run.dtype == DType::kF64 ? MakeReferenceBackend() : MakeCpuBackend(1)),
        tensor_parallel_(&comm, run.shards, run.sequence_parallel) {
    ModelOptions options;
    options.compute_dtype = run.dtype;
    options.tensor_parallel = &tensor_parallel_;
    options.separate_tied_gradients = run.separate_tied_gradients;
    options.sums_by_unit = run.sums_by_unit;
    for (const std::optional<ChunkLayers>& stage : run.stages) {
      options.stage = stage;
      stages_.push_back(MakeTestModel(run.config, options, *backend_));
      RandomizeWeights(*stages_.back(), 5);
    }
  }

  absl::Status Train(ShardedResult& result) {
    const auto activations = NewActivations(run_.use);
    for (const auto& each : activations) result.activation_bytes += each->bytes();
    for (int i = 0; i < run_.micro_batches; ++i) {
      const TestBatch data = Batch(i);
      TESSERA_ASSIGN_OR_RETURN(const double loss, Forward(data.batch, activations));
      result.loss += loss;
      TESSERA_RETURN_IF_ERROR(Backward(data.batch, activations, /*accumulate=*/i > 0));
    }
    for (const std::unique_ptr<Model>& stage : stages_) {
      for (const Parameter* parameter : stage->parameters().parameters()) {
        const bool again = result.parameters.contains(parameter->key);
        const std::string key = parameter->key + (again ? "/last" : "");
        result.parameters[key] = *parameter;
        result.values[key] = Cloned(parameter->value);
        result.grads[key] = Cloned(parameter->grad);
        if (parameter->second_grad.empty()) continue;
        result.grads[key + "/second"] = Cloned(parameter->second_grad);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Sample(ShardedResult& result) {
    const TestBatch data = Batch(run_.micro_batches - 1);
    MicroBatch batch = data.batch;
    batch.targets = {};
    batch.training = false;
    const auto activations = NewActivations(ActivationUse::kForwardOnly);
    TESSERA_RETURN_IF_ERROR(Forward(batch, activations).status());
    result.last_logits = Tensor(DType::kF32, {run_.batch, run_.config.vocab_size()});
    return stages_.back()->LastLogits(batch, *activations.back(), result.last_logits);
  }

 private:
  using AllActivations = std::vector<std::unique_ptr<Activations>>;

  TestBatch Batch(int i) const {
    TestBatch data = MakeTestBatch(run_.batch, run_.sequence, run_.config.vocab_size(), 7 + i);
    data.batch.first_sample += i * run_.batch;
    return data;
  }

  AllActivations NewActivations(ActivationUse use) const {
    AllActivations activations;
    for (const auto& stage : stages_) {
      activations.push_back(stage->NewActivations(run_.batch, run_.sequence, use));
    }
    return activations;
  }

  // What passes between stages, by boundary; the ends are empty.
  std::vector<Tensor> Boundaries() const {
    std::vector<Tensor> boundaries(stages_.size() + 1);
    for (size_t i = 1; i < stages_.size(); ++i) {
      boundaries[i] = Tensor(run_.dtype, {stages_[i]->BoundaryRows(run_.batch, run_.sequence),
                                          run_.config.hidden_size()});
    }
    return boundaries;
  }

  absl::StatusOr<double> Forward(const MicroBatch& batch, const AllActivations& activations) {
    const std::vector<Tensor> x = Boundaries();
    double sum = 0;
    for (size_t i = 0; i < stages_.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const double loss,
                               stages_[i]->Forward(batch, *activations[i], x[i], x[i + 1]));
      sum += loss;
    }
    return sum;
  }

  absl::Status Backward(const MicroBatch& batch, const AllActivations& activations,
                        bool accumulate) {
    const std::vector<Tensor> d = Boundaries();
    for (size_t i = stages_.size(); i-- > 0;) {
      TESSERA_RETURN_IF_ERROR(stages_[i]->Backward(batch, *activations[i], /*loss_scale=*/0.25,
                                                   accumulate, d[i + 1], d[i], nullptr));
    }
    return absl::OkStatus();
  }

  const ShardedRun& run_;
  const std::unique_ptr<Backend> backend_;
  const TensorParallel tensor_parallel_;
  std::vector<std::unique_ptr<Model>> stages_;
};

// Moves `from` into `to`; what both have must be the same.
void Merge(TensorsByKey&& from, TensorsByKey& to) {
  for (auto& [key, tensor] : from) {
    const auto it = to.find(key);
    if (it == to.end()) {
      to[key] = std::move(tensor);
    } else {
      ExpectBitwiseEqual(tensor, it->second, "replicated " + key);
    }
  }
}

double At(const Tensor& tensor, int64_t i) {
  return testing::At(tensor.view().Reshape({tensor.view().elements()}), {i});
}

// Calls visit(flat index in the buffer, flat index in the logical tensor) for a piece's elements.
template <typename Visit>
void ForEachElement(const Parameter& parameter, const ParameterPiece& piece, const Visit& visit) {
  for (int64_t i = 0; i < ElementCount(piece.shape); ++i) {
    int64_t rest = i, local = 0, logical = 0, local_stride = 1, logical_stride = 1;
    for (size_t dim = piece.shape.size(); dim-- > 0;) {
      const int64_t index = rest % piece.shape[dim];
      rest /= piece.shape[dim];
      local += (piece.local_offset[dim] + index) * local_stride;
      logical += (piece.global_offset[dim] + index) * logical_stride;
      local_stride *= parameter.shape[dim];
      logical_stride *= piece.global_shape[dim];
    }
    visit(local, logical);
  }
}

}  // namespace

ShardedResult RunSharded(const ShardedRun& run) {
  std::vector<ShardedResult> ranks(run.ranks);
  ThreadWorld world(run.ranks);
  const absl::Status status = world.Run([&](Communicator& comm) {
    RankRun rank(run, comm);
    TESSERA_RETURN_IF_ERROR(rank.Train(ranks[comm.rank()]));
    return rank.Sample(ranks[comm.rank()]);
  });
  EXPECT_OK(status);
  ShardedResult result = std::move(ranks[0]);
  for (int i = 1; i < run.ranks; ++i) {
    EXPECT_EQ(ranks[i].loss, result.loss);
    ExpectBitwiseEqual(ranks[i].last_logits, result.last_logits, "logits of all ranks");
    result.parameters.merge(ranks[i].parameters);
    Merge(std::move(ranks[i].values), result.values);
    Merge(std::move(ranks[i].grads), result.grads);
  }
  return result;
}

std::map<std::string, Tensor> Logical(const ShardedResult& result, const TensorsByKey& tensors) {
  std::map<std::string, Tensor> logical;
  std::map<std::string, std::vector<int>> seen;
  for (const auto& [key, tensor] : tensors) {
    const auto it = result.parameters.find(key);
    if (it == result.parameters.end()) continue;  // a second contribution
    for (const ParameterPiece& piece : it->second.pieces) {
      Tensor& whole = logical[piece.name];
      if (whole.view().empty()) {
        whole = Tensor(DType::kF64, piece.global_shape);
        seen[piece.name].resize(ElementCount(piece.global_shape));
      }
      ForEachElement(it->second, piece, [&, &tensor = tensor](int64_t local, int64_t global) {
        whole.view().as<double>()[global] = At(tensor, local);
        ++seen[piece.name][global];
      });
    }
  }
  for (const auto& [name, counts] : seen) {
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), static_cast<int64_t>(counts.size()))
        << name << " is incomplete, or has elements twice";
  }
  return logical;
}

void ExpectSameBits(const ShardedResult& actual, const ShardedResult& expected,
                    const std::string& what) {
  EXPECT_EQ(actual.loss, expected.loss) << what;
  ExpectBitwiseEqual(actual.last_logits, expected.last_logits, what + ": logits");
  for (const auto& [key, tensor] : expected.grads) {
    const auto it = actual.grads.find(key);
    ASSERT_NE(it, actual.grads.end()) << what << ": no gradient of " << key;
    ExpectBitwiseEqual(it->second, tensor, std::string(what).append(": ").append(key));
  }
  EXPECT_EQ(actual.grads.size(), expected.grads.size()) << what;
}

}  // namespace tessera::testing
