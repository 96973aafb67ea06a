#include "compute/parallel/bucket_sum.h"

#include <algorithm>

#include "glog/logging.h"

namespace tessera {
namespace {

// Whether contribution i opens a subtree, to which later ones are added.
bool Opens(int64_t i, int64_t contributions, bool tree) {
  return i == 0 || (tree && i % 2 == 0 && i + 1 < contributions);
}

void AddInto(Backend& backend, const TensorView& sum, const TensorView& term) {
  if (sum.elements() > 0) backend.Add({sum, term, sum});
}

}  // namespace

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
  // Open subtrees: those of the contributions so far, by powers of two.
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
