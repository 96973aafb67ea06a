#ifndef TESSERA_MODELS_LAYERS_PASS_H_
#define TESSERA_MODELS_LAYERS_PASS_H_

#include <cstdint>
#include <string_view>

#include "trainer/kernels/backend.h"

namespace tessera {

// What every layer needs to know of the micro-batch that passes through it. R = batch * sequence
// rows, batch-major.
struct Pass {
  Backend& backend;
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t first_sample = 0;
  bool training = false;  // dropout on

  int64_t rows() const { return batch * sequence; }
};

// One place of the model where elements are dropped: a random stream of its own, keyed by (seed,
// step, name).
class DropoutSite {
 public:
  DropoutSite() = default;  // never drops
  DropoutSite(double probability, uint64_t seed, std::string_view name)
      : probability_(probability), seed_(seed), name_hash_(HashName(name)) {}

  bool active(const Pass& pass) const { return pass.training && probability_ > 0; }
  double probability() const { return probability_; }
  RandomStream stream(const Pass& pass) const {
    return {seed_, RandomUse::kDropout,
            MixCoordinates(static_cast<uint64_t>(pass.step), name_hash_)};
  }
  // x [R,C] in place; the backward pass is the same call on the gradient.
  void Apply(const Pass& pass, const TensorView& x) const {
    if (!active(pass)) return;
    Dropout dropout;
    dropout.probability = probability_;
    dropout.stream = stream(pass);
    dropout.first_sample = pass.first_sample;
    dropout.rows_per_sample = pass.sequence;
    dropout.global_columns = x.dim(1);
    pass.backend.ApplyDropout(dropout, x);
  }

 private:
  double probability_ = 0;
  uint64_t seed_ = 0;
  uint64_t name_hash_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_PASS_H_
