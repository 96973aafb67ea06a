#include "compute/parallel/tree_sum.h"

#include <bit>
#include <cstddef>

#include "glog/logging.h"

namespace tessera {
namespace {

// Returns the split point of T(begin, end). Precondition: at least two leaves.
int64_t Middle(int64_t begin, int64_t end) {
  const auto below = static_cast<uint64_t>(end - begin - 1);
  return begin + static_cast<int64_t>(std::bit_floor(below));
}

// T over leaves, of which there is at least one.
double Sum(const double* leaves, int64_t n) {
  if (n == 1) return leaves[0];
  if (n == 2) return leaves[0] + leaves[1];
  const int64_t middle = Middle(0, n);
  return Sum(leaves, middle) + Sum(leaves + middle, n - middle);
}

// Calls visit(begin, end) for the largest subtrees of T(node_begin, node_end) inside the run, from
// left to right.
template <typename Visit>
void ForEachSubtree(int64_t node_begin, int64_t node_end, int64_t begin, int64_t end,
                    const Visit& visit) {
  if (begin >= node_end || end <= node_begin || begin == end) return;
  if (begin <= node_begin && node_end <= end) {
    visit(node_begin, node_end);
    return;
  }
  const int64_t middle = Middle(node_begin, node_end);
  ForEachSubtree(node_begin, middle, begin, end, visit);
  ForEachSubtree(middle, node_end, begin, end, visit);
}

// Traverses T(0, n) in the order in which owners contribute their sums.
class Combiner {
 public:
  Combiner(std::span<const int64_t> ends, std::span<const double> sums)
      : ends_(ends), sums_(sums) {}

  double Node(int64_t begin, int64_t end) {
    while (ends_[run_] <= begin) ++run_;
    if (end <= ends_[run_]) {
      CHECK_LT(next_, sums_.size()) << "fewer sums than the runs have subtrees";
      return sums_[next_++];
    }
    const int64_t middle = Middle(begin, end);
    const double left = Node(begin, middle);
    return left + Node(middle, end);
  }

  bool used_all() const { return next_ == sums_.size(); }

 private:
  const std::span<const int64_t> ends_;
  const std::span<const double> sums_;
  size_t run_ = 0;
  size_t next_ = 0;
};

}  // namespace

double TreeSum(std::span<const double> leaves) {
  return leaves.empty() ? 0 : Sum(leaves.data(), static_cast<int64_t>(leaves.size()));
}

int64_t SubtreeCount(int64_t begin, int64_t end, int64_t n) {
  return static_cast<int64_t>(SubtreesOf(begin, end, n).size());
}

std::vector<Subtree> SubtreesOf(int64_t begin, int64_t end, int64_t n) {
  CHECK(0 <= begin && end <= n) << "leaves [" << begin << ", " << end << ") of " << n;
  std::vector<Subtree> subtrees;
  ForEachSubtree(0, n, begin, end, [&](int64_t node_begin, int64_t node_end) {
    subtrees.push_back({node_begin, node_end});
  });
  return subtrees;
}

double CombineSubtrees(std::span<const int64_t> ends, std::span<const double> sums) {
  CHECK(!ends.empty());
  double sum = 0;
  Combiner combiner(ends, sums);
  if (ends.back() > 0) sum = combiner.Node(0, ends.back());
  CHECK(combiner.used_all()) << "more sums than the runs have subtrees";
  return sum;
}

}  // namespace tessera
