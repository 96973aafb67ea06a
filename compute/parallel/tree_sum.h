#ifndef TESSERA_COMPUTE_PARALLEL_TREE_SUM_H_
#define TESSERA_COMPUTE_PARALLEL_TREE_SUM_H_

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// Sums of n numbers in fp64 that have the same bits however the numbers are distributed over ranks.
// They are added in one fixed binary tree, T(0, n), whose leaves are the numbers. Each part of the
// tree is split in two: T(a, b) = T(a, m) + T(m, b), where m is a plus the largest power of two
// below b - a. ReduceOp (comm/communicator.h) has the same tree over ranks.
//
// If each of several owners holds a run of the leaves, it contributes the sums of the largest
// subtrees inside its run, at most 2 log2(n) numbers. Those of all owners give T(0, n), with the
// same bits as a single owner of everything.

// Returns T(0, leaves.size()); 0 for no leaves.
double TreeSum(std::span<const double> leaves);

// Returns the number of largest subtrees of T(0, n) inside the run [begin, end). 0 <= begin <= end
// <= n.
int64_t SubtreeCount(int64_t begin, int64_t end, int64_t n);

// A subtree of T(0, n). The sum of [begin, end) is T(0, end - begin) over its leaves.
struct Subtree {
  int64_t begin = 0;
  int64_t end = 0;
};
// Returns the largest subtrees of T(0, n) inside the run [begin, end), from left to right.
std::vector<Subtree> SubtreesOf(int64_t begin, int64_t end, int64_t n);

// Returns T(0, n) from the sums of SubtreesOf() the runs [ends[i - 1], ends[i]) (the first starts
// at 0, the last ends at n; runs may be empty), concatenated.
double CombineSubtrees(std::span<const int64_t> ends, std::span<const double> sums);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_TREE_SUM_H_
