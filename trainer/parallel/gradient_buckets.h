#ifndef TESSERA_TRAINER_PARALLEL_GRADIENT_BUCKETS_H_
#define TESSERA_TRAINER_PARALLEL_GRADIENT_BUCKETS_H_

// How the gradient space of a stage (trainer/parallel/gradient_observer.h) is cut into buckets, the
// units of reduction, and every bucket into one piece per data-parallel rank, the units of ZeRO
// ownership.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// Parameters start at multiples of this many elements, and pieces are cut at such: the blocks over
// which the gradients' norm is taken (gradient_norm.h) thus never straddle owners.
inline constexpr int64_t kGradientBlock = 256;

struct GradientParameter {
  std::string key;    // the same on every topology
  int64_t begin = 0;  // in the flat space of values, and of the gradient
  int64_t elements = 0;
  // The storage has a second name (a tied table). Its gradient is complete at another time than its
  // neighbours', and its other copy may be elsewhere: it has a bucket of its own.
  bool tied = false;
  // Where the second contribution stands in the gradient space; negative: there is none.
  int64_t second_begin = -1;
  // A copy of the parameter on another pipeline stage has the rest of the gradient.
  bool on_two_stages = false;
};

struct GradientLayout {
  std::vector<GradientParameter> parameters;  // in flat order
  int64_t value_elements = 0;                 // of the flat space of values
  int64_t gradient_elements = 0;              // second contributions included, behind the values
};

struct GradientBucket {
  int64_t begin = 0;  // in the gradient space; gaps behind parameters included
  int64_t end = 0;
  std::vector<int> parameters;          // indices in the layout
  bool second = false;                  // of the second contribution of parameters[0]
  std::vector<int64_t> piece_elements;  // by data rank; some may be 0

  int64_t elements() const { return end - begin; }
  // Of a rank's piece.
  int64_t PieceBegin(int rank) const;
  int64_t PieceEnd(int rank) const { return PieceBegin(rank) + piece_elements[rank]; }
};

// Buckets from the end of the values to their start, the order in which a backward pass completes
// them (second contributions first), covering the gradient space. Each has as many neighbouring
// parameters as fit into `bucket_elements`, at least one. Pieces: multiples of kGradientBlock (but
// for the end of the space), as even as that allows.
// Preconditions (CHECKed): parameters are disjoint, in order, at multiples of kGradientBlock.
std::vector<GradientBucket> CutBuckets(const GradientLayout& layout, int64_t bucket_elements,
                                       int data_ranks);

}  // namespace tessera

#endif  // TESSERA_TRAINER_PARALLEL_GRADIENT_BUCKETS_H_
