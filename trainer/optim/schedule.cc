#include "trainer/optim/schedule.h"

#include <cmath>
#include <numbers>

#include "compute/random/fixed_math.h"

// No multiplication is contracted with an addition, whatever processor this is compiled for.
#pragma STDC FP_CONTRACT OFF

namespace tessera {
namespace {

double CosineFall(double ratio) { return 0.5 * (FixedCos(std::numbers::pi * ratio) + 1.0); }

// Returns the remaining part of lr - min_lr when `ratio` of WSD's decay is over.
double WsdFall(LrWsdDecayStyle::Value style, double ratio) {
  switch (style) {
    case LrWsdDecayStyle::EXPONENTIAL:
      return 2.0 * FixedExp2(-ratio) - 1.0;
    case LrWsdDecayStyle::LINEAR:
      return 1.0 - ratio;
    case LrWsdDecayStyle::COSINE:
      return CosineFall(ratio);
    case LrWsdDecayStyle::MINUS_SQRT:
      return 1.0 - std::sqrt(ratio);
  }
  return 0.0;
}

double Fall(const OptimizerConfig& config, int64_t step) {
  const double ratio = static_cast<double>(step - config.lr_warmup_iters()) /
                       static_cast<double>(config.lr_decay_iters() - config.lr_warmup_iters());
  switch (config.lr_decay_style()) {
    case LrDecayStyle::CONSTANT:
      return 1.0;
    case LrDecayStyle::LINEAR:
      return 1.0 - ratio;
    case LrDecayStyle::COSINE:
      return CosineFall(ratio);
    case LrDecayStyle::WSD: {
      const int64_t into_decay = step - (config.lr_decay_iters() - config.lr_wsd_decay_iters());
      if (into_decay <= 0) return 1.0;
      return WsdFall(
          config.lr_wsd_decay_style(),
          static_cast<double>(into_decay) / static_cast<double>(config.lr_wsd_decay_iters()));
    }
  }
  return 0.0;
}

}  // namespace

double LearningRate(const OptimizerConfig& config, int64_t step) {
  const int64_t warmup = config.lr_warmup_iters();
  if (warmup > 0 && step <= warmup) {
    return config.lr() * static_cast<double>(step) / static_cast<double>(warmup);
  }
  if (config.lr_decay_style() == LrDecayStyle::CONSTANT) return config.lr();
  if (step > config.lr_decay_iters()) return config.min_lr();
  return config.min_lr() + Fall(config, step) * (config.lr() - config.min_lr());
}

}  // namespace tessera
