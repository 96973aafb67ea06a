#include "trainer/data/sample_order.h"

#include <algorithm>
#include <bit>

#include "compute/random/philox.h"

namespace tessera {
namespace {

// Even small domains are well mixed after ten rounds. Changing the number would change every run.
constexpr int kRounds = 10;

}  // namespace

SampleOrder::SampleOrder(uint64_t seed, int64_t num_samples)
    : seed_(seed), num_samples_(num_samples) {
  const int bits = std::bit_width(static_cast<uint64_t>(num_samples) - 1);
  half_bits_ = std::max(1, (bits + 1) / 2);
}

int64_t SampleOrder::SampleAt(int64_t position) const {
  return Permute(EpochAt(position), position % num_samples_);
}

int64_t SampleOrder::Permute(int64_t epoch, int64_t index) const {
  uint64_t value = index;
  do {
    value = Encrypt(epoch, value);
  } while (value >= static_cast<uint64_t>(num_samples_));
  return static_cast<int64_t>(value);
}

uint64_t SampleOrder::Encrypt(int64_t epoch, uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const RandomStream stream{seed_, RandomUse::kDataOrder, MixCoordinates(epoch, round)};
    const uint64_t mixed = left ^ (RandomBlock(stream, right)[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

}  // namespace tessera
