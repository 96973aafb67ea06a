#include "compute/random/philox.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <set>
#include <vector>

namespace tessera {
namespace {

// kat_vectors of Random123, "philox4x32 10".
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0, 0),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Checkpoints and recorded runs rely on these values: a change here changes every run.
TEST(PhiloxTest, StreamsAreFrozen) {
  const RandomStream stream{1234, RandomUse::kInit, HashName("transformer.wte.weight")};
  EXPECT_EQ(HashName("transformer.wte.weight"), 0x3D8D70D21EE339AE);
  EXPECT_EQ(HashName(""), 0xC3817C016BA4FF30);
  EXPECT_EQ(MixCoordinates(1, 2), 0xBCD9DBB49673066B);
  EXPECT_EQ(RandomWord(stream, 0), 0x6025F22F);
  EXPECT_EQ(RandomWord(stream, (uint64_t{1} << 40) + 3), 0xDAB5760F);
}

TEST(PhiloxTest, WordIsTheWordOfItsBlock) {
  const RandomStream stream{7, RandomUse::kDropout, 99};
  for (uint64_t element = 0; element < 64; ++element) {
    EXPECT_EQ(RandomWord(stream, element), RandomBlock(stream, element / 4)[element % 4]);
  }
}

TEST(PhiloxTest, MixIsOrderedAndSpreads) {
  EXPECT_NE(MixCoordinates(1, 2), MixCoordinates(2, 1));
  std::set<uint64_t> seen;
  for (uint64_t a = 0; a < 100; ++a) {
    for (uint64_t b = 0; b < 100; ++b) seen.insert(MixCoordinates(a, b));
  }
  EXPECT_EQ(seen.size(), 10000);
}

// Each coordinate of a stream changes about half of the bits: adjacent seeds, uses and streams are
// uncorrelated.
TEST(PhiloxTest, EveryCoordinateSeparatesStreams) {
  const RandomStream base{5, RandomUse::kInit, 10};
  const std::vector<RandomStream> others = {{6, RandomUse::kInit, 10},
                                            {5, RandomUse::kDropout, 10},
                                            {5, RandomUse::kInit, 11},
                                            {5, RandomUse::kInit, 10 + (uint64_t{1} << 32)},
                                            {5 + (uint64_t{1} << 32), RandomUse::kInit, 10}};
  for (size_t i = 0; i < others.size(); ++i) {
    int64_t bits = 0;
    for (uint64_t e = 0; e < 4096; ++e) {
      bits += std::popcount(RandomWord(base, e) ^ RandomWord(others[i], e));
    }
    // Mean 65536, standard deviation sqrt(4096 * 32 / 4) = 181.
    EXPECT_NEAR(bits, 65536, 1000) << i;
  }
}

TEST(PhiloxTest, UniformIsUniformInTheHalfOpenInterval) {
  constexpr int kBins = 64;
  constexpr int kSamples = 1 << 18;
  const RandomStream stream{42, RandomUse::kDropout, 3};
  std::vector<int> counts(kBins);
  double sum = 0;
  for (uint64_t e = 0; e < kSamples; ++e) {
    const float u = RandomUniform(stream, e);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++counts[static_cast<size_t>(u * kBins)];
    sum += u;
  }
  EXPECT_NEAR(sum / kSamples, 0.5, 5 * std::sqrt(1.0 / 12 / kSamples));
  const double expected = double{kSamples} / kBins;
  double chi_squared = 0;
  for (const int count : counts) chi_squared += (count - expected) * (count - expected) / expected;
  // 63 degrees of freedom: mean 63, standard deviation 11.2.
  EXPECT_LT(chi_squared, 63 + 5 * 11.2);
  EXPECT_GT(chi_squared, 63 - 5 * 11.2);
}

TEST(PhiloxTest, NormalHasTheMomentsAndTailsOfANormal) {
  constexpr int kSamples = 1 << 20;
  const RandomStream stream{42, RandomUse::kInit, 17};
  std::vector<float> x(kSamples);
  FillRandomNormal(stream, 0, x);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag = 0;
  int beyond_2 = 0, beyond_4 = 0;
  for (int i = 0; i < kSamples; ++i) {
    const double v = x[i];
    ASSERT_TRUE(std::isfinite(v));
    m1 += v, m2 += v * v, m3 += v * v * v, m4 += v * v * v * v;
    if (i > 0) lag += v * x[i - 1];
    beyond_2 += std::abs(v) > 2;
    beyond_4 += std::abs(v) > 4;
  }
  const double n = kSamples;
  const double unit = 1 / std::sqrt(n);
  EXPECT_NEAR(m1 / n, 0, 5 * unit);
  EXPECT_NEAR(m2 / n, 1, 5 * std::sqrt(2.0) * unit);
  EXPECT_NEAR(m3 / n, 0, 5 * std::sqrt(15.0) * unit);
  EXPECT_NEAR(m4 / n, 3, 5 * std::sqrt(96.0) * unit);
  EXPECT_NEAR(lag / n, 0, 5 * unit);
  EXPECT_NEAR(beyond_2 / n, 0.0455, 5 * std::sqrt(0.0455) * unit);
  EXPECT_NEAR(beyond_4, 6.334e-5 * n, 5 * std::sqrt(6.334e-5 * n));
}

TEST(PhiloxTest, FillEqualsOneByOneFromAnyStart) {
  const RandomStream stream{3, RandomUse::kInit, 5};
  for (uint64_t first :
       {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, (uint64_t{1} << 34) - 2}) {
    for (size_t count = 0; count < 12; ++count) {
      std::vector<float> filled(count);
      FillRandomNormal(stream, first, filled);
      for (size_t i = 0; i < count; ++i) {
        float one = 0;
        FillRandomNormal(stream, first + i, {&one, 1});
        EXPECT_EQ(std::bit_cast<uint32_t>(filled[i]), std::bit_cast<uint32_t>(one));
      }
    }
  }
}

}  // namespace
}  // namespace tessera
