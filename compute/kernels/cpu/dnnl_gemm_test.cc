// oneDNN's products, on any machine that can run them, compared with fp64: over
// layouts, extents that leave remainders, parts of k and of columns, bias and accumulation.

#include "compute/kernels/cpu/dnnl_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

// A store of normal numbers, since drawing new ones for every product would take most of the time.
class Numbers {
 public:
  Numbers() : store_(testing::RandomTensors(20260512).Normal(DType::kF32, {kStored})) {}

  template <typename T>
  std::vector<T> Next(int64_t count) {
    const float* const stored = store_.view().as<float>();
    std::vector<T> numbers(count);
    for (T& number : numbers) number = T(stored[next_++ % kStored]);
    return numbers;
  }

 private:
  static constexpr int64_t kStored = 10007;  // prime: rows of the same length differ
  const Tensor store_;
  int64_t next_ = 0;
};

class GemmTest : public ::testing::TestWithParam<DType> {
 protected:
  const ThreadPool pool_{1};  // no additional threads
  Workspace scratch_{1};
  DnnlGemms dnnl_{1, scratch_};
  Numbers numbers_;
};

// Operands of one product, with padding between their rows, and its expected result.
template <typename In, typename Out>
class Case {
 public:
  Case(const GemmShape& shape, Numbers& numbers)
      : shape_(shape),
        a_(numbers.Next<In>((shape.a_transposed ? shape.k : shape.m) * shape.lda)),
        b_(numbers.Next<In>((shape.b_transposed ? shape.n : shape.k) * shape.ldb)),
        bias_(numbers.Next<In>(shape.n)),
        c_(numbers.Next<Out>(shape.m * shape.ldc)) {}

  // The whole buffer of c, including the padding between its rows. `shift`: elements by which every
  // operand is offset from its allocation.
  std::vector<Out> Run(const Gemm& gemm, int64_t shift = 0) const {
    const std::vector<In> a = Shifted(a_, shift), b = Shifted(b_, shift);
    const std::vector<In> bias = Shifted(bias_, shift);
    std::vector<Out> c = Shifted(c_, shift);
    gemm.Run(0, a.data() + shift, b.data() + shift, c.data() + shift,
             shape_.bias ? bias.data() + shift : nullptr);
    return {c.begin() + shift, c.end()};
  }

  // Each element is within sum_error times the magnitude of its terms, plus `rounding` times its
  // own, and the padding between rows is unmodified.
  void ExpectResult(const std::vector<Out>& c, double sum_error, double rounding) const {
    int64_t wrong = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(c.size()); ++i) {
      const int64_t row = i / shape_.ldc, column = i % shape_.ldc;
      if (column >= shape_.n) {
        wrong += float(c[i]) != float(c_[i]);
        continue;
      }
      double sum = 0, magnitude = 0;
      const auto add = [&](double term) { sum += term, magnitude += std::abs(term); };
      if (shape_.accumulate) add(float(c_[i]));
      if (shape_.bias) add(float(bias_[column]));
      for (int64_t k = 0; k < shape_.k; ++k) {
        const In x = a_[shape_.a_transposed ? k * shape_.lda + row : row * shape_.lda + k];
        const In y = b_[shape_.b_transposed ? column * shape_.ldb + k : k * shape_.ldb + column];
        add(double(float(x)) * float(y));
      }
      wrong += !(std::abs(float(c[i]) - sum) <= sum_error * magnitude + rounding * std::abs(sum));
    }
    EXPECT_EQ(wrong, 0) << "of " << c.size() << " elements";
  }

 private:
  template <typename T>
  static std::vector<T> Shifted(const std::vector<T>& x, int64_t shift) {
    std::vector<T> moved(shift + x.size());
    std::copy(x.begin(), x.end(), moved.begin() + shift);
    return moved;
  }

  const GemmShape shape_;
  const std::vector<In> a_, b_, bias_;
  const std::vector<Out> c_;
};

struct DnnlExtents {
  int64_t m, n, k;
};
constexpr DnnlExtents kExtents[] = {{1, 1, 1},    {1, 9, 3},     {5, 1, 17},   {13, 31, 7},
                                    {29, 70, 40}, {5, 27, 1600}, {3, 523, 400}};

// Calls body(shape) for every layout, with and without bias, accumulation and padded rows.
void ForEachShape(const DnnlExtents& e, DType input, DType output,
                  const std::function<void(const GemmShape&)>& body) {
  for (int variant = 0; variant < 32; ++variant) {
    GemmShape shape = {.m = e.m, .n = e.n, .k = e.k, .input = input, .output = output};
    shape.a_transposed = variant & 1;
    shape.b_transposed = variant & 2;
    shape.bias = variant & 4;
    shape.accumulate = variant & 8;
    const int64_t room = variant & 16 ? 3 : 0;
    shape.lda = (shape.a_transposed ? e.m : e.k) + room;
    shape.ldb = (shape.b_transposed ? e.k : e.n) + room;
    shape.ldc = e.n + room;
    SCOPED_TRACE(::testing::Message() << e.m << "x" << e.n << "x" << e.k << " variant " << variant);
    body(shape);
  }
}

TEST_P(GemmTest, MatchesFp64) {
  if (GetParam() == DType::kBF16 && !DnnlHasBf16()) {
    GTEST_SKIP() << "there are no such products (needs: avx512_bf16)";
  }
  for (const DnnlExtents& e : kExtents) {
    ForEachShape(e, GetParam(), DType::kF32, [&](const GemmShape& shape) {
      const auto check = [&](const auto& product, double error) {
        product.ExpectResult(product.Run(*dnnl_.Make(shape)), error, 0);
      };
      if (GetParam() == DType::kF32) return check(Case<float, float>(shape, numbers_), 1e-6);
      check(Case<BFloat16, float>(shape, numbers_), 1e-5);
    });
  }
}

TEST_P(GemmTest, BitsDoNotDependOnAddresses) {
  ForEachShape({13, 300, 400}, DType::kF32, DType::kF32, [&](const GemmShape& shape) {
    const Case<float, float> product(shape, numbers_);
    const std::unique_ptr<Gemm> gemm = dnnl_.Make(shape);
    const std::vector<float> expected = product.Run(*gemm);
    for (int64_t shift : {1, 2, 5, 8}) EXPECT_EQ(product.Run(*gemm, shift), expected) << shift;
  });
}

INSTANTIATE_TEST_SUITE_P(InputDTypes, GemmTest, ::testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace tessera
