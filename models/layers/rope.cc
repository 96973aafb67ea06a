#include "models/layers/rope.h"

#include <algorithm>
#include <numbers>

#include "compute/random/fixed_math.h"

// No multiplication is contracted with an addition, whatever processor this is compiled for.
#pragma STDC FP_CONTRACT OFF

namespace tessera {
namespace {

// Wavelengths beyond the trained context are stretched by `factor`, short ones kept, those between
// interpolated.
double Scaled(double frequency, const RopeScaling& scaling) {
  if (!scaling.enabled) return frequency;
  const double turns = scaling.original_max_positions * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - scaling.low_frequency_factor) /
                                     (scaling.high_frequency_factor - scaling.low_frequency_factor),
                                 0.0, 1.0);
  return frequency * (kept + (1 - kept) / scaling.factor);
}

}  // namespace

Rope::Rope(int64_t head_size, double base, const RopeScaling& scaling) {
  for (int64_t i = 0; i < head_size / 2; ++i) {
    frequencies_.push_back(Scaled(
        FixedPow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_size)), scaling));
  }
}

void Rope::Prepare(int64_t sequence, Backend& backend) {
  if (!cos_.view().empty() && cos_.view().dim(0) >= sequence) return;
  const int64_t half = static_cast<int64_t>(frequencies_.size());
  std::vector<float> cos, sin;
  for (int64_t t = 0; t < sequence; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies_[i];
      cos.push_back(static_cast<float>(FixedCos(angle)));
      sin.push_back(static_cast<float>(FixedSin(angle)));
    }
  }
  cos_ = Tensor(DType::kF32, {sequence, half}, backend.device());
  sin_ = Tensor(DType::kF32, {sequence, half}, backend.device());
  if (cos_.view().empty() || sin_.view().empty()) return;  // see AllocationScope
  backend.Upload(cos.data(), cos_);
  backend.Upload(sin.data(), sin_);
}

}  // namespace tessera
