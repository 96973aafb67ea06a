#include "trainer/data/batch_loader.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compute/random/philox.h"

namespace tessera {
namespace {

absl::Status CheckRoom(int64_t count, int64_t sequence_length, std::span<int32_t> ids,
                       std::span<int32_t> targets) {
  const int64_t wanted = count * sequence_length;
  if (count >= 0 && ids.size() == wanted && targets.size() == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("room for ", ids.size(), " ids and ", targets.size(), " targets, ", count,
                   " samples of ", sequence_length, " have ", wanted));
}

// Even small domains are well mixed after ten rounds. Changing the number would change every run.
constexpr int kRounds = 10;

}  // namespace

BatchLoader::BatchLoader(const TokenDataset* dataset, uint64_t seed)
    : dataset_(dataset), order_(seed, dataset->num_samples()) {}

absl::Status BatchLoader::FillBatch(int64_t consumed_samples, int64_t first, int64_t count,
                                    std::span<int32_t> ids, std::span<int32_t> targets) const {
  const int64_t length = dataset_->sequence_length();
  if (absl::Status status = CheckRoom(count, length, ids, targets); !status.ok()) return status;
  if (consumed_samples < 0 || first < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("position ", consumed_samples, " + ", first, ": expected 0 or more of both"));
  }
  for (int64_t b = 0; b < count; ++b) {
    TESSERA_RETURN_IF_ERROR(dataset_->ReadSample(order_.SampleAt(consumed_samples + first + b),
                                                 ids.subspan(b * length, length),
                                                 targets.subspan(b * length, length)));
  }
  return absl::OkStatus();
}

absl::Status BatchLoader::FillEvaluationBatch(int64_t first, int64_t count, std::span<int32_t> ids,
                                              std::span<int32_t> targets) const {
  const int64_t length = dataset_->sequence_length();
  if (absl::Status status = CheckRoom(count, length, ids, targets); !status.ok()) return status;
  for (int64_t b = 0; b < count; ++b) {
    TESSERA_RETURN_IF_ERROR(dataset_->ReadSample(first + b, ids.subspan(b * length, length),
                                                 targets.subspan(b * length, length)));
  }
  return absl::OkStatus();
}

absl::Status ErrorKeepingLoader::Keep(const absl::Status& read, std::span<int32_t> ids,
                                      std::span<int32_t> targets) const {
  if (read.ok()) return read;
  std::ranges::fill(ids, 0);
  std::ranges::fill(targets, 0);
  const MutexLock lock(&mutex_);
  error_.Update(read);
  return absl::OkStatus();
}

absl::Status ErrorKeepingLoader::FillBatch(int64_t consumed_samples, int64_t first, int64_t count,
                                           std::span<int32_t> ids,
                                           std::span<int32_t> targets) const {
  return Keep(BatchLoader::FillBatch(consumed_samples, first, count, ids, targets), ids, targets);
}

absl::Status ErrorKeepingLoader::FillEvaluationBatch(int64_t first, int64_t count,
                                                     std::span<int32_t> ids,
                                                     std::span<int32_t> targets) const {
  return Keep(BatchLoader::FillEvaluationBatch(first, count, ids, targets), ids, targets);
}

absl::Status ErrorKeepingLoader::kept_error() const {
  const MutexLock lock(&mutex_);
  return error_;
}

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
