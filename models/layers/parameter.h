#ifndef TESSERA_MODELS_LAYERS_PARAMETER_H_
#define TESSERA_MODELS_LAYERS_PARAMETER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/tensor/tensor.h"

namespace tessera {

// One box of a logical tensor inside a parameter's local buffer. A plain parameter has one piece; a
// fused one (Llama's q, k, v in one matrix; a tensor-parallel slice of GPT-2's c_attn) has several.
struct ParameterPiece {
  std::string name;    // of the logical tensor: Hugging Face's name, global layer index
  Shape global_shape;  // unpadded
  std::vector<int64_t> global_offset;  // of the piece in the logical tensor
  std::vector<int64_t> local_offset;   // of the piece in the local buffer
  Shape shape;                         // of the piece, padding excluded
};

struct Initialization {
  enum Kind { kZeros, kOnes, kNormal } kind = kZeros;
  double standard_deviation = 0;
};

// A trainable buffer of this rank. Names of parameters and pieces are the same on every topology.
struct Parameter {
  Shape shape;  // of the local buffer, padding included; padding is zero and stays zero
  std::vector<ParameterPiece> pieces;  // cover all of the buffer except padding
  Initialization init;
  bool weight_decay = true;  // false for norms and biases
  std::string tied_name;  // a second logical name of the same storage ("lm_head.weight"), or empty
  int64_t flat_offset = 0;  // of the first element in the ParameterSet's flat buffers
  TensorView value;         // compute dtype
  TensorView grad;          // fp32 (fp64 where the compute dtype is fp64)
};

// All parameters of a stage in flat buffers, in model order, each parameter starting at a multiple
// of 64 elements, so that an optimizer, a bucket or a ZeRO owner is a flat range. Pointers returned
// by Add stay valid.
class ParameterSet {
 public:
  // Declares a parameter before Allocate(). The reference stays valid.
  Parameter& Add(Parameter parameter);
  // Allocates values (compute dtype); gradients only when `with_gradients`.
  void Allocate(DType compute_dtype, Device device, bool with_gradients);
  // Fills values from counter-based random numbers keyed by (seed, logical name, element of the
  // LOGICAL tensor), whatever the sharding.
  void Initialize(uint64_t seed);

  const std::vector<Parameter*>& parameters() const { return order_; }
  const Tensor& values() const { return values_; }  // [flat]
  const Tensor& grads() const { return grads_; }    // [flat]
  int64_t flat_elements() const { return flat_elements_; }
  // Elements of all pieces: padding excluded, tied parameters once.
  int64_t logical_elements() const;

 private:
  std::vector<Parameter*> order_;
  std::vector<std::unique_ptr<Parameter>> owned_;
  Tensor values_;
  Tensor grads_;
  int64_t flat_elements_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_PARAMETER_H_
