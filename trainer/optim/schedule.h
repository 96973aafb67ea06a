#ifndef TESSERA_TRAINER_OPTIM_SCHEDULE_H_
#define TESSERA_TRAINER_OPTIM_SCHEDULE_H_

#include <cstdint>

#include "trainer/config/config.pb.h"

namespace tessera {

// Returns the learning rate of the update that follows `step` completed ones (0 for the first).
// Pure, so that a resumed run needs no state. Uses the formulas of Megatron-LM's
// OptimizerParamScheduler:
//
//   step <= lr_warmup_iters   lr * step / lr_warmup_iters (only with a warmup; so the first update
//                             has rate 0)
//   CONSTANT                  lr
//   step > lr_decay_iters     min_lr
//   otherwise                 min_lr + c * (lr - min_lr)
//
// with r = (step - lr_warmup_iters) / (lr_decay_iters - lr_warmup_iters) and
//
//   LINEAR   c = 1 - r
//   COSINE   c = (cos(pi r) + 1) / 2
//   WSD      c = 1 until lr_decay_iters - lr_wsd_decay_iters; from there r runs from 0 to 1 over
//            lr_wsd_decay_iters, and c is, by lr_wsd_decay_style,
//            EXPONENTIAL  2 * 0.5^r - 1
//            LINEAR       1 - r
//            COSINE       (cos(pi r) + 1) / 2
//            MINUS_SQRT   1 - sqrt(r)
//
// Precondition: a resolved config (lr_decay_iters is set).
double LearningRate(const OptimizerConfig& config, int64_t step);

}  // namespace tessera

#endif  // TESSERA_TRAINER_OPTIM_SCHEDULE_H_
