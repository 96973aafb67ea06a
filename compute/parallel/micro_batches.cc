#include "compute/parallel/micro_batches.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace tessera {

int64_t GlobalMicroBatch(const MicroBatchSplit& split, int rank, int64_t i) {
  CHECK_EQ(split.micro_batches % split.data_ranks, 0);
  CHECK(0 <= rank && rank < split.data_ranks && 0 <= i && i < split.local());
  return split.zero_stage == 2 ? i * split.data_ranks + rank : rank * split.local() + i;
}

absl::Status CheckMicroBatches(int64_t global_batch_size, int64_t micro_batch_size,
                               int data_parallel_size, int zero_stage, bool exact) {
  CHECK(micro_batch_size > 0 && data_parallel_size > 0);
  const std::string sizes =
      absl::StrCat("global_batch_size ", global_batch_size, ", micro_batch_size ", micro_batch_size,
                   ", data_parallel_size ", data_parallel_size);
  if (global_batch_size <= 0 || global_batch_size % (micro_batch_size * data_parallel_size) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(sizes,
                     ": the global batch must be a multiple of micro_batch_size * "
                     "data_parallel_size = ",
                     micro_batch_size * data_parallel_size));
  }
  if (!exact || data_parallel_size == 1) return absl::OkStatus();
  const int64_t micro_batches = global_batch_size / micro_batch_size;
  if (zero_stage == 2) {
    if (IsPowerOfTwo(data_parallel_size) || micro_batches == data_parallel_size) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(sizes,
                                                   ": EXACT with ZeRO 2 needs a data_parallel_size "
                                                   "that is a power of two, or global_batch_size "
                                                   "/ micro_batch_size = data_parallel_size"));
  }
  const int64_t local = micro_batches / data_parallel_size;
  if (IsPowerOfTwo(local)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(sizes, ": EXACT needs the micro-batches of a data-parallel rank, here ", local,
                   ", to be a power of two"));
}

}  // namespace tessera
