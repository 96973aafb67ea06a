#include "compute/parallel/gradient_buckets.h"

#include <algorithm>

#include "base/checked_math.h"
#include "comm/communicator.h"
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
  const int64_t blocks = CeilDivide(elements, kGradientBlock);
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

// Returns whether contribution i opens a subtree, to which later ones are added.
bool Opens(int64_t i, int64_t contributions, bool tree) {
  return i == 0 || (tree && i % 2 == 0 && i + 1 < contributions);
}

void AddInto(Backend& backend, const TensorView& sum, const TensorView& term) {
  if (sum.elements() > 0) backend.Add({sum, term, sum});
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

BucketBuffers::Loan BucketBuffers::Borrow(int64_t elements) {
  const int size = SizeOf(elements);
  if (sizes_[size].free.empty() && sizes_[size].made >= sizes_[size].limit) return {};
  return Take(size, elements);
}

BucketBuffers::Loan BucketBuffers::BorrowAnyway(int64_t elements) {
  return Take(SizeOf(elements), elements);
}

BucketBuffers::Loan BucketBuffers::Take(int size, int64_t elements) {
  Size& of_size = sizes_[size];
  CHECK_LE(elements, of_size.elements);
  if (of_size.free.empty()) {
    of_size.free.push_back(static_cast<int>(buffers_.size()));
    buffers_.push_back({.tensor = Tensor(dtype_, {of_size.elements}, device_), .size = size});
    ++of_size.made;
  }
  const int buffer = of_size.free.back();
  of_size.free.pop_back();
  return {.buffer = buffer, .memory = buffers_[buffer].tensor.view().Slice(0, 0, elements)};
}

void BucketBuffers::Return(Loan& loan) {
  if (loan.none()) return;
  sizes_[buffers_[loan.buffer].size].free.push_back(loan.buffer);
  loan = {};
}

TensorView BucketSum::Place(int64_t i) {
  if (!Opens(i, contributions_, tree_)) return {};
  if (i == 0) return result_;
  if (free_.empty()) {
    free_.push_back(static_cast<int>(buffers_.size()));
    buffers_.emplace_back(result_.dtype(), result_.shape(), device_);
  }
  return buffers_[free_.back()].view();
}

void BucketSum::Add(Backend& backend, int64_t i, const TensorView& from) {
  const bool opens = Opens(i, contributions_, tree_);
  if (opens && i == 0) {
    CHECK(terms_.empty());
    terms_.push_back({.contributions = 1, .sum = result_, .buffer = -1});
  } else if (opens) {
    terms_.push_back({.contributions = 1, .sum = Place(i), .buffer = free_.back()});
    free_.pop_back();
  }
  if (opens) {
    if (from.data() != terms_.back().sum.data()) backend.Copy({from, terms_.back().sum});
    return;
  }
  CHECK(!terms_.empty());
  AddInto(backend, terms_.back().sum, from);
  ++terms_.back().contributions;
  const bool last = i + 1 == contributions_;
  while (terms_.size() >= 2) {
    const Term& right = terms_.back();
    if (!last && right.contributions != terms_[terms_.size() - 2].contributions) break;
    MergeLastTwo(backend);
  }
}

void BucketSum::MergeLastTwo(Backend& backend) {
  const Term right = terms_.back();
  terms_.pop_back();
  AddInto(backend, terms_.back().sum, right.sum);
  terms_.back().contributions += right.contributions;
  free_.push_back(right.buffer);
}

void BucketSum::Reset() {
  CHECK_LE(terms_.size(), 1u) << "a step ended before all of its micro-batches";
  terms_.clear();
}

int64_t MaxOpenTerms(int64_t contributions, bool tree) {
  // Adds contributions one by one, as AddTerm() does, and counts the subtrees that are open at
  // once.
  std::vector<int64_t> terms;
  size_t most = 1;
  for (int64_t i = 0; i < contributions; ++i) {
    if (Opens(i, contributions, tree)) {
      terms.push_back(1);
    } else {
      ++terms.back();
    }
    most = std::max(most, terms.size());
    while (terms.size() >= 2 && terms[terms.size() - 2] == terms.back()) {
      terms.pop_back();
      terms.back() *= 2;
    }
  }
  return static_cast<int64_t>(most) - 1;
}

}  // namespace tessera
