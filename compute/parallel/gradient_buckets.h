#ifndef TESSERA_COMPUTE_PARALLEL_GRADIENT_BUCKETS_H_
#define TESSERA_COMPUTE_PARALLEL_GRADIENT_BUCKETS_H_

// How the gradient space of a stage (compute/parallel/gradient_observer.h) is divided into buckets,
// the units of reduction, and every bucket into one piece per data-parallel rank, the units of ZeRO
// ownership.

#include <cstdint>
#include <vector>

#include "compute/tensor/flat_parameter.h"

namespace tessera {

// Buckets and pieces are cut at multiples of it, and the gradients' norm (gradient_norm.h) is taken
// over blocks of it.
inline constexpr int64_t kGradientBlock = kFlatAlignment;

struct GradientLayout {
  std::vector<FlatParameter> parameters;  // in flat order
  int64_t value_elements = 0;             // of the flat space of values
  int64_t gradient_elements = 0;          // including the second gradients, behind the values
};

struct GradientBucket {
  int64_t begin = 0;  // in the gradient space; includes gaps behind parameters
  int64_t end = 0;
  std::vector<int> parameters;          // indices in the layout
  bool second = false;                  // for the second gradient of parameters[0]
  std::vector<int64_t> piece_elements;  // by data rank; some may be 0

  int64_t elements() const { return end - begin; }
  // The beginning of a rank's piece.
  int64_t PieceBegin(int rank) const;
  int64_t PieceEnd(int rank) const { return PieceBegin(rank) + piece_elements[rank]; }
};

// Buckets from the end of the values to their start, the order in which a backward pass completes
// them (second gradients first), covering the gradient space. Each contains as many neighbouring
// parameters as fit into `bucket_elements`, but at least one. Pieces: multiples of kGradientBlock
// (except at the end of the space), as equal as that permits. Preconditions (CHECKed): parameters
// are disjoint, in order, at multiples of kGradientBlock.
std::vector<GradientBucket> CutBuckets(const GradientLayout& layout, int64_t bucket_elements,
                                       int data_ranks);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_GRADIENT_BUCKETS_H_
