// R rows, V local columns of the vocabulary, S shards. The three columns of stats: maximum, sum of
// exponentials, target logit.

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/backend_impl.h"
#include "compute/tensor/tensor.h"

namespace tessera::reference {

// stats[r,0] = max_{c<valid} logits[r,c]   (-inf for a shard that is all padding)
// stats[r,1] = sum_{c<valid} exp(logits[r,c] - stats[r,0])
// stats[r,2] = logits[r, targets[r] - first_id], 0 where that is no column below `valid`
void ReferenceBackend::CrossEntropyStats(TensorView logits, int64_t valid, TensorView targets,
                                         int64_t first_id, TensorView stats) {
  const Array input(logits);
  const std::vector<int64_t> ids = LoadIds(targets);
  CHECK(valid >= 0 && valid <= input.dim(1)) << valid;
  Array result({input.dim(0), 3});
  for (int64_t r = 0; r < input.dim(0); ++r) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < valid; ++c) maximum = std::max(maximum, input(r, c));
    result(r, 0) = maximum;
    for (int64_t c = 0; c < valid; ++c) result(r, 1) += std::exp(input(r, c) - maximum);
    const int64_t column = ids[r] - first_id;
    if (ids[r] >= 0 && column >= 0 && column < valid) result(r, 2) = input(r, column);
  }
  result.StoreTo(stats);
}

// combined[r,0] = max_s stats[s,r,0]
// combined[r,1] = sum_s stats[s,r,1] exp(stats[s,r,0] - combined[r,0])
// combined[r,2] = sum_s stats[s,r,2]
// losses[r] = log combined[r,1] + combined[r,0] - combined[r,2], 0 where targets[r] < 0
void ReferenceBackend::CrossEntropyLoss(TensorView stats, TensorView targets, TensorView combined,
                                        TensorView losses) {
  const Array input(stats);
  const std::vector<int64_t> ids = LoadIds(targets);
  const int64_t shards = input.dim(0), rows = input.dim(1);
  Array merged({rows, 3}), loss({rows});
  for (int64_t r = 0; r < rows; ++r) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t s = 0; s < shards; ++s) maximum = std::max(maximum, input(s, r, 0));
    merged(r, 0) = maximum;
    for (int64_t s = 0; s < shards; ++s) {
      merged(r, 1) += input(s, r, 1) * std::exp(input(s, r, 0) - maximum);
      merged(r, 2) += input(s, r, 2);
    }
    if (ids[r] >= 0) loss(r) = std::log(merged(r, 1)) + maximum - merged(r, 2);
  }
  merged.StoreTo(combined);
  loss.StoreTo(losses);
}

// logits[r,c] = (exp(logits[r,c] - combined[r,0]) / combined[r,1] - [c == targets[r] - first_id])
// * grad_scale; 0 for c >= valid and where targets[r] < 0
void ReferenceBackend::CrossEntropyBackward(TensorView combined, TensorView targets, int64_t valid,
                                            int64_t first_id, double grad_scale,
                                            TensorView logits) {
  const Array stats(combined), input(logits);
  const std::vector<int64_t> ids = LoadIds(targets);
  Array gradient(input.shape());
  for (int64_t r = 0; r < input.dim(0); ++r) {
    if (ids[r] < 0) continue;
    for (int64_t c = 0; c < valid; ++c) {
      const double probability = std::exp(input(r, c) - stats(r, 0)) / stats(r, 1);
      gradient(r, c) = (probability - (c == ids[r] - first_id ? 1 : 0)) * grad_scale;
    }
  }
  gradient.StoreTo(logits);
}

}  // namespace tessera::reference
