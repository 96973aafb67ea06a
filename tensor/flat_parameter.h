#ifndef TESSERA_TENSOR_FLAT_PARAMETER_H_
#define TESSERA_TENSOR_FLAT_PARAMETER_H_

#include <cstdint>
#include <string>

namespace tessera {

// Parameters start at multiples of this many elements of their flat buffer, and what ranks own of
// it is cut at such: the blocks over which the gradients' norm is taken never straddle owners.
inline constexpr int64_t kFlatAlignment = 256;

inline int64_t AlignedElements(int64_t elements) {
  return (elements + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
}

// A parameter as what works on flat buffers knows it: gradient buckets and the optimizer.
struct FlatParameter {
  std::string key;    // the same on every topology
  int64_t begin = 0;  // in the flat space of values, and of gradients
  int64_t elements = 0;
  bool weight_decay = true;
  // The storage has a second name (a tied table). Its gradient is complete at another time than its
  // neighbours', and its other copy may be on another stage: it has a bucket of its own.
  bool tied = false;
  // Position of the tied-embedding gradient of the head in the gradient space; negative: none.
  int64_t second_begin = -1;
  // A copy of the parameter on another pipeline stage has the other part of the gradient.
  bool on_two_stages = false;
};

}  // namespace tessera

#endif  // TESSERA_TENSOR_FLAT_PARAMETER_H_
