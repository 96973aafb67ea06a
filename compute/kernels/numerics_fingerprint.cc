#include "compute/kernels/numerics_fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compute/random/philox.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {

std::vector<std::string> NumericsDifferences(const NumericsFingerprint& a,
                                             const NumericsFingerprint& b,
                                             const std::string& here) {
  std::vector<std::string> differences;
  const auto add = [&](const char* what, const std::string& x, const std::string& y) {
    if (x != y) differences.push_back(absl::StrCat(what, " ", x, ", ", here, " ", y));
  };
  add("instruction set", a.instruction_set, b.instruction_set);
  add("matrix products by", a.library, b.library);
  if (a.products_hash != b.products_hash) differences.push_back("other bits of matrix products");
  if (a.loops_hash != b.loops_hash) differences.push_back("other bits of the remaining operations");
  return differences;
}

namespace {

class Hash {
 public:
  explicit Hash(Backend& backend) : backend_(backend) {}

  void Add(const TensorView& x) {
    std::vector<char> bytes(static_cast<size_t>(x.bytes()));
    backend_.Download(x, bytes.data());
    for (size_t at = 0; at < bytes.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
      Add(word);
    }
  }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  uint64_t value() const { return value_; }

 private:
  void Add(uint64_t word) { value_ = MixCoordinates(value_, word); }

  Backend& backend_;
  uint64_t value_ = 0;
};

// Returns sixteen pseudo-random bits for an element.
inline uint32_t Scramble(uint32_t element) {
  uint32_t bits = element * 2654435761u;
  bits ^= bits >> 15;
  bits *= 2246822519u;
  return bits >> 16;
}

// Returns zeros in the backend's memory.
Tensor Zeros(Backend& backend, DType dtype, Shape shape) {
  return Tensor(dtype, std::move(shape), backend.device());
}

Tensor OnDevice(Backend& backend, Tensor host) {
  if (backend.device().type == DeviceType::kCpu) return host;
  const TensorView view = host;
  Tensor moved = Zeros(backend, view.dtype(), view.shape());
  backend.Upload(view.data(), moved);
  return moved;
}

// Returns an operand in (-1, 1) + offset of many magnitudes, so that sums of products are rounded.
// They are exact, so that they are the same everywhere: seven bits, which bf16 can hold, scaled by
// 2^-15 to 1; fp32 has all sixteen in its significand instead.
Tensor Operand(Backend& backend, DType dtype, Shape shape, uint32_t seed, float offset = 0) {
  Tensor x(dtype, std::move(shape));
  const int64_t n = x.view().elements();
  if (dtype == DType::kF32) {
    auto* to = x.view().as<float>();
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = static_cast<int32_t>(Scramble(static_cast<uint32_t>(i) + seed));
      to[i] = static_cast<float>(bits - 32768) * 0x1p-15f + offset;
    }
  } else {
    auto* to = x.view().as<uint16_t>();
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = static_cast<int32_t>(Scramble(static_cast<uint32_t>(i) + seed));
      const float scale = std::bit_cast<float>((127 - (bits & 15)) << 23);
      const float value = static_cast<float>((bits >> 8) - 128) * 0x1p-7f * scale + offset;
      to[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    }
  }
  return OnDevice(backend, std::move(x));
}

Tensor Ids(Backend& backend, Shape shape, int32_t below) {
  Tensor ids(DType::kI32, std::move(shape));
  for (int64_t i = 0; i < ids.view().elements(); ++i) {
    ids.view().as<int32_t>()[i] = static_cast<int32_t>(i * 7 % below);
  }
  return OnDevice(backend, std::move(ids));
}

// Hashes c = a b in each way that models multiply: activations by weights, plain and transposed,
// gradients of weights, sums over shards.
void HashProducts(Backend& backend, DType dtype, int64_t long_columns, Hash& hash) {
  const auto product = [&](int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed,
                           DType output, bool accumulate, bool bias) {
    const Tensor a = Operand(backend, dtype, a_transposed ? Shape{k, m} : Shape{m, k}, 1);
    const Tensor b = Operand(backend, dtype, b_transposed ? Shape{n, k} : Shape{k, n}, 2);
    const Tensor added = Operand(backend, dtype, {n}, 3), c = Operand(backend, output, {m, n}, 4);
    backend.MatMul({a_transposed ? a.view().Transpose(0, 1) : a.view(),
                    b_transposed ? b.view().Transpose(0, 1) : b.view(), c, accumulate,
                    bias ? added.view() : TensorView()});
    hash.Add(c);
  };
  product(64, long_columns, 3072, false, false, dtype, false, false);
  product(48, 160, 768, false, true, dtype, false, true);
  product(192, 128, 512, true, false, DType::kF32, true, false);
  product(5, 33, 70, false, true, DType::kF32, false, false);

  const Tensor a = Operand(backend, dtype, {32, 3 * 128}, 5),
               b = Operand(backend, dtype, {3 * 128, 64}, 6);
  const Tensor c = Zeros(backend, DType::kF32, {32, 64});
  std::vector<MatMulOperands> terms;
  for (int64_t i = 0; i < 3; ++i) {
    terms.push_back(
        {a.view().Slice(1, 128 * i, 128 * (i + 1)), b.view().Slice(0, 128 * i, 128 * (i + 1))});
  }
  backend.MatMulTree({terms, c});
  hash.Add(c);
}

// Hashes two products and a softmax per head.
void HashAttention(Backend& backend, DType dtype, Hash& hash) {
  const Shape shape = {1, 80, 2, 64};
  const AttentionOptions options = {.scale = 0.125};
  const Tensor q = Operand(backend, dtype, shape, 1), k = Operand(backend, dtype, shape, 2);
  const Tensor v = Operand(backend, dtype, shape, 3), d_out = Operand(backend, dtype, shape, 4);
  const Tensor out = Zeros(backend, dtype, shape),
               log_sum_exp = Zeros(backend, DType::kF32, {1, 2, 80});
  const Tensor d_q = Zeros(backend, dtype, shape), d_k = Zeros(backend, dtype, shape),
               d_v = Zeros(backend, dtype, shape);
  backend.AttentionForward({options, q, k, v, out, log_sum_exp});
  backend.AttentionBackward({options, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v});
  for (const Tensor* x : {&out, &log_sum_exp, &d_q, &d_k, &d_v}) hash.Add(*x);
}

// The hashes below are of our own loops. Rows and columns that do not fill a vector.
constexpr int64_t kRows = 9, kColumns = 100;

void HashNorms(Backend& backend, DType dtype, Hash& hash) {
  const Tensor x = Operand(backend, dtype, {kRows, kColumns}, 1),
               weight = Operand(backend, dtype, {kColumns}, 2, 1);
  const Tensor bias = Operand(backend, dtype, {kColumns}, 3),
               d_out = Operand(backend, dtype, {kRows, kColumns}, 4);
  const Tensor out = Zeros(backend, dtype, {kRows, kColumns}),
               mean = Zeros(backend, DType::kF32, {kRows});
  const Tensor rstd = Zeros(backend, DType::kF32, {kRows}),
               d_x = Operand(backend, dtype, {kRows, kColumns}, 5);
  const Tensor d_weight = Zeros(backend, DType::kF32, {kColumns}),
               d_bias = Zeros(backend, DType::kF32, {kColumns});
  backend.LayerNormForward({x, weight, bias, 1e-5, out, mean, rstd});
  hash.Add(out);
  backend.LayerNormBackward({d_out, x, weight, mean, rstd, d_x, true, d_weight, d_bias, false});
  for (const Tensor* y : {&mean, &rstd, &d_x, &d_weight, &d_bias}) hash.Add(*y);
  backend.RmsNormForward({x, weight, 1e-5, out, rstd});
  backend.RmsNormBackward({d_out, x, weight, rstd, d_x, true, d_weight, true});
  for (const Tensor* y : {&out, &rstd, &d_x, &d_weight}) hash.Add(*y);
}

void HashElementwise(Backend& backend, DType dtype, Hash& hash) {
  const Tensor x = Operand(backend, dtype, {kRows, kColumns}, 1),
               d_out = Operand(backend, dtype, {kRows, kColumns}, 2);
  const Tensor out = Zeros(backend, dtype, {kRows, kColumns}),
               sums = Zeros(backend, DType::kF32, {kColumns});
  backend.GeluForward({x, out});
  hash.Add(out);
  backend.GeluBackward({d_out, x, out});
  hash.Add(out);
  backend.SumRows({out, sums, false});
  hash.Add(sums);

  const Tensor half = Zeros(backend, dtype, {kRows, kColumns / 2}),
               d_both = Zeros(backend, dtype, {kRows, kColumns});
  const Tensor d_half = Operand(backend, dtype, {kRows, kColumns / 2}, 3);
  backend.SwiGluForward({x, half});
  hash.Add(half);
  backend.SwiGluBackward({d_half, x, d_both});
  hash.Add(d_both);

  const Dropout dropout = {.probability = 0.3,
                           .stream = {.seed = 1, .use = RandomUse::kDropout},
                           .rows_per_sample = kRows,
                           .global_columns = kColumns};
  backend.ApplyDropout({dropout, d_both});
  hash.Add(d_both);

  const Tensor heads = Operand(backend, dtype, {1, kRows, 2, 48}, 4);
  const Tensor cosine = Operand(backend, DType::kF32, {kRows, 24}, 5),
               sine = Operand(backend, DType::kF32, {kRows, 24}, 6);
  backend.Rope({cosine, sine, false, heads});
  hash.Add(heads);

  const Tensor wide = Operand(backend, DType::kF32, {kRows, kColumns}, 7),
               narrow = Zeros(backend, dtype, {kRows, kColumns});
  backend.AddBias({wide, Operand(backend, dtype, {kColumns}, 8), narrow});
  backend.Add({narrow, x, narrow});
  backend.Scale({narrow, 1.0 / 3});
  hash.Add(narrow);
}

void HashEmbeddingAndLoss(Backend& backend, DType dtype, Hash& hash) {
  const Tensor ids = Ids(backend, {kRows}, 5), rows = Operand(backend, dtype, {kRows, kColumns}, 1);
  const Tensor d_table = Zeros(backend, DType::kF32, {5, kColumns});
  backend.EmbeddingBackward({rows, ids, 0, d_table});
  hash.Add(d_table);

  const Tensor logits = Operand(backend, dtype, {kRows, kColumns}, 2),
               targets = Ids(backend, {kRows}, 90);
  const Tensor stats = Zeros(backend, DType::kF32, {1, kRows, 3}),
               combined = Zeros(backend, DType::kF32, {kRows, 3});
  const Tensor losses = Zeros(backend, DType::kF32, {kRows});
  backend.CrossEntropyStats({logits, 90, targets, 0, stats.view().Reshape({kRows, 3})});
  backend.CrossEntropyLoss({stats, targets, combined, losses});
  backend.CrossEntropyBackward({combined, targets, 90, 0, 1.0 / kRows, logits});
  for (const Tensor* y : {&stats, &combined, &losses, &logits}) hash.Add(*y);
}

void HashUpdate(Backend& backend, DType dtype, Hash& hash) {
  constexpr int64_t kElements = 5001;
  const Tensor gradient = Operand(backend, DType::kF32, {kElements}, 1);
  const Tensor master = Operand(backend, DType::kF32, {kElements}, 2),
               parameter = Zeros(backend, dtype, {kElements});
  const Tensor m = Operand(backend, DType::kF32, {kElements}, 3),
               v = Operand(backend, DType::kF32, {kElements}, 4, 2);
  const AdamWOptions options = {
      .learning_rate = 3e-4, .weight_decay = 0.1, .step = 3, .grad_scale = 0.7};
  backend.AdamW({options, gradient, master, m, v, parameter});
  for (const Tensor* y : {&master, &m, &v, &parameter}) hash.Add(*y);
  hash.Add(backend.SumOfSquares({gradient}));
  hash.Add(backend.Sum({gradient}));
}

}  // namespace

FixedResults ComputeFixedResults(Backend& backend, bool bf16) {
  Hash products(backend), loops(backend);
  std::vector<DType> dtypes = {DType::kF32};
  if (bf16) dtypes.push_back(DType::kBF16);
  for (const DType dtype : dtypes) {
    HashProducts(backend, dtype, dtype == DType::kF32 ? 768 : 192, products);
    HashAttention(backend, dtype, products);
  }
  for (const DType dtype : dtypes) {
    HashNorms(backend, dtype, loops);
    HashElementwise(backend, dtype, loops);
    HashEmbeddingAndLoss(backend, dtype, loops);
    HashUpdate(backend, dtype, loops);
  }
  return {.products_hash = products.value(), .loops_hash = loops.value()};
}

}  // namespace tessera
