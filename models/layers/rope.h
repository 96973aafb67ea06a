#ifndef TESSERA_MODELS_LAYERS_ROPE_H_
#define TESSERA_MODELS_LAYERS_ROPE_H_

#include <cstdint>
#include <vector>

#include "compute/kernels/backend.h"
#include "tensor/tensor.h"

namespace tessera {

// Llama-3.1's scaling of the low frequencies to contexts longer than trained.
struct RopeScaling {
  bool enabled = false;
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_max_positions = 8192;
};

// Rotary position embedding (Su et al., 2021), in the convention of Hugging Face's Llama: pairs (i,
// i + D/2). Holds the angles of all prepared positions, computed in fp64.
class Rope {
 public:
  Rope(int64_t head_size, double base, const RopeScaling& scaling);

  // The angle by which each pair turns from one position to the next, in radians.
  const std::vector<double>& frequencies() const { return frequencies_; }

  // Computes the tables for sequences up to this length, in the backend's memory. Must not be
  // called during a pass.
  void Prepare(int64_t sequence, Backend& backend);
  // Return tables [end - begin, D/2] fp32, of the positions [begin, end). Precondition: prepared
  // for `end`.
  TensorView cos(int64_t begin, int64_t end) const { return cos_.view().Slice(0, begin, end); }
  TensorView sin(int64_t begin, int64_t end) const { return sin_.view().Slice(0, begin, end); }

 private:
  std::vector<double> frequencies_;  // [D/2]
  Tensor cos_;
  Tensor sin_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_ROPE_H_
