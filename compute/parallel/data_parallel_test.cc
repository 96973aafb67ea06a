// Complete optimizer steps over data-parallel ranks: reduction, norm, update and gathering of
// values, compared with one rank.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/parallel/gradient_norm.h"
#include "compute/parallel/gradient_reducer.h"
#include "compute/parallel/micro_batches.h"
#include "compute/parallel/testing/fake_model.h"
#include "trainer/config/config.pb.h"
#include "trainer/optim/adamw.h"

namespace tessera {
namespace {

constexpr int64_t kMicroBatches = 12;
constexpr int kSteps = 3;

struct Split {
  int ranks = 1;
  int zero = 0;
  bool exact = true;
  DType dtype = DType::kF32;

  std::string name() const {
    return absl::StrCat("dp", ranks, " zero", zero, exact ? " exact" : "");
  }
};

std::vector<FakeParameter> Parameters() {
  return {{.key = "table", .elements = 1100, .tied = true, .second = true},
          {.key = "a", .elements = 3},
          {.key = "b", .elements = 2560},
          {.key = "c", .elements = 300},
          {.key = "d", .elements = 2}};
}

struct Result {
  std::vector<float> values;  // flat
  std::vector<double> norms;
  int64_t state_bytes = 0;  // of all ranks
};

absl::StatusOr<Result> RunRank(const Split& split, int64_t micro_batches, Communicator& group) {
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  Communicator* data = split.ranks == 1 ? nullptr : &group;
  FakeModel model(Parameters(), 2);
  GradientReducerOptions options;
  options.data_parallel = data;
  options.zero_stage = split.zero;
  options.exact = split.exact;
  options.bucket_elements = 1000;
  options.micro_batches = micro_batches / split.ranks;
  options.bind = [&](int64_t begin, int64_t end, const TensorView& memory) {
    model.BindGradients(begin, end, memory);
  };
  const GradientLayout& layout = model.layout();
  GradientReducer reducer(*backend, layout, options);

  Tensor values(split.dtype, {layout.value_elements});
  Tensor initial(DType::kF32, {layout.value_elements});
  std::vector<FlatParameter> flat = layout.parameters;
  for (FlatParameter& p : flat) {
    p.weight_decay = p.key != "a";
    for (int64_t e = 0; e < p.elements; ++e) {
      initial.view().as<float>()[p.begin + e] = FakeGradient(p.key, 7, e, 0);
    }
  }
  backend->Copy({initial, values});
  std::vector<OwnedRange> ranges;
  for (const OwnedGradient& owned : reducer.owned()) {
    ranges.push_back(
        {owned.begin, owned.end, values.view().Slice(0, owned.begin, owned.end), owned.grad});
  }
  OptimizerConfig config;
  config.set_weight_decay(0.1);
  AdamW optimizer(*backend, config, flat, ranges, split.dtype);
  optimizer.Reset();
  std::vector<GradientPart> parts;
  AppendGradientParts(layout, reducer.owned(), &parts);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<GradientNorm> norm,
                           GradientNorm::Create(*backend, std::move(parts), {.data = data}));
  Result result;
  const MicroBatchSplit batches = {split.zero, split.ranks, micro_batches};
  for (int step = 0; step < kSteps; ++step) {
    for (int64_t i = 0; i < batches.local(); ++i) {
      reducer.StartMicroBatch(i);
      const int64_t index = step * micro_batches + GlobalMicroBatch(batches, group.rank(), i);
      TESSERA_RETURN_IF_ERROR(model.Backward(index, reducer.accumulate(), reducer));
    }
    TESSERA_RETURN_IF_ERROR(reducer.Finish());
    TESSERA_ASSIGN_OR_RETURN(const double grad_norm, norm->Compute([](const std::string& m, bool) {
      return absl::DataLossError(m);
    }));
    result.norms.push_back(grad_norm);
    optimizer.Step(0.01, grad_norm, ClipCoefficient(grad_norm, 1.0));
    TESSERA_RETURN_IF_ERROR(reducer.GatherValues(values));
  }
  Tensor wide(DType::kF32, {layout.value_elements});
  backend->Copy({values, wide});
  const float* data_of = wide.view().as<float>();
  result.values.assign(data_of, data_of + layout.value_elements);
  result.state_bytes = optimizer.state_bytes();
  return result;
}

// Every rank's result.
std::vector<Result> RunSplit(const Split& split, int64_t micro_batches) {
  std::vector<Result> results(split.ranks);
  ThreadWorld world(split.ranks);
  const absl::Status status = world.Run([&](Communicator& group) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(results[group.rank()], RunRank(split, micro_batches, group));
    return absl::OkStatus();
  });
  EXPECT_OK(status) << " " << split.name();
  return results;
}

TEST(DataParallelTest, ExactHasTheBitsOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t micro_batches : {int64_t{1}, int64_t{3}, kMicroBatches}) {
      const Result expected = RunSplit({.dtype = dtype}, micro_batches)[0];
      int splits = 0;
      for (int ranks = 1; ranks <= 6; ++ranks) {
        for (int zero = 0; zero <= 2; ++zero) {
          if (!CheckMicroBatches(micro_batches, 1, ranks, zero, true).ok()) continue;
          ++splits;
          const Split split = {.ranks = ranks, .zero = zero, .dtype = dtype};
          for (const Result& result : RunSplit(split, micro_batches)) {
            ASSERT_EQ(result.norms, expected.norms) << split.name();
            ASSERT_EQ(result.values, expected.values) << split.name();
          }
        }
      }
      EXPECT_GE(splits, 3);
    }
  }
}

TEST(DataParallelTest, OwnersHoldTheOptimizerStateOnce) {
  const int64_t whole = RunSplit({}, kMicroBatches)[0].state_bytes;
  for (const int zero : {1, 2}) {
    int64_t sum = 0;
    for (const Result& result : RunSplit({.ranks = 4, .zero = zero}, kMicroBatches)) {
      sum += result.state_bytes;
    }
    EXPECT_EQ(sum, whole) << zero;
  }
}

}  // namespace
}  // namespace tessera
