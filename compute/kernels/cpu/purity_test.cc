// The basis of topology-independent results: a row, a sample, a head or an element has the same
// bits whichever thread or rank computes it, together with any others, on any number of threads and
// at any address.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/testing/kernel_test.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera {
namespace {

using testing::Cloned;
using testing::Converted;
using testing::ExpectBitwiseEqual;

constexpr DType kF32 = DType::kF32;

class PurityTest : public KernelTest {
 protected:
  // An operation that computes every row from that row alone: dim 0 of each operand, input or
  // output.
  struct RowOperation {
    std::vector<Tensor> operands;
    // first_row: the row of the whole operand at which these operands begin.
    std::function<void(Backend&, std::span<const TensorView> operands, int64_t first_row)> run;
    // Indices of operands that may be parts of wider rows.
    std::vector<size_t> strided = {};
  };

  void ExpectPure(const RowOperation& operation) {
    const std::vector<Tensor> whole = CloneAll(operation);
    operation.run(*backends_[0], Views(whole), 0);
    ExpectSameFromParts(operation, whole);
    ExpectSameAnywhere(operation, whole);
    ExpectSameInWiderRows(operation, whole);
  }

  const std::unique_ptr<Backend> backends_[2] = {MakeCpuBackend(1), MakeCpuBackend(3)};

 private:
  static std::vector<Tensor> CloneAll(const RowOperation& operation) {
    std::vector<Tensor> operands;
    for (const Tensor& operand : operation.operands) operands.push_back(Cloned(operand));
    return operands;
  }

  static std::vector<TensorView> Views(const std::vector<Tensor>& tensors) {
    return {tensors.begin(), tensors.end()};
  }

  void ExpectSameFromParts(const RowOperation& operation, const std::vector<Tensor>& whole) {
    const int64_t rows = whole[0].view().dim(0);
    const std::pair<int64_t, int64_t> parts[] = {
        {0, 1}, {1, rows}, {rows / 2, rows}, {rows / 3, rows / 2 + 1}, {rows - 1, rows}};
    for (const auto& [begin, end] : parts) {
      const std::vector<Tensor> operands = CloneAll(operation);
      std::vector<TensorView> views;
      for (const Tensor& operand : operands) views.push_back(operand.view().Slice(0, begin, end));
      operation.run(*backends_[1], views, begin);
      for (size_t i = 0; i < views.size(); ++i) {
        ExpectBitwiseEqual(views[i], whole[i].view().Slice(0, begin, end),
                           "operand " + std::to_string(i) + ", rows " + std::to_string(begin) +
                               " to " + std::to_string(end));
      }
    }
  }

  void ExpectSameAnywhere(const RowOperation& operation, const std::vector<Tensor>& whole) {
    for (int64_t shift : {1, 7, 16, 32}) {
      std::vector<Tensor> rooms;
      std::vector<TensorView> views;
      for (const Tensor& operand : operation.operands) {
        const TensorView& from = operand.view();
        rooms.emplace_back(from.dtype(), Shape{from.elements() + shift});
        const int64_t offset = shift * ElementSize(from.dtype());
        views.emplace_back(rooms.back().view().as<char>() + offset, from.dtype(), from.shape());
        backends_[0]->Copy(from, views.back());
      }
      operation.run(*backends_[1], views, 0);
      for (size_t i = 0; i < views.size(); ++i) {
        ExpectBitwiseEqual(views[i], whole[i],
                           "operand " + std::to_string(i) + " moved by " + std::to_string(shift));
      }
    }
  }

  void ExpectSameInWiderRows(const RowOperation& operation, const std::vector<Tensor>& whole) {
    if (operation.strided.empty()) return;
    std::vector<Tensor> operands = CloneAll(operation);
    std::vector<TensorView> views = Views(operands);
    for (size_t i : operation.strided) {
      const TensorView from = views[i];
      operands.emplace_back(from.dtype(), Shape{from.dim(0), from.dim(1) + 21});
      views[i] = operands.back().view().Slice(1, 3, from.dim(1) + 3);
      backends_[0]->Copy(from, views[i]);
    }
    operation.run(*backends_[1], views, 0);
    for (size_t i = 0; i < views.size(); ++i) {
      ExpectBitwiseEqual(views[i], whole[i], "operand " + std::to_string(i) + " in wider rows");
    }
  }
};

TEST_P(PurityTest, LayerNorm) {
  const int64_t rows = 37, columns = 131;
  const Tensor weight = random_.Normal(dtype(), {columns}),
               bias = random_.Normal(dtype(), {columns});
  RowOperation forward;
  forward.operands.push_back(random_.Normal(dtype(), {rows, columns}, 1, 2));
  forward.operands.push_back(random_.Normal(dtype(), {rows, columns}));
  forward.operands.push_back(random_.Normal(kF32, {rows}));
  forward.operands.push_back(random_.Normal(kF32, {rows}));
  forward.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
    backend.LayerNormForward(x[0], weight, bias, 1e-5, x[1], x[2], x[3]);
  };
  forward.strided = {0, 1};
  ExpectPure(forward);

  // The gradients of weight and bias are sums over rows.
  RowOperation backward;
  for (int i = 0; i < 3; ++i) backward.operands.push_back(random_.Normal(dtype(), {rows, columns}));
  backward.operands.push_back(random_.Normal(kF32, {rows}));
  backward.operands.push_back(random_.Normal(kF32, {rows}, 1, 0.1));
  const Tensor d_weight(kF32, {columns}), d_bias(kF32, {columns});
  for (bool accumulate : {false, true}) {
    backward.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
      backend.LayerNormBackward(x[0], x[1], weight, x[3], x[4], x[2], accumulate, d_weight, d_bias,
                                false);
    };
    backward.strided = {0, 1, 2};
    ExpectPure(backward);
  }
}

TEST_P(PurityTest, RmsNorm) {
  const int64_t rows = 37, columns = 131;
  const Tensor weight = random_.Normal(dtype(), {columns}), d_weight(kF32, {columns});
  RowOperation forward;
  forward.operands.push_back(random_.Normal(dtype(), {rows, columns}, 1, 2));
  forward.operands.push_back(random_.Normal(dtype(), {rows, columns}));
  forward.operands.push_back(random_.Normal(kF32, {rows}));
  forward.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
    backend.RmsNormForward(x[0], weight, 1e-5, x[1], x[2]);
  };
  forward.strided = {0, 1};
  ExpectPure(forward);

  RowOperation backward;
  for (int i = 0; i < 3; ++i) backward.operands.push_back(random_.Normal(dtype(), {rows, columns}));
  backward.operands.push_back(random_.Normal(kF32, {rows}, 1, 0.1));
  for (bool accumulate : {false, true}) {
    backward.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
      backend.RmsNormBackward(x[0], x[1], weight, x[3], x[2], accumulate, d_weight, false);
    };
    backward.strided = {0, 1, 2};
    ExpectPure(backward);
  }
}

TEST_P(PurityTest, AddNorms) {
  const int64_t rows = 37, columns = 131;
  const Tensor weight = random_.Normal(dtype(), {columns}),
               bias = random_.Normal(dtype(), {columns});
  RowOperation forward;
  for (int i = 0; i < 4; ++i) forward.operands.push_back(random_.Normal(dtype(), {rows, columns}));
  for (int i = 0; i < 2; ++i) forward.operands.push_back(random_.Normal(kF32, {rows}));
  forward.strided = {0, 1, 2, 3};
  for (bool layer_norm : {false, true}) {
    forward.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
      if (layer_norm) {
        backend.AddLayerNormForward(x[0], x[1], x[2], weight, bias, 1e-5, x[3], x[4], x[5]);
      } else {
        backend.AddRmsNormForward(x[0], x[1], x[2], weight, 1e-5, x[3], x[4]);
      }
    };
    ExpectPure(forward);
  }
}

// The gradient of a norm's weight over a block of rows is a sum that one rank computes alone.
TEST_P(PurityTest, NormWeightGradientsOfABlockOfRows) {
  const int64_t rows = 96, columns = 131;
  const Tensor weight = random_.Normal(dtype(), {columns}),
               x = random_.Normal(dtype(), {rows, columns});
  const Tensor d_out = random_.Normal(dtype(), {rows, columns}), d_x(dtype(), {rows, columns});
  const Tensor mean = random_.Normal(kF32, {rows}), rstd = random_.Normal(kF32, {rows}, 1, 0.1);
  const auto block = [&](Backend& backend, const Tensor& of_d_out, const Tensor& of_x) {
    Tensor sums(kF32, {2, columns});
    const auto part = [](const Tensor& t) { return t.view().Slice(0, 32, 64); };
    backend.LayerNormBackward(part(of_d_out), part(of_x), weight, part(mean), part(rstd), part(d_x),
                              false, sums.view().Slice(0, 0, 1).Reshape({columns}),
                              sums.view().Slice(0, 1, 2).Reshape({columns}), false);
    return sums;
  };
  const Tensor before = block(*backends_[0], d_out, x);
  // Other rows do not contribute.
  const Tensor other_d_out = Cloned(d_out), other_x = Cloned(x);
  for (const Tensor* tensor : {&other_d_out, &other_x}) {
    backends_[0]->Fill(tensor->view().Slice(0, 0, 32), 7);
    backends_[0]->Fill(tensor->view().Slice(0, 64, rows), 7);
  }
  ExpectBitwiseEqual(block(*backends_[1], other_d_out, other_x), before);
}

TEST_P(PurityTest, Activations) {
  for (const Shape& shape : {Shape{37, 131}, Shape{5, 17001}}) {
    RowOperation gelu;
    for (int i = 0; i < 4; ++i) gelu.operands.push_back(random_.Normal(dtype(), shape, 0, 3));
    gelu.run = [](Backend& backend, std::span<const TensorView> x, int64_t) {
      backend.GeluForward(x[0], x[1]);
      backend.GeluBackward(x[2], x[0], x[3]);
    };
    gelu.strided = {0, 1, 2, 3};
    ExpectPure(gelu);

    const Shape wide = {shape[0], 2 * shape[1]};
    RowOperation swiglu;
    swiglu.operands.push_back(random_.Normal(dtype(), wide, 0, 3));
    swiglu.operands.push_back(random_.Normal(dtype(), shape));
    swiglu.operands.push_back(random_.Normal(dtype(), shape));
    swiglu.operands.push_back(random_.Normal(dtype(), wide));
    swiglu.run = [](Backend& backend, std::span<const TensorView> x, int64_t) {
      backend.SwiGluForward(x[0], x[1]);
      backend.SwiGluBackward(x[2], x[0], x[3]);
    };
    swiglu.strided = {0, 1, 2, 3};
    ExpectPure(swiglu);
  }
}

TEST_P(PurityTest, Dropout) {
  const int64_t rows = 37, columns = 203;
  RowOperation dropout;
  dropout.operands.push_back(random_.Normal(dtype(), {rows, columns}, 3, 0.5));
  dropout.run = [&](Backend& backend, std::span<const TensorView> x, int64_t first_row) {
    const Dropout options = {.probability = 0.3,
                             .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 12},
                             .first_sample = 5,
                             .rows_per_sample = 7,
                             .row_offset = first_row,
                             .global_columns = columns};
    backend.ApplyDropout(options, x[0]);
  };
  dropout.strided = {0};
  ExpectPure(dropout);
}

TEST_P(PurityTest, DropoutOfColumns) {
  const Dropout whole = {.probability = 0.3,
                         .stream = {.seed = 3, .use = RandomUse::kDropout, .stream = 12},
                         .rows_per_sample = 7,
                         .global_columns = 203};
  const Tensor x = random_.Normal(dtype(), {21, 203}, 3, 0.5);
  const Tensor part = Cloned(x.view().Slice(1, 77, 190));
  Dropout shard = whole;
  shard.column_offset = 77;
  backends_[0]->ApplyDropout(whole, x);
  backends_[1]->ApplyDropout(shard, part);
  ExpectBitwiseEqual(part, x.view().Slice(1, 77, 190));
}

TEST_P(PurityTest, Movement) {
  const int64_t rows = 37, columns = 131;
  const Tensor table = random_.Normal(dtype(), {11, columns}),
               bias = random_.Normal(dtype(), {columns});
  RowOperation embedding;
  embedding.operands.push_back(random_.Ids({rows}, 0, 20));
  embedding.operands.push_back(random_.Normal(dtype(), {rows, columns}));
  embedding.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
    backend.EmbeddingForward(table, x[0], 4, x[1]);
  };
  embedding.strided = {1};
  ExpectPure(embedding);

  RowOperation add_bias;
  add_bias.operands.push_back(random_.Normal(kF32, {rows, columns}));
  add_bias.operands.push_back(random_.Normal(dtype(), {rows, columns}));
  add_bias.operands.push_back(random_.Normal(dtype(), {rows, columns}));
  add_bias.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
    backend.AddBias(x[0], bias, x[1]);
    backend.AddBias(x[0], {}, x[2]);
  };
  add_bias.strided = {0, 1, 2};
  ExpectPure(add_bias);

  RowOperation sums;
  for (int i = 0; i < 3; ++i) sums.operands.push_back(random_.Normal(dtype(), {rows, 1001}));
  sums.operands.push_back(random_.Normal(kF32, {rows, 1001}));
  sums.run = [](Backend& backend, std::span<const TensorView> x, int64_t) {
    backend.Add(x[0], x[1], x[2]);
    backend.Add(x[3], x[1], x[3]);
    backend.Scale(x[1], 0.3);
  };
  ExpectPure(sums);
}

// Parts of the rows are whole sequences: positions count from the first row.
TEST_P(PurityTest, PositionsAndRotations) {
  const int64_t batch = 9, sequence = 5, heads = 3, half = 10;
  const Tensor cos = random_.Uniform(kF32, {sequence, half}, -1, 1);
  const Tensor sin = random_.Uniform(kF32, {sequence, half}, -1, 1);
  const Tensor table = random_.Normal(dtype(), {sequence, 60});
  RowOperation operation;
  operation.operands.push_back(random_.Normal(dtype(), {batch, sequence, heads, 2 * half}));
  operation.operands.push_back(random_.Normal(dtype(), {batch, sequence, heads, 2 * half}));
  operation.operands.push_back(random_.Normal(dtype(), {batch, sequence, 60}));
  operation.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
    backend.Rope(cos, sin, false, x[0]);
    backend.Rope(cos, sin, true, x[1]);
    backend.AddPositions(table, sequence, x[2].Reshape({x[2].dim(0) * sequence, 60}));
  };
  ExpectPure(operation);
  // Heads, as views into a fused buffer.
  const Tensor whole = Cloned(operation.operands[0]), part = Cloned(operation.operands[0]);
  backends_[0]->Rope(cos, sin, false, whole);
  backends_[1]->Rope(cos, sin, false, part.view().Slice(2, 1, 2));
  ExpectBitwiseEqual(part.view().Slice(2, 1, 2), whole.view().Slice(2, 1, 2));
}

TEST_P(PurityTest, CrossEntropy) {
  const int64_t rows = 23, vocabulary = 4500, valid = 4403, first_id = 1000;
  RowOperation operation;
  operation.operands.push_back(random_.Normal(dtype(), {rows, vocabulary}, 0, 4));
  operation.operands.push_back(random_.Ids({rows}, -1000, 8000));  // negative: ignored
  operation.operands.push_back(random_.Normal(kF32, {rows, 3}));
  operation.operands.push_back(random_.Normal(kF32, {rows, 3}));
  operation.operands.push_back(random_.Normal(kF32, {rows}));
  operation.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
    backend.CrossEntropyStats(x[0], valid, x[1], first_id, x[2]);
    backend.CrossEntropyLoss(x[2].Reshape({1, x[2].dim(0), 3}), x[1], x[3], x[4]);
    backend.CrossEntropyBackward(x[3], x[1], valid, first_id, 1e-3, x[0]);
  };
  operation.strided = {0};
  ExpectPure(operation);
}

// Every split of a range, as ZeRO splits the optimizer's work. Squares of these gradients are
// subnormal at times.
TEST_P(PurityTest, AdamW) {
  for (double size : {1.0, 1e-19}) {
    const int64_t count = 20011;
    const AdamWOptions options = {
        .learning_rate = 1e-3, .weight_decay = 0.1, .step = 3, .grad_scale = 0.7};
    RowOperation update;
    update.operands.push_back(random_.Normal(kF32, {count}, 0, size));
    update.operands.push_back(random_.Normal(kF32, {count}));                         // master
    update.operands.push_back(random_.Normal(kF32, {count}, 0, size));                // m
    update.operands.push_back(random_.Uniform(kF32, {count}, 0, 0.1 * size * size));  // v
    update.operands.push_back(random_.Normal(dtype(), {count}));
    update.run = [&](Backend& backend, std::span<const TensorView> x, int64_t) {
      backend.AdamW(options, x[0], x[1], x[2], x[3], x[4]);
    };
    ExpectPure(update);
  }
}

class AttentionPurityTest : public PurityTest {
 protected:
  static AttentionOptions Options(int64_t first_sample, int64_t first_head) {
    return {.scale = 0.25,
            .dropout_probability = 0.2,
            .dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 77},
            .first_sample = first_sample,
            .first_head = first_head};
  }
  // q, k, v, out, log_sum_exp, d_out, d_q, d_k, d_v.
  static void Run(Backend& backend, const AttentionOptions& options,
                  std::span<const TensorView> x) {
    backend.AttentionForward(options, x[0], x[1], x[2], x[3], x[4]);
    backend.AttentionBackward(options, x[5], x[0], x[1], x[2], x[3], x[4], x[6], x[7], x[8]);
  }
  std::vector<Tensor> MakeOperands(int64_t batch, int64_t heads, int64_t kv_heads) {
    const Shape q = {batch, kSequence, heads, kSize}, kv = {batch, kSequence, kv_heads, kSize};
    std::vector<Tensor> operands;
    for (const Shape& shape : {q, kv, kv, q}) operands.push_back(random_.Normal(dtype(), shape));
    operands.push_back(random_.Normal(kF32, {batch, heads, kSequence}));
    for (const Shape& shape : {q, q, kv, kv}) operands.push_back(random_.Normal(dtype(), shape));
    return operands;
  }

  static constexpr int64_t kSequence = 150, kSize = 16;
};

TEST_P(AttentionPurityTest, OfSamples) {
  RowOperation operation;
  operation.operands = MakeOperands(/*batch=*/4, /*heads=*/4, /*kv_heads=*/2);
  operation.run = [](Backend& backend, std::span<const TensorView> x, int64_t first_row) {
    Run(backend, Options(9 + first_row, 3), x);
  };
  ExpectPure(operation);
}

// Heads 2 to 5 of 6, with their two of three key/value heads, as views and as separate buffers.
TEST_P(AttentionPurityTest, OfHeads) {
  const std::vector<Tensor> whole = MakeOperands(/*batch=*/2, /*heads=*/6, /*kv_heads=*/3);
  const bool is_kv[] = {false, true, true, false, false, false, false, true, true};
  const size_t kStatistics = 4;  // the one operand whose heads are dim 1
  std::vector<TensorView> views;
  std::vector<Tensor> copies;
  std::vector<TensorView> parts_of_whole;
  std::vector<Tensor> own;
  for (size_t i = 0; i < whole.size(); ++i) {
    const int dim = i == kStatistics ? 1 : 2;
    const int64_t first = is_kv[i] ? 1 : 2, last = is_kv[i] ? 3 : 6;
    parts_of_whole.push_back(whole[i].view().Slice(dim, first, last));
    own.push_back(Cloned(parts_of_whole[i]));
    copies.push_back(Cloned(whole[i]));
    // Statistics are contiguous.
    views.push_back(i == kStatistics ? own[i].view() : copies[i].view().Slice(dim, first, last));
  }
  Run(*backends_[0], Options(9, 3), {std::vector<TensorView>(whole.begin(), whole.end())});
  Run(*backends_[1], Options(9, 3 + 2), views);
  for (size_t i = 0; i < whole.size(); ++i) {
    ExpectBitwiseEqual(views[i], parts_of_whole[i], "views, operand " + std::to_string(i));
  }
  Run(*backends_[1], Options(9, 3 + 2), {std::vector<TensorView>(own.begin(), own.end())});
  for (size_t i = 0; i < whole.size(); ++i) {
    ExpectBitwiseEqual(own[i], parts_of_whole[i], "own buffers, operand " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, PurityTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionPurityTest, ::testing::Values(DType::kF32, DType::kBF16),
                         DTypeParamName);

}  // namespace
}  // namespace tessera
