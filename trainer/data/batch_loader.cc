#include "trainer/data/batch_loader.h"

#include "absl/strings/str_cat.h"

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
    absl::Status status =
        dataset_->ReadSample(order_.SampleAt(consumed_samples + first + b),
                             ids.subspan(b * length, length), targets.subspan(b * length, length));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status BatchLoader::FillEvaluationBatch(int64_t first, int64_t count, std::span<int32_t> ids,
                                              std::span<int32_t> targets) const {
  const int64_t length = dataset_->sequence_length();
  if (absl::Status status = CheckRoom(count, length, ids, targets); !status.ok()) return status;
  for (int64_t b = 0; b < count; ++b) {
    absl::Status status = dataset_->ReadSample(first + b, ids.subspan(b * length, length),
                                               targets.subspan(b * length, length));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tessera
