#include "compute/parallel/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include "compute/comm/communicator.h"
#include "glog/logging.h"

namespace tessera {
namespace {

void CheckLayout(const GradientLayout& layout) {
  int64_t previous_end = 0, previous_second_end = layout.value_elements;
  for (const FlatParameter& parameter : layout.parameters) {
    CHECK_EQ(parameter.begin % kGradientBlock, 0) << parameter.key;
    CHECK_GE(parameter.begin, previous_end) << parameter.key << ": parameters out of order";
    previous_end = parameter.begin + parameter.elements;
    if (parameter.second_begin < 0) continue;
    CHECK_EQ(parameter.second_begin % kGradientBlock, 0) << parameter.key;
    CHECK_GE(parameter.second_begin, previous_second_end) << parameter.key;
    previous_second_end = parameter.second_begin + parameter.elements;
  }
  CHECK_LE(previous_end, layout.value_elements);
  CHECK_LE(previous_second_end, layout.gradient_elements);
}

std::vector<int64_t> CutPieces(int64_t elements, int ranks) {
  const int64_t blocks = (elements + kGradientBlock - 1) / kGradientBlock;
  std::vector<int64_t> pieces = EvenCounts(blocks, ranks);
  int64_t begin = 0;
  for (int64_t& piece : pieces) {
    piece = std::min(piece * kGradientBlock, elements - begin);
    begin += piece;
  }
  return pieces;
}

bool Alone(const FlatParameter& parameter) {
  return parameter.tied || parameter.on_two_stages || parameter.second_begin >= 0;
}

// A tied table's buckets must have the same boundaries on every stage: without the gap behind it,
// whose size depends on the next parameter.
int64_t AlignedEnd(int64_t begin, const FlatParameter& parameter) {
  return begin + AlignedElements(parameter.elements);
}

}  // namespace

int64_t GradientBucket::PieceBegin(int rank) const {
  int64_t position = begin;
  for (int r = 0; r < rank; ++r) position += piece_elements[r];
  return position;
}

std::vector<GradientBucket> CutBuckets(const GradientLayout& layout, int64_t bucket_elements,
                                       int data_ranks) {
  CheckLayout(layout);
  CHECK_GT(bucket_elements, 0);
  std::vector<GradientBucket> buckets;
  const int count = static_cast<int>(layout.parameters.size());
  for (int i = count - 1; i >= 0; --i) {
    const FlatParameter& parameter = layout.parameters[i];
    if (parameter.second_begin < 0) continue;
    const int64_t end =
        std::min(AlignedEnd(parameter.second_begin, parameter), layout.gradient_elements);
    buckets.push_back({.begin = parameter.second_begin,
                       .end = end,
                       .parameters = {i},
                       .second = true,
                       .piece_elements = {}});
  }
  bool open = false;  // whether the last bucket takes more
  int64_t end = layout.value_elements;
  for (int i = count - 1; i >= 0; --i) {
    const FlatParameter& parameter = layout.parameters[i];
    const bool alone = Alone(parameter);
    if (open && !alone && buckets.back().end - parameter.begin <= bucket_elements) {
      buckets.back().begin = parameter.begin;
      buckets.back().parameters.push_back(i);
    } else {
      buckets.push_back({.begin = parameter.begin,
                         .end = alone ? std::min(AlignedEnd(parameter.begin, parameter), end) : end,
                         .parameters = {i},
                         .piece_elements = {}});
    }
    open = !alone;
    end = parameter.begin;
  }
  for (GradientBucket& bucket : buckets) {
    std::reverse(bucket.parameters.begin(), bucket.parameters.end());
    bucket.piece_elements = CutPieces(bucket.elements(), data_ranks);
  }
  return buckets;
}

}  // namespace tessera
