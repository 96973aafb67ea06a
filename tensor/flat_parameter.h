#ifndef TESSERA_TENSOR_FLAT_PARAMETER_H_
#define TESSERA_TENSOR_FLAT_PARAMETER_H_

#include <cstdint>
#include <string>

#include "base/checked_math.h"

namespace tessera {

// Alignment, in elements, of parameters in their flat buffer and of the ranges that ranks own. The
// blocks over which the gradients' norm is taken therefore never straddle owners.
inline constexpr int64_t kFlatAlignment = 256;

inline int64_t AlignedElements(int64_t elements) { return RoundUp(elements, kFlatAlignment); }

// A parameter as gradient buckets and the optimizer see it, which work on flat buffers.
struct FlatParameter {
  std::string key;    // the same on every topology
  int64_t begin = 0;  // in the flat space of values, and of gradients
  int64_t elements = 0;
  bool weight_decay = true;
  // Whether the storage has a second name (a tied table). Such a parameter has a bucket of its own,
  // because its gradient is complete at another time than its neighbours' and its other copy may be
  // on another stage.
  bool tied = false;
  // Position of the tied-embedding gradient of the head in the gradient space; negative: none.
  int64_t second_begin = -1;
  // Whether a copy of the parameter on another pipeline stage has the other part of the gradient.
  bool on_two_stages = false;
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_FLAT_PARAMETER_H_
