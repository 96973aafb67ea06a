#ifndef TESSERA_MODELS_LAYERS_PARAMETER_H_
#define TESSERA_MODELS_LAYERS_PARAMETER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layout/partition.h"
#include "tensor/tensor.h"

namespace tessera {

// One box of a logical tensor inside a parameter's local buffer. A plain parameter has one piece; a
// fused one (Llama's q, k, v in one matrix; a tensor-parallel slice of GPT-2's c_attn) has several.
// A piece may be empty: a shard of the vocabulary that is all padding.
struct ParameterPiece {
  std::string name;    // of the logical tensor: Hugging Face's name, global layer index
  Shape global_shape;  // unpadded
  std::vector<int64_t> global_offset;  // of the piece in the logical tensor
  std::vector<int64_t> local_offset;   // of the piece in the local buffer
  Shape shape;                         // of the piece, padding excluded
  Shape padded_global_shape = {};      // with the padding that ranks have in memory; empty: none
  Partition partition = {};            // of the logical tensor
};

struct Initialization {
  enum Kind { kZeros, kOnes, kNormal } kind = kZeros;
  double standard_deviation = 0;
};

// A trainable buffer of this rank: a whole tensor, or one virtual shard of a tensor-parallel layer
// (compute/parallel/tensor_parallel.h). Each virtual shard has its own buffer, however many a rank
// holds.
struct Parameter {
  Shape shape;  // of the local buffer, padding included; padding is zero and stays zero
  std::vector<ParameterPiece> pieces;  // at least one; cover all of the buffer except padding
  Initialization init;
  bool weight_decay = true;  // false for norms and biases
  std::string tied_name;  // a second logical name of the same storage ("lm_head.weight"), or empty
  int shard = -1;         // virtual shard; -1: not sharded, the same on every tensor-parallel rank
  bool has_second_grad = false;  // two contributions to the gradient are kept apart

  // Filled in by ParameterSet. The first piece's name, and "/v" + shard if sharded: unique, and the
  // same on every topology with one number of virtual shards.
  std::string key;
  int64_t flat_offset = 0;  // of the first element in the ParameterSet's flat buffers
  TensorView value;         // compute dtype
  TensorView grad;          // fp32 (fp64 where the compute dtype is fp64); empty without memory
  // A tied table's contribution from the head, at second_grad_offset of the gradient space; `grad`
  // is the embedding's.
  TensorView second_grad;
  int64_t second_grad_offset = -1;

  int64_t elements() const { return ElementCount(shape); }
};

// All parameters of a stage in flat buffers, in model order. An optimizer, a bucket or a ZeRO owner
// is therefore a flat range. Each parameter starts at a multiple of kFlatAlignment elements, so
// that the blocks by which gradient norms are summed are the same wherever a range is cut.
//
// The gradient space has the same layout, followed by the second contributions, aligned alike.
class ParameterSet {
 public:
  // Declares a parameter before Allocate(). The reference stays valid.
  Parameter& Add(Parameter parameter);
  // Allocates values (compute dtype), and gradients if `with_gradients`.
  void Allocate(DType compute_dtype, Device device, bool with_gradients);
  // Fills values from counter-based random numbers keyed by (seed, logical name, element of the
  // LOGICAL tensor), whatever the sharding.
  // Precondition: the values are in host memory.
  void Initialize(uint64_t seed);
  // Fills `flat`, host memory that is laid out as values(), as Initialize() fills the values.
  void InitializeInto(uint64_t seed, const TensorView& flat) const;

  // Binds the gradients in [begin, end) of the gradient space to `memory` (end - begin elements of
  // grad_dtype()), or to nothing if it is empty. Precondition: the range splits no parameter.
  void BindGradients(int64_t begin, int64_t end, const TensorView& memory);

  const std::vector<Parameter*>& parameters() const { return order_; }
  const Tensor& values() const { return values_; }  // [flat_elements()]
  const Tensor& grads() const { return grads_; }    // [gradient_elements()], or empty
  DType grad_dtype() const { return grad_dtype_; }
  int64_t flat_elements() const { return flat_elements_; }
  // Returns the size of the gradient space, at least flat_elements(). Precondition: allocated.
  int64_t gradient_elements() const { return gradient_elements_; }
  // Returns the elements of all pieces: padding excluded, tied parameters once.
  int64_t logical_elements() const;

 private:
  std::vector<Parameter*> order_;
  std::vector<std::unique_ptr<Parameter>> owned_;
  Tensor values_;
  Tensor grads_;
  DType grad_dtype_ = DType::kF32;
  int64_t flat_elements_ = 0;
  int64_t gradient_elements_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_PARAMETER_H_
