// Digests are the same on every processor and in every version, and any change changes them.

#include "checkpoint/format/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "base/for_each_target.h"
#include "base/testing.h"

namespace tessera::ckpt {
namespace {

// FORMAT.md's formula, one element at a time, with explicit arithmetic modulo 2^64.
using Wide = unsigned __int128;
constexpr Wide kModulus = Wide{1} << 64;

LogicalDigest Oracle(uint64_t first_index, const std::byte* data, size_t count,
                     size_t element_bytes) {
  Wide lo = 0, hi = 0;
  for (size_t i = 0; i < count; ++i) {
    Wide bits = 0;
    for (size_t b = 0; b < element_bytes; ++b) {
      bits |= static_cast<Wide>(data[i * element_bytes + b]) << (8 * b);
    }
    Wide z =
        ((Wide{first_index} + i) % kModulus * 0x9E3779B97F4A7C15 + 0x243F6A8885A308D3) % kModulus;
    z ^= bits;
    z ^= z >> 33;
    z = z * 0xFF51AFD7ED558CCD % kModulus;
    z ^= z >> 33;
    z = z * 0xC4CEB9FE1A85EC53 % kModulus;
    z ^= z >> 33;
    lo = (lo + z) % kModulus;
    hi = (hi + (z % (Wide{1} << 32)) * (z >> 32)) % kModulus;
  }
  return {static_cast<uint64_t>(lo), static_cast<uint64_t>(hi)};
}

TEST(Digest, EveryInstructionSetAgreesWithTheFormula) {
  std::mt19937_64 random(TestSeed());
  const std::vector<std::byte> bytes = RandomBytes(8 * 300 + 8, random);
  const std::vector<uint64_t> firsts = {
      0, 1, 7, 0xFFFFFFFF, uint64_t{1} << 40, ~uint64_t{0} - 20, random()};
  ForEachTarget([&](const char* target) {
    for (const size_t element_bytes : {1, 2, 4, 8}) {
      for (size_t count = 0; count < 300; count += count < 80 ? 1 : 37) {
        const uint64_t first = firsts[random() % firsts.size()];
        const std::byte* data = bytes.data() + random() % 8;  // any alignment
        ASSERT_EQ(DigestRun(first, data, count, element_bytes),
                  Oracle(first, data, count, element_bytes))
            << target << " " << element_bytes << " bytes, " << count << " from " << first;
      }
    }
  });
}

TEST(Digest, WithTheChecksumOnEveryInstructionSet) {
  std::mt19937_64 random(TestSeed());
  const std::vector<std::byte> bytes = RandomBytes(40 << 10, random);
  ForEachTarget([&](const char* target) {
    for (const size_t element_bytes : {1, 2, 4, 8}) {
      for (int i = 0; i < 30; ++i) {
        const uint64_t first = random();
        const std::byte* const data = bytes.data() + random() % 100;  // any alignment
        const size_t count = random() % ((39 << 10) / element_bytes);
        const uint32_t before = static_cast<uint32_t>(random());
        uint32_t crc32c = before;
        ASSERT_EQ(ChecksumRun(first, data, count, element_bytes, crc32c),
                  Oracle(first, data, count, element_bytes))
            << target << " " << element_bytes << " bytes, " << count << " from " << first;
        uint32_t expected = ~before;
        for (size_t b = 0; b < count * element_bytes; ++b) {
          expected ^= static_cast<uint32_t>(data[b]);
          for (int bit = 0; bit < 8; ++bit) {
            expected = (expected & 1) ? (expected >> 1) ^ 0x82F63B78 : expected >> 1;
          }
        }
        ASSERT_EQ(crc32c, ~expected) << target << " " << element_bytes << " bytes, " << count;
      }
    }
  });
}

TEST(Digest, OnTheWayOfACopyIsTheSame) {
  std::mt19937_64 random(TestSeed());
  const std::vector<std::byte> bytes = RandomBytes(16 << 10, random);
  const auto check_one = [&](const char* target) {
    const size_t element_bytes = size_t{1} << random() % 4;
    const size_t size = random() % (random() % 2 ? 200 : 8 << 10) / element_bytes * element_bytes;
    const std::byte* const data = bytes.data() + random() % 100;  // any alignment
    const size_t at = 8 + random() % 100;
    std::vector<std::byte> copy(at + size + 8, std::byte{0xA5});
    const size_t count = size / element_bytes;
    const uint64_t first = random();
    ASSERT_EQ(CopyAndDigestRun(first, data, copy.data() + at, count, element_bytes),
              DigestRun(first, data, count, element_bytes))
        << target << " " << element_bytes << " bytes, " << count << " elements";
    ASSERT_TRUE(std::equal(data, data + size, copy.begin() + at));
    ASSERT_EQ(std::ranges::count(copy.begin(), copy.begin() + at, std::byte{0xA5}), at);
    ASSERT_EQ(std::ranges::count(copy.end() - 8, copy.end(), std::byte{0xA5}), 8);
  };
  ForEachTarget([&](const char* target) {
    for (int round = 0; round < 500; ++round) ASSERT_NO_FATAL_FAILURE(check_one(target));
  });
}

// These numbers are on users' disks and must never change.
TEST(Digest, GoldenValues) {
  const float values[5] = {0.0f, 1.0f, -2.5f, 3e-40f, 1e30f};
  const LogicalDigest digest = DigestRun(3, values, 5, sizeof(float));
  EXPECT_EQ(digest.lo, 0xE85C1F22244F1C5Eu);
  EXPECT_EQ(digest.hi, 0x0F6CCEA33920A977u);
  EXPECT_EQ(DigestRun(0, nullptr, 0, 4), LogicalDigest());
}

// Many small, structured changes of one tensor; all digests must differ in each half. A 64-bit half
// of a good hash collides among a million with a probability of 3e-8.
class Perturbations : public testing::TestWithParam<size_t> {
 protected:
  void Add(const std::vector<std::byte>& tensor) {
    const LogicalDigest digest =
        DigestRun(0, tensor.data(), tensor.size() / GetParam(), GetParam());
    EXPECT_TRUE(lo_.insert(digest.lo).second) << "the lower halves of two contents agree";
    EXPECT_TRUE(hi_.insert(digest.hi).second) << "the upper halves of two contents agree";
  }
  void Flip(std::vector<std::byte>& tensor, size_t bit) {
    tensor[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }

  std::set<uint64_t> lo_, hi_;
};

TEST_P(Perturbations, EveryBitAndEveryPairOfBits) {
  for (const std::byte fill : {std::byte{0}, std::byte{0x3C}}) {
    std::vector<std::byte> tensor(8 * GetParam(), fill);
    Add(tensor);
    for (size_t a = 0; a < tensor.size() * 8; ++a) {
      Flip(tensor, a);
      Add(tensor);
      for (size_t b = a + 1; b < tensor.size() * 8; ++b) {
        Flip(tensor, b);
        Add(tensor);
        Flip(tensor, b);
      }
      Flip(tensor, a);
    }
  }
}

TEST_P(Perturbations, EverySwapAndEveryShift) {
  const size_t element_bytes = GetParam();
  constexpr size_t kCount = 200;
  std::vector<std::byte> tensor(kCount * element_bytes);
  for (size_t i = 0; i < kCount; ++i) tensor[i * element_bytes] = static_cast<std::byte>(i + 1);
  Add(tensor);
  const auto element = [&](size_t i) { return tensor.begin() + i * element_bytes; };
  for (size_t a = 0; a < kCount; ++a) {
    for (size_t b = a + 1; b < kCount; ++b) {
      std::swap_ranges(element(a), element(a) + element_bytes, element(b));
      Add(tensor);
      std::swap_ranges(element(a), element(a) + element_bytes, element(b));
    }
  }
  for (size_t shift = 1; shift < kCount; ++shift) {
    std::rotate(tensor.begin(), tensor.begin() + element_bytes, tensor.end());
    Add(tensor);
  }
}

TEST_P(Perturbations, EqualValuesAtOtherPlaces) {
  // One nonzero element at each place of a large tensor: moving a row of zeros must change the
  // digest.
  const size_t element_bytes = GetParam();
  std::vector<std::byte> tensor(4096 * element_bytes);
  for (size_t i = 0; i < 4096; ++i) {
    tensor[i * element_bytes] = std::byte{1};
    Add(tensor);
    tensor[i * element_bytes] = std::byte{0};
  }
}

INSTANTIATE_TEST_SUITE_P(ElementSizes, Perturbations, testing::Values(1, 2, 4, 8));

// Flipping any input bit flips each output bit about half of the time.
TEST(Digest, Avalanches) {
  std::mt19937_64 random(TestSeed());
  constexpr int kSamples = 4096;
  for (int bit = 0; bit < 64; ++bit) {
    std::vector<int> flips(64);
    for (int i = 0; i < kSamples; ++i) {
      const uint64_t index = random() % (uint64_t{1} << 36), bits = random();
      const uint64_t changed = bits ^ (uint64_t{1} << bit);
      const uint64_t difference =
          DigestRun(index, &bits, 1, 8).lo ^ DigestRun(index, &changed, 1, 8).lo;
      for (int out = 0; out < 64; ++out) flips[out] += (difference >> out) & 1;
    }
    for (int out = 0; out < 64; ++out) {
      // Ten standard deviations of a fair coin.
      EXPECT_NEAR(flips[out], kSamples / 2.0, 10 * 32)
          << "input bit " << bit << ", output bit " << out;
    }
  }
}

}  // namespace
}  // namespace tessera::ckpt
