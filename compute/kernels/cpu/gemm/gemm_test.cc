// Every bit of products, for every instruction set that the processor has, and AMX's on a model of
// its instructions (with AVX-512), compared with the contract in scalar code; operands end where
// memory does.

#include "compute/kernels/cpu/gemm/gemm.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/checked_math.h"
#include "base/for_each_target.h"
#include "tensor/bfloat16.h"

namespace tessera {
namespace {

// Zero for subnormals, as in the contract for bf16.
float Flushed(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// fma() with subnormals flushed: a result that would be less than the least normal number if
// exponents had no end is zero, although a subnormal one would be rounded up to it.
float FlushedFma(float a, float b, float c) {
  const float x = Flushed(a), y = Flushed(b), z = Flushed(c);
  const bool is_zero = std::abs(double{x} * double{y} + double{z}) < 0x1.ffffffp-127;
  const float rounded = std::fma(x, y, z);
  return is_zero ? std::copysign(0.0f, rounded) : rounded;
}

// An array between pages without access, at the end of its memory or at its beginning.
template <typename T>
class Guarded {
 public:
  Guarded(int64_t count, bool at_end) : count_(count) {
    const int64_t bytes = count * sizeof(T);
    room_ = RoundUp(bytes, kPage);
    memory_ = static_cast<char*>(mmap(nullptr, room_ + 2 * kPage, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_, kPage, PROT_NONE);
    mprotect(memory_ + kPage + room_, kPage, PROT_NONE);
    data_ = reinterpret_cast<T*>(memory_ + kPage + (at_end ? room_ - bytes : 0));
  }
  ~Guarded() { munmap(memory_, room_ + 2 * kPage); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return count_; }

 private:
  static constexpr int64_t kPage = 4096;
  int64_t count_, room_ = 0;
  char* memory_ = nullptr;
  T* data_ = nullptr;
};

class ChainGemmTest : public ::testing::Test {
 protected:
  // Normal numbers of all sizes, and, `tiny`, those whose products are subnormal.
  float Number(bool tiny) {
    const float x = std::ldexp(static_cast<float>(random_() >> 39), -24) - 1;
    return tiny ? std::ldexp(x, static_cast<int>(random_() % 60) - 90) : x;
  }

  template <typename T>
  void Fill(const Guarded<T>& x, bool tiny) {
    for (int64_t i = 0; i < x.size(); ++i) x[i] = T(Number(tiny));
  }

  // Numbers whose sums are exact, in any order.
  template <typename T>
  void MakeWhole(const Guarded<T>& x) {
    for (int64_t i = 0; i < x.size(); ++i) x[i] = T(std::round(4 * float(x[i])));
  }

  // The number of wrong elements of one product, over all instruction sets. `variant`: its flags, a
  // bit each.
  template <typename In, typename Out>
  int64_t Wrong(int64_t m, int64_t n, int64_t k, int variant, bool tiny, bool exact = true) {
    GemmShape shape = {.m = m, .n = n, .k = k};
    shape.input = sizeof(In) == 4 ? DType::kF32 : DType::kBF16;
    shape.output = sizeof(Out) == 4 ? DType::kF32 : DType::kBF16;
    shape.a_transposed = variant & 1;
    shape.b_transposed = variant & 2;
    shape.bias = variant & 4;
    shape.accumulate = variant & 8;
    const int64_t apart = variant & 16 ? 3 : 0;  // of rows
    shape.lda = (shape.a_transposed ? m : k) + apart;
    shape.ldb = (shape.b_transposed ? k : n) + apart;
    shape.ldc = n + apart;
    const bool at_end = random_() % 2 == 0;
    const Guarded<In> a((shape.a_transposed ? k : m) * shape.lda - apart, at_end);
    const Guarded<In> b((shape.b_transposed ? n : k) * shape.ldb - apart, at_end);
    const Guarded<In> bias(n, at_end);
    const Guarded<Out> c(m * shape.ldc - apart, at_end);
    Fill(a, tiny), Fill(b, tiny), Fill(bias, tiny), Fill(c, tiny);
    if (!exact) MakeWhole(a), MakeWhole(b), MakeWhole(bias), MakeWhole(c);
    const std::vector<Out> before(c.data(), c.data() + c.size());

    std::vector<Out> expected = before;
    for (int64_t i = 0; i < c.size(); ++i) {
      const int64_t row = i / shape.ldc, column = i % shape.ldc;
      if (column < n) {
        const auto at_a = [&](int64_t j) {
          return j >= k ? 0
                        : float(a[shape.a_transposed ? j * shape.lda + row : row * shape.lda + j]);
        };
        const auto at_b = [&](int64_t j) {
          return j >= k
                     ? 0
                     : float(
                           b[shape.b_transposed ? column * shape.ldb + j : j * shape.ldb + column]);
        };
        float sum = shape.accumulate ? float(before[i]) : 0;
        if (sizeof(In) == 4) {
          for (int64_t j = 0; j < k; ++j) sum = std::fma(at_a(j), at_b(j), sum);
          if (shape.bias) sum += float(bias[column]);
        } else {
          for (int64_t j = 0; j < k; j += 32) {
            float even = 0, odd = 0;
            for (int64_t i = j; i < j + 32; i += 2) {
              even = FlushedFma(at_a(i), at_b(i), even);
              odd = FlushedFma(at_a(i + 1), at_b(i + 1), odd);
            }
            sum = Flushed(Flushed(sum) + Flushed(even + odd));
          }
          if (shape.bias) sum = Flushed(sum + Flushed(float(bias[column])));
        }
        expected[i] = Out(sum);
      }
    }

    int64_t wrong = 0;
    const auto run = [&](const ChainGemm& gemm) {
      scratch_.resize(gemm.scratch_bytes() / 64 + 2);
      std::copy(before.begin(), before.end(), c.data());
      const unsigned mode = gemm::FlushSubnormals::Mode() & ~0x3fu;  // without what operations set
      gemm.Run(a.data(), b.data(), c.data(), shape.bias ? bias.data() : nullptr, scratch_.data());
      EXPECT_EQ(gemm::FlushSubnormals::Mode() & ~0x3fu, mode)
          << "the processor's mode is as before";
      for (int64_t i = 0; i < c.size(); ++i) {
        wrong += std::memcmp(&expected[i], &c[i], sizeof(Out)) != 0 ? 1 : 0;
      }
    };
    ForEachTarget([&](const char*) {
      run(ChainGemm(shape, exact));
      const gemm::Kernels* const amx = gemm::AmxKernels(/*modeled=*/true);
      if (sizeof(In) == 2 && amx != nullptr) run(ChainGemm(shape, *amx));
    });
    return wrong;
  }

  // The number of sums of products that differ from products of one term, added in the tree.
  template <typename In>
  int64_t WrongSums(int64_t m, int64_t n, int64_t k, int64_t terms, int variant, bool tiny) {
    GemmShape shape = {.m = m, .n = n, .k = k};
    shape.input = sizeof(In) == 4 ? DType::kF32 : DType::kBF16;
    shape.a_transposed = variant & 1;
    shape.b_transposed = variant & 2;
    shape.lda = shape.a_transposed ? m : k;
    shape.ldb = shape.b_transposed ? k : n;
    shape.ldc = n + (variant & 4 ? 3 : 0);
    const Guarded<In> a(terms * m * k, true), b(terms * k * n, true);
    const Guarded<float> c(m * shape.ldc - (shape.ldc - n), variant & 4);
    Fill(a, tiny), Fill(b, tiny);
    std::vector<GemmOperands> operands;
    for (int64_t i = 0; i < terms; ++i) {
      operands.push_back({a.data() + i * m * k, b.data() + i * k * n});
    }
    int64_t wrong = 0;
    const auto run = [&](const auto& gemm_of) {
      std::vector<std::vector<float>> parts(terms, std::vector<float>(c.size()));
      const ChainGemm one = gemm_of(shape);
      GemmShape of_all = shape;
      of_all.terms = terms;
      const ChainGemm sum = gemm_of(of_all);
      scratch_.resize(std::max(one.scratch_bytes(), sum.scratch_bytes()) / 64 + 2);
      for (int64_t i = 0; i < terms; ++i) {
        one.Run(operands[i].a, operands[i].b, parts[i].data(), nullptr, scratch_.data());
      }
      for (int64_t step = 1; step < terms; step *= 2) {
        for (int64_t i = 0; i + step < terms; i += 2 * step) {
          for (int64_t j = 0; j < c.size(); ++j) parts[i][j] += parts[i + step][j];
        }
      }
      std::fill_n(c.data(), c.size(), 0.0f);
      sum.Run(operands, c.data(), nullptr, scratch_.data());
      for (int64_t i = 0; i < c.size(); ++i) {
        wrong += std::memcmp(&parts[0][i], &c[i], sizeof(float)) != 0 ? 1 : 0;
      }
    };
    ForEachTarget([&](const char*) {
      run([](const GemmShape& of) { return ChainGemm(of, /*exact=*/true); });
      const gemm::Kernels* const amx = gemm::AmxKernels(/*modeled=*/true);
      if (sizeof(In) == 2 && amx != nullptr) {
        run([&](const GemmShape& of) { return ChainGemm(of, *amx); });
      }
    });
    return wrong;
  }

  void ExpectContract(int64_t m, int64_t n, int64_t k, int variant, bool tiny) {
    SCOPED_TRACE(::testing::Message() << m << "x" << n << "x" << k << " variant " << variant
                                      << (tiny ? ", tiny numbers" : ""));
    EXPECT_EQ((Wrong<float, float>(m, n, k, variant, tiny)), 0) << "fp32";
    EXPECT_EQ((Wrong<BFloat16, float>(m, n, k, variant, tiny)), 0) << "bf16 into fp32";
    EXPECT_EQ((Wrong<BFloat16, BFloat16>(m, n, k, variant, tiny)), 0) << "bf16";
  }

  std::mt19937_64 random_{1};
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> scratch_;
};

// Every extent up to 70 in each place, with the others at random.
TEST_F(ChainGemmTest, HasTheBitsOfTheContractInSmallShapes) {
  for (int64_t extent = 1; extent <= 70 && !HasFailure(); ++extent) {
    const auto other = [&] { return 1 + static_cast<int64_t>(random_() % 70); };
    const int variant = static_cast<int>(random_() % 32);
    ExpectContract(extent, other(), other(), variant, extent % 4 == 0);
    ExpectContract(other(), extent, other(), variant ^ 3, extent % 4 == 1);
    ExpectContract(other(), other(), extent, variant ^ 9, extent % 4 == 2);
  }
}

// Sums that are rounded to the least normal number of bf16 products, or not quite.
TEST_F(ChainGemmTest, FlushesWhatIsLessThanNormalAfterRounding) {
  constexpr int64_t kColumns = 4;
  // Times 2^-75: a last place of a sum just below 2^-126, 3/4 of one, 1/2 and 1/4.
  const float subtracted[kColumns] = {0x1p-75f, 0x1.8p-76f, 0x1p-76f, 0x1p-77f};
  const float expected[kColumns] = {0, 0, 0x1p-126f, 0x1p-126f};
  for (const float sign : {1.0f, -1.0f}) {
    std::vector<BFloat16> a(3), b(3 * kColumns);
    a[0] = BFloat16(sign * 0x1p-63f), a[2] = BFloat16(-sign * 0x1p-75f);
    for (int64_t i = 0; i < kColumns; ++i) {
      b[i] = BFloat16(0x1p-63f), b[2 * kColumns + i] = BFloat16(subtracted[i]);
    }
    const GemmShape shape = {.m = 1,
                             .n = kColumns,
                             .k = 3,
                             .lda = 3,
                             .ldb = kColumns,
                             .ldc = kColumns,
                             .input = DType::kBF16};
    const auto expect = [&](const ChainGemm& gemm, const char* target) {
      float c[kColumns];
      scratch_.resize(gemm.scratch_bytes() / 64 + 2);
      gemm.Run(a.data(), b.data(), c, nullptr, scratch_.data());
      for (int64_t i = 0; i < kColumns; ++i) EXPECT_EQ(c[i], sign * expected[i]) << target << i;
    };
    ForEachTarget([&](const char* target) {
      expect(ChainGemm(shape, true), target);
      const gemm::Kernels* const amx = gemm::AmxKernels(/*modeled=*/true);
      if (amx != nullptr) expect(ChainGemm(shape, *amx), "AMX ");
    });
  }
}

// Several parts of k, or blocks of columns: each with every two flags set and not set.
TEST_F(ChainGemmTest, HasTheBitsOfTheContractInLargeShapes) {
  for (int variant = 0; variant < 32 && !HasFailure(); ++variant) {
    const int64_t few = 1 + static_cast<int64_t>(random_() % 30);
    const int64_t many = 300 + static_cast<int64_t>(random_() % 900);
    if (std::popcount(static_cast<unsigned>(variant)) % 2 == 0) {
      ExpectContract(few, few, many, variant, variant % 3 == 0);
    } else {
      ExpectContract(few, many, 40, variant, false);
    }
  }
}

// Sums whose rows are packed once, or again for each block of columns; terms of one part of k, or
// of several; numbers whose products are normal and whose sums are not.
TEST_F(ChainGemmTest, AddsTermsInTheTree) {
  struct Case {
    int64_t m, n, k;
  };
  for (const Case& c : {Case{3, 20, 40}, Case{70, 50, 33}, Case{33, 400, 64}, Case{40, 35, 1100}}) {
    for (const int64_t terms : {2, 3, 4, 7}) {
      const int variant = static_cast<int>(random_() % 8);
      const bool tiny = random_() % 2 == 0;
      SCOPED_TRACE(::testing::Message() << terms << " * " << c.m << "x" << c.n << "x" << c.k
                                        << " variant " << variant << (tiny ? ", tiny" : ""));
      EXPECT_EQ(WrongSums<float>(c.m, c.n, c.k, terms, variant, tiny), 0) << "fp32";
      EXPECT_EQ(WrongSums<BFloat16>(c.m, c.n, c.k, terms, variant, tiny), 0) << "bf16";
    }
  }
  EXPECT_EQ(WrongSums<BFloat16>(300, 300, 40, 40, 1, false), 0) << "rows that do not stay";
}

// Products in the processor's fastest order.
TEST_F(ChainGemmTest, WithoutAContractMissNoElement) {
  for (int variant = 0; variant < 32; ++variant) {
    const auto any = [&](int64_t most) { return 1 + static_cast<int64_t>(random_() % most); };
    const int64_t m = any(70), n = any(70), k = variant % 2 == 0 ? any(70) : any(800);
    SCOPED_TRACE(::testing::Message() << m << "x" << n << "x" << k << " variant " << variant);
    EXPECT_EQ((Wrong<float, float>(m, n, k, variant, false, false)), 0) << "fp32";
    EXPECT_EQ((Wrong<BFloat16, float>(m, n, k, variant, false, false)), 0) << "bf16 into fp32";
    EXPECT_EQ((Wrong<BFloat16, BFloat16>(m, n, k, variant, false, false)), 0) << "bf16";
  }
}

// A processor whose instructions computed something else would not use them.
TEST_F(ChainGemmTest, TellsOtherBitsThanThoseOfTheModel) {
  const gemm::Kernels* const model = gemm::AmxKernels(/*modeled=*/true);
  if (model == nullptr) GTEST_SKIP() << "AMX comes with AVX-512 (needs: avx512)";
  EXPECT_TRUE(gemm::SameBits(*model, *model));
  static gemm::MultiplyFunction right = nullptr;
  right = model->multiply[1][1];
  gemm::Kernels other = *model;
  other.multiply[1][1] = [](const gemm::Tile& tile) {  // one sum is off by a bit
    right(tile);
    tile.to[0] = std::nextafter(tile.to[0], 0.0f);
  };
  EXPECT_FALSE(gemm::SameBits(*model, other));
  // Subnormal results, or operands, are not zeros.
  for (const unsigned flushing : {0x40u, 0x8000u}) {
    static unsigned mode = 0;
    mode = 0x1f80 | flushing;
    other.multiply[1][1] = [](const gemm::Tile& tile) {
      const unsigned before = gemm::FlushSubnormals::Mode();
      gemm::FlushSubnormals::SetMode(mode);
      right(tile);
      gemm::FlushSubnormals::SetMode(before);
    };
    EXPECT_FALSE(gemm::SameBits(*model, other)) << flushing;
  }
}

// The error of a chain of n terms grows as sqrt(n), and by no more than n units in the last place.
TEST_F(ChainGemmTest, ErrorsGrowAsThoseOfAChain) {
  for (const int64_t k : {64, 1024, 16384}) {
    std::vector<float> a(k), b(k * 16), c(16);
    for (float& x : a) x = std::abs(Number(false));
    for (float& x : b) x = std::abs(Number(false));
    const ChainGemm gemm({.m = 1, .n = 16, .k = k, .lda = k, .ldb = 16, .ldc = 16}, true);
    scratch_.resize(gemm.scratch_bytes() / 64 + 2);
    gemm.Run(a.data(), b.data(), c.data(), nullptr, scratch_.data());
    for (int64_t column = 0; column < 16; ++column) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += double{a[i]} * double{b[i * 16 + column]};
      const double error = std::abs(c[column] - sum) / sum * std::ldexp(1.0, 24);
      EXPECT_LE(error, 4 * std::sqrt(static_cast<double>(k))) << k;
    }
  }
}

// A product that is cut along k, each part added to the one before, is the product.
TEST_F(ChainGemmTest, GoesOnWhereItWasLeft) {
  const int64_t m = 20, n = 50, k = 160;
  for (const DType input : {DType::kF32, DType::kBF16}) {
    const int64_t size = ElementSize(input);
    std::vector<float> operands(k * (m + n));
    for (float& x : operands) x = Number(false);
    std::vector<BFloat16> halves;
    for (float x : operands) halves.push_back(BFloat16(x));
    const char* const a = input == DType::kF32 ? reinterpret_cast<char*>(operands.data())
                                               : reinterpret_cast<char*>(halves.data());
    const char* const b = a + k * m * size;
    const auto run = [&](int64_t first, int64_t depth, float* c) {
      const ChainGemm gemm({.m = m,
                            .n = n,
                            .k = depth,
                            .lda = m,
                            .ldb = n,
                            .ldc = n,
                            .a_transposed = true,
                            .input = input,
                            .accumulate = first > 0},
                           true);
      scratch_.resize(gemm.scratch_bytes() / 64 + 2);
      gemm.Run(a + first * m * size, b + first * n * size, c, nullptr, scratch_.data());
    };
    std::vector<float> whole(m * n), parts(m * n);
    run(0, k, whole.data());
    for (int64_t first = 0; first < k; first += 32) run(first, 32, parts.data());
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * 4), 0) << DTypeName(input);
  }
}

}  // namespace
}  // namespace tessera
