#include "compute/parallel/gradient_reducer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/parallel/micro_batches.h"
#include "compute/parallel/testing/fake_model.h"
#include "tensor/bfloat16.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

struct Case {
  int ranks = 1;
  int64_t local = 1;  // micro-batches of a rank
  int zero = 0;
  bool exact = false;
  int64_t bucket_elements = 800;
  int parameters_per_call = 1;

  int64_t micro_batches() const { return ranks * local; }
  std::string name() const {
    return absl::StrCat("dp", ranks, " zero", zero, exact ? " exact" : " fast", " local ", local,
                        " bucket ", bucket_elements, " per call ", parameters_per_call);
  }
};

enum class Table { kPlain, kTied, kSecond };

// Tensors smaller than the number of ranks, than a block, than a bucket, and larger.
std::vector<FakeParameter> Parameters(Table table) {
  return {{.key = "table",
           .elements = 1100,
           .tied = table != Table::kPlain,
           .second = table == Table::kSecond},
          {.key = "a", .elements = 3},
          {.key = "b", .elements = 256},
          {.key = "c", .elements = 300},
          {.key = "d", .elements = 2},
          {.key = "e", .elements = 1500},
          {.key = "f", .elements = 64},
          {.key = "g", .elements = 513}};
}

std::vector<FakeParameter> EqualParameters(int count, int64_t elements) {
  std::vector<FakeParameter> parameters;
  for (int i = 0; i < count; ++i) {
    parameters.push_back({.key = absl::StrCat("p", i), .elements = elements});
  }
  return parameters;
}

GradientReducerOptions Options(const Case& which, Communicator* group, FakeModel& model) {
  GradientReducerOptions options;
  options.data_parallel = group;
  options.zero_stage = which.zero;
  options.exact = which.exact;
  options.bucket_elements = which.bucket_elements;
  options.micro_batches = which.local;
  options.bind = [&model](int64_t begin, int64_t end, const TensorView& memory) {
    model.BindGradients(begin, end, memory);
  };
  return options;
}

// `step` shifts the micro-batches, so that every step has different gradients.
absl::Status RunStep(const Case& which, int rank, int64_t step, FakeModel& model,
                     GradientReducer& reducer) {
  const MicroBatchSplit split = {
      .zero_stage = which.zero, .data_ranks = which.ranks, .micro_batches = which.micro_batches()};
  for (int64_t i = 0; i < which.local; ++i) {
    reducer.StartMicroBatch(i);
    const int64_t micro_batch = step * which.micro_batches() + GlobalMicroBatch(split, rank, i);
    TESSERA_RETURN_IF_ERROR(model.Backward(micro_batch, reducer.accumulate(), reducer));
  }
  return reducer.Finish();
}

struct Element {
  float value = 0;
  int owners = 0;
};

// Records the ranges that a rank owns in the flat space of values.
void Note(const GradientReducer& reducer, std::vector<Element>& flat) {
  flat.resize(reducer.layout().value_elements);
  for (const OwnedGradient& owned : reducer.owned()) {
    for (int64_t i = owned.begin; i < owned.end; ++i) {
      flat[i].value = owned.grad.as<float>()[i - owned.begin];
      ++flat[i].owners;
    }
  }
}

std::string Compare(const Case& which, int64_t step, const std::vector<FakeParameter>& parameters,
                    const std::vector<Element>& flat) {
  const GradientLayout layout = FakeLayout(parameters);
  const int owners = which.zero == 0 ? which.ranks : 1;
  const int64_t begin = step * which.micro_batches(), end = begin + which.micro_batches();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const FakeParameter& parameter = parameters[p];
    for (int64_t e = 0; e < parameter.elements; ++e) {
      const Element& element = flat[layout.parameters[p].begin + e];
      const std::string where = absl::StrCat(which.name(), ": ", parameter.key, "[", e, "]: ");
      if (element.owners != owners) return absl::StrCat(where, element.owners, " owners");
      float exact = FakeGradientTree(parameter.key, 0, e, begin, end);
      if (parameter.tied) exact += FakeGradientTree(parameter.key, 1, e, begin, end);
      const bool summed_apart = !parameter.tied || parameter.second;
      if (which.exact && summed_apart && element.value != exact) {
        return absl::StrCat(where, element.value, " instead of ", exact);
      }
      if (std::abs(element.value - exact) > 1e-3f) {
        return absl::StrCat(where, element.value, " is far from ", exact);
      }
    }
  }
  return "";
}

std::vector<Element> RunSteps(const Case& which, Table table, int64_t steps) {
  const std::vector<FakeParameter> parameters = Parameters(table);
  std::vector<Element> flat;
  std::vector<std::vector<Element>> by_rank(which.ranks);
  ThreadWorld world(which.ranks);
  std::vector<std::string> wrong(which.ranks);
  EXPECT_OK(world.Run([&](Communicator& group) -> absl::Status {
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    FakeModel model(parameters, which.parameters_per_call);
    GradientReducer reducer(*backend, model.layout(),
                            Options(which, which.ranks == 1 ? nullptr : &group, model));
    for (int64_t step = 0; step < steps; ++step) {
      TESSERA_RETURN_IF_ERROR(RunStep(which, group.rank(), step, model, reducer));
    }
    Note(reducer, by_rank[group.rank()]);
    return absl::OkStatus();
  })) << " "
      << which.name();
  // With ZeRO 0 every rank's copy is checked.
  for (const std::vector<Element>& mine : by_rank) {
    flat.resize(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      if (mine[i].owners == 0) continue;
      if (flat[i].owners > 0) EXPECT_EQ(flat[i].value, mine[i].value) << "copies differ";
      flat[i].value = mine[i].value;
      flat[i].owners += mine[i].owners;
    }
  }
  return flat;
}

bool Valid(const Case& which) {
  return CheckMicroBatches(which.micro_batches(), 1, which.ranks, which.zero, which.exact).ok();
}

class GradientReducerTest : public testing::TestWithParam<int> {};

TEST_P(GradientReducerTest, SumsOverMicroBatchesAndRanks) {
  Case which{.ranks = GetParam()};
  for (which.zero = 0; which.zero <= 2; ++which.zero) {
    for (const bool exact : {false, true}) {
      for (which.local = 1; which.local <= 4; ++which.local) {
        which.exact = exact;
        if (!Valid(which)) continue;
        for (const Table table : {Table::kPlain, Table::kSecond}) {
          const std::vector<Element> flat = RunSteps(which, table, 2);
          ASSERT_EQ(Compare(which, 1, Parameters(table), flat), "");
        }
      }
    }
  }
}

// Without a second gradient, a table accumulates both contributions in place.
TEST_P(GradientReducerTest, TiedTableInOnePlace) {
  Case which{.ranks = GetParam(), .local = 3};
  for (which.zero = 0; which.zero <= 2; ++which.zero) {
    ASSERT_EQ(Compare(which, 0, Parameters(Table::kTied), RunSteps(which, Table::kTied, 1)), "");
  }
}

TEST_P(GradientReducerTest, BucketsAndCallsDoNotMatter) {
  Case which{.ranks = GetParam(), .local = 4, .exact = true};
  for (which.zero = 0; which.zero <= 2; ++which.zero) {
    if (!Valid(which)) continue;
    for (const int64_t bucket : {1, 300, 2000, 100000}) {
      for (const int per_call : {1, 3, 100}) {
        which.bucket_elements = bucket;
        which.parameters_per_call = per_call;
        const std::vector<Element> flat = RunSteps(which, Table::kSecond, 1);
        ASSERT_EQ(Compare(which, 0, Parameters(Table::kSecond), flat), "");
      }
    }
  }
}

TEST_P(GradientReducerTest, FastIsRepeatable) {
  Case which{.ranks = GetParam(), .local = 3};
  for (which.zero = 0; which.zero <= 2; ++which.zero) {
    const std::vector<Element> first = RunSteps(which, Table::kSecond, 1);
    const std::vector<Element> second = RunSteps(which, Table::kSecond, 1);
    const GradientLayout layout = FakeLayout(Parameters(Table::kSecond));
    for (const FlatParameter& parameter : layout.parameters) {
      for (int64_t i = parameter.begin; i < parameter.begin + parameter.elements; ++i) {
        ASSERT_EQ(first[i].value, second[i].value) << which.name();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientReducerTest, testing::Range(1, 7));

// Binary counters of many lengths.
TEST(GradientReducerOneRankTest, TreeOfAnyNumberOfMicroBatches) {
  for (int64_t local = 1; local <= 17; ++local) {
    const Case which{.local = local, .exact = true};
    ASSERT_EQ(Compare(which, 1, Parameters(Table::kSecond), RunSteps(which, Table::kSecond, 2)),
              "");
  }
}

TEST(GradientReducerOneRankTest, FastWritesWhereTheOptimizerReads) {
  for (const int zero : {0, 1, 2}) {
    const Case which{.local = 3, .zero = zero};
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    FakeModel model(Parameters(Table::kPlain), 1);
    const int64_t before = TensorMemory(MemoryCategory::kGradients).live_bytes;
    GradientReducer reducer(*backend, model.layout(), Options(which, nullptr, model));
    ASSERT_OK(RunStep(which, 0, 0, model, reducer));
    ASSERT_EQ(reducer.owned().size(), 1u);
    EXPECT_EQ(reducer.owned()[0].grad.as<float>(), model.grad(0));
    EXPECT_EQ(TensorMemory(MemoryCategory::kGradients).live_bytes - before,
              model.layout().gradient_elements * 4);
    EXPECT_EQ(reducer.memory_bytes(), model.layout().gradient_elements * 4);
  }
}

// The bytes of each operation according to comm/communicator.h, summed over buckets.
int64_t TheoreticalBytes(const Case& which, const GradientReducer& reducer, int rank) {
  int64_t bytes = 0;
  for (const GradientBucket& bucket : reducer.buckets()) {
    const int64_t n = bucket.elements() * 4;
    if (which.zero == 0) {
      const int64_t mine = EvenCounts(bucket.elements(), which.ranks)[rank] * 4;
      bytes +=
          n <= kSmallAllReduceBytes ? (which.ranks - 1) * n : (n - mine) + (which.ranks - 1) * mine;
    } else {
      const int64_t times = which.zero == 2 ? which.local : 1;
      bytes += times * (n - bucket.piece_elements[rank] * 4);
    }
  }
  return bytes;
}

TEST(GradientReducerWireTest, BytesAreTheTheory) {
  for (const int ranks : {2, 3, 4}) {
    for (const int zero : {0, 1, 2}) {
      const Case which{.ranks = ranks, .local = 2, .zero = zero};
      EXPECT_OK(ThreadWorld(ranks).Run([&](Communicator& group) -> absl::Status {
        const std::unique_ptr<Backend> backend = MakeReferenceBackend();
        FakeModel model(Parameters(Table::kSecond), 1);
        GradientReducer reducer(*backend, model.layout(), Options(which, &group, model));
        group.ResetCounters();
        TESSERA_RETURN_IF_ERROR(RunStep(which, group.rank(), 0, model, reducer));
        EXPECT_EQ(group.counters().bytes_sent(), TheoreticalBytes(which, reducer, group.rank()));
        const CommOp op = zero == 0 ? CommOp::kAllReduce : CommOp::kReduceScatter;
        EXPECT_EQ(group.counters()[op].calls,
                  static_cast<int64_t>(reducer.buckets().size()) * (zero == 2 ? 2 : 1));

        group.ResetCounters();
        Tensor values(DType::kBF16, {model.layout().value_elements});
        TESSERA_RETURN_IF_ERROR(reducer.GatherValues(values));
        int64_t mine = 0;
        for (const OwnedGradient& owned : reducer.owned()) mine += owned.end - owned.begin;
        EXPECT_EQ(group.counters().bytes_sent(), zero == 0 ? 0 : (ranks - 1) * mine * 2);
        return absl::OkStatus();
      }));
    }
  }
}

// A reduction starts as soon as its bucket is complete.
TEST(GradientReducerWireTest, ReductionsStartDuringTheBackwardPass) {
  for (const int zero : {0, 1, 2}) {
    const Case which{.ranks = 2, .zero = zero};
    const CommOp op = zero == 0 ? CommOp::kAllReduce : CommOp::kReduceScatter;
    EXPECT_OK(ThreadWorld(which.ranks).Run([&](Communicator& group) -> absl::Status {
      const std::unique_ptr<Backend> backend = MakeReferenceBackend();
      FakeModel model(Parameters(Table::kPlain), 1);
      GradientReducer reducer(*backend, model.layout(), Options(which, &group, model));
      // Buckets hold parameters 7; 6; 5; 4 and 3; 2 and 1; 0.
      const std::vector<int64_t> calls_after = {6, 5, 4, 4, 3, 3, 2, 1};
      reducer.StartMicroBatch(0);
      for (int i = 7; i >= 0; --i) {
        const FlatParameter& parameter = model.layout().parameters[i];
        const int64_t begin = parameter.begin, end = begin + parameter.elements;
        TESSERA_RETURN_IF_ERROR(reducer.Prepare(begin, end));
        TESSERA_RETURN_IF_ERROR(reducer.Ready(begin, end));
        EXPECT_EQ(group.counters()[op].calls, calls_after[i]) << i;
      }
      return reducer.Finish();
    }));
  }
}

TEST(GradientReducerGatherTest, BringsEveryOwnersValues) {
  for (const int zero : {0, 1, 2}) {
    const Case which{.ranks = 5, .zero = zero};
    EXPECT_OK(ThreadWorld(which.ranks).Run([&](Communicator& group) -> absl::Status {
      const std::unique_ptr<Backend> backend = MakeReferenceBackend();
      FakeModel model(Parameters(Table::kSecond), 1);
      GradientReducer reducer(*backend, model.layout(), Options(which, &group, model));
      Tensor values(DType::kBF16, {model.layout().value_elements});
      BFloat16* data = values.view().as<BFloat16>();
      const auto expected = [](int64_t i) { return BFloat16(static_cast<float>(i % 251)); };
      for (const OwnedGradient& owned : reducer.owned()) {
        for (int64_t i = owned.begin; i < owned.end; ++i) data[i] = expected(i);
      }
      TESSERA_RETURN_IF_ERROR(reducer.GatherValues(values));
      for (int64_t i = 0; i < model.layout().value_elements; ++i) {
        if (static_cast<float>(data[i]) != static_cast<float>(expected(i))) {
          return absl::InternalError(absl::StrCat("value ", i));
        }
      }
      return absl::OkStatus();
    }));
  }
}

// However many buckets there are, few are in flight: no rank is further ahead of another.
TEST(GradientReducerGatherTest, FewBucketsAtATime) {
  // Each rank has half of each.
  const std::vector<FakeParameter> parameters = EqualParameters(200, 2 * kGradientBlock);
  const Case which{.ranks = 2, .zero = 1, .bucket_elements = 2 * kGradientBlock};
  ThreadWorld world(which.ranks);
  std::atomic<size_t> begun_by_first = 0;
  EXPECT_OK(world.Run([&](Communicator& group) -> absl::Status {
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    FakeModel model(parameters, 1);
    GradientReducer reducer(*backend, model.layout(), Options(which, &group, model));
    EXPECT_EQ(reducer.buckets().size(), parameters.size());
    const Tensor values(DType::kF32, {model.layout().value_elements});
    if (group.rank() == 0) {
      return reducer.GatherValues(values, [&](const TensorView&) { ++begun_by_first; });
    }
    while (begun_by_first < GradientReducer::kMaxExchanges) std::this_thread::yield();
    size_t begun = 0;
    return reducer.GatherValues(values, [&](const TensorView&) {
      EXPECT_LE(begun_by_first, begun + GradientReducer::kMaxExchanges);
      ++begun;
    });
  }));
  EXPECT_EQ(begun_by_first, parameters.size());
}

// Many equal parameters: bucket buffers are small compared with them.
TEST(GradientReducerMemoryTest, ZeRO2KeepsOwnedPiecesAlone) {
  const std::vector<FakeParameter> parameters = EqualParameters(40, 1024);
  for (const bool exact : {false, true}) {
    for (const int64_t local : {1, 2, 4, 8}) {
      const Case which{
          .ranks = 4, .local = local, .zero = 2, .exact = exact, .bucket_elements = 1024};
      const int64_t before = TensorMemory(MemoryCategory::kGradients).live_bytes;
      ResetPeakMemory();
      ThreadWorld world(which.ranks);
      std::atomic<int64_t> theory = 0;
      ASSERT_OK(world.Run([&](Communicator& group) -> absl::Status {
        const std::unique_ptr<Backend> backend = MakeReferenceBackend();
        FakeModel model(parameters, 1);
        GradientReducer reducer(*backend, model.layout(), Options(which, &group, model));
        theory += reducer.memory_bytes();
        for (int64_t step = 0; step < 2; ++step) {
          TESSERA_RETURN_IF_ERROR(RunStep(which, group.rank(), step, model, reducer));
        }
        TESSERA_RETURN_IF_ERROR(group.Barrier());
        return absl::OkStatus();
      }));
      const int64_t space = 40 * 1024 * 4, bucket = 1024 * 4;
      // Open subtrees of 8 contributions: of 4, 2 and 1; the first is the result.
      const int64_t kept = exact && local == 8 ? 3 : exact && local == 4 ? 2 : 1;
      EXPECT_EQ(theory, kept * space + 4 * GradientReducer::kBucketBuffers * bucket);
      const int64_t peak = TensorMemory(MemoryCategory::kGradients).peak_bytes - before;
      EXPECT_LE(peak, theory) << which.name();
      EXPECT_GE(peak, kept * space + 4 * bucket) << which.name();
    }
  }
}

TEST(GradientReducerMemoryTest, ZeRO0ExactKeepsOpenSubtrees) {
  const std::vector<FakeParameter> parameters = EqualParameters(40, 1024);
  for (const auto& [local, kept] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 2}, {8, 3}, {16, 4}}) {
    const Case which{.local = local, .exact = true, .bucket_elements = 1024};
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    FakeModel model(parameters, 1);
    const int64_t before = TensorMemory(MemoryCategory::kGradients).live_bytes;
    GradientReducer reducer(*backend, model.layout(), Options(which, nullptr, model));
    ASSERT_OK(RunStep(which, 0, 0, model, reducer));
    EXPECT_EQ(TensorMemory(MemoryCategory::kGradients).live_bytes - before,
              (kept * 40 + (local > 1 ? 1 : 0)) * 1024 * 4)
        << local;
  }
}

// The first and the last stage of a pipeline: each has a copy of the table and one contribution.
TEST(GradientReducerTieTest, BothStagesGetTheSumOfBothContributions) {
  for (const int ranks : {1, 2, 3}) {
    for (const int zero : {0, 1, 2}) {
      const Case which{.ranks = ranks,
                       .local = ranks == 3 && zero == 2 ? 1 : 2,
                       .zero = zero,
                       .exact = true,
                       .bucket_elements = 300};
      const FakeParameter table = {.key = "table", .elements = 1100, .on_two_stages = true};
      std::vector<FakeParameter> last_table = {
          {.key = "x", .elements = 700}, {.key = "y", .elements = 3}, table};
      last_table[2].contribution = 1;
      const std::vector<FakeParameter> stages[2] = {{table, {.key = "a", .elements = 100}},
                                                    last_table};
      std::vector<std::vector<Element>> flat(2 * ranks);
      ASSERT_OK(ThreadWorld(2 * ranks).Run([&](Communicator& all) -> absl::Status {
        const int stage = all.rank() / ranks, rank = all.rank() % ranks;
        TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> data,
                                 all.Split(stage, rank, "data"));
        TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> tie,
                                 all.Split(rank, stage, "tied"));
        const std::unique_ptr<Backend> backend = MakeReferenceBackend();
        FakeModel model(stages[stage], 1);
        GradientReducerOptions options = Options(which, data.get(), model);
        options.tie = tie.get();
        GradientReducer reducer(*backend, model.layout(), options);
        tie->ResetCounters();
        TESSERA_RETURN_IF_ERROR(RunStep(which, rank, 0, model, reducer));
        Note(reducer, flat[all.rank()]);
        const GradientBucket& bucket = reducer.buckets()[stage == 0 ? 1 : 0];
        EXPECT_EQ(tie->counters().bytes_sent(),
                  4 * (zero == 0 ? bucket.elements() : bucket.piece_elements[rank]));
        return absl::OkStatus();
      }));
      for (int r = 0; r < 2 * ranks; ++r) {
        const int64_t begin = r < ranks ? 0 : 768 + 256;
        for (int64_t e = 0; e < table.elements; ++e) {
          const Element& element = flat[r][begin + e];
          if (element.owners == 0) continue;
          const float expected = FakeGradientTree("table", 0, e, 0, which.micro_batches()) +
                                 FakeGradientTree("table", 1, e, 0, which.micro_batches());
          ASSERT_EQ(element.value, expected) << which.name() << " rank " << r << " element " << e;
        }
      }
    }
  }
}

TEST(GradientReducerErrorTest, AnotherRanksErrorEndsTheStep) {
  for (const int zero : {0, 1, 2}) {
    const Case which{.ranks = 3, .zero = zero};
    ThreadWorld world(which.ranks);
    const absl::Status status = world.Run([&](Communicator& group) -> absl::Status {
      if (group.rank() == 1) return absl::DataLossError("no more tokens");
      const std::unique_ptr<Backend> backend = MakeReferenceBackend();
      FakeModel model(Parameters(Table::kPlain), 1);
      GradientReducer reducer(*backend, model.layout(), Options(which, &group, model));
      return RunStep(which, group.rank(), 0, model, reducer);
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    for (const absl::Status& each : world.statuses()) EXPECT_FALSE(each.ok());
  }
}

}  // namespace
}  // namespace tessera
