#ifndef TESSERA_TRAINER_OPTIM_ADAMW_H_
#define TESSERA_TRAINER_OPTIM_ADAMW_H_

// AdamW over flat ranges of the parameters. Loshchilov and Hutter, "Decoupled weight decay
// regularization" (ICLR 2019).

#include <cstdint>
#include <vector>

#include "compute/kernels/backend.h"
#include "layout/dtype.h"
#include "tensor/flat_parameter.h"
#include "tensor/tensor.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// A flat range that this optimizer updates.
struct OwnedRange {
  int64_t begin = 0;
  int64_t end = 0;
  TensorView values;  // [end - begin]
  TensorView grads;   // [end - begin], fp32
};

// Returns the factor for gradients that keeps their norm within clip_grad: min(1, clip_grad / (norm
// + 1e-6)), Megatron-LM's formula; 1 if clip_grad is 0. Passed to the update as grad_scale, the
// factor needs no extra pass over the gradients.
double ClipCoefficient(double grad_norm, double clip_grad);

// The optimizer of those parts of the parameters that lie in the owned flat ranges: all of them, or
// the ones of a ZeRO rank. Its state is fp32: exp_avg, exp_avg_sq, and master weights if the
// parameters are not fp32.
//
// Lifetimes: the views must outlive the optimizer. Not thread-safe.
class AdamW {
 public:
  // Views of the owned part of one parameter; empty if none of it is owned.
  struct ParameterState {
    int64_t begin = 0;      // first owned element, counted within the parameter
    TensorView value;       // [n]
    TensorView master;      // [n]; empty where the parameters are fp32
    TensorView exp_avg;     // [n]
    TensorView exp_avg_sq;  // [n]
  };

  // Parameters and ranges (possibly none) are disjoint and in flat order; the owned part of a
  // parameter lies in one range; the values have `dtype`. Alignment gaps between parameters are
  // never touched. Reset(), or a load of the state, comes before the first Step().
  AdamW(Backend& backend, const OptimizerConfig& config, std::vector<FlatParameter> parameters,
        std::vector<OwnedRange> ranges, DType dtype);

  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // Makes one update with `learning_rate` of LearningRate(), and gradients multiplied by
  // grad_scale. If grad_norm is not finite, changes nothing, counts a skipped step and returns
  // false, since one broken batch must not destroy the weights. The caller's step and learning rate
  // advance all the same; the bias correction counts updates only. `before` is called with the
  // values, master weights and moments, a piece at a time, so that a wait for one piece does not
  // delay the others.
  bool Step(double learning_rate, double grad_norm, double grad_scale,
            const BeforeOverwrite& before = nullptr);

  // Resets to a fresh state: zero moments and counters, master weights copied from the values.
  void Reset();

  int64_t updates() const { return updates_; }  // checkpointed: the bias correction depends on it
  void set_updates(int64_t updates) { updates_ = updates; }
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }

  bool has_master() const { return has_master_; }
  const std::vector<OwnedRange>& ranges() const { return ranges_; }
  int64_t state_bytes() const;
  const std::vector<FlatParameter>& parameters() const { return parameters_; }
  ParameterState State(int parameter) const;
  // Returns the memory of the state of all parameters, in a few buffers.
  std::vector<TensorView> StateBuffers() const;

 private:
  // A run of neighbouring elements with one weight decay, within one range; a gap between
  // parameters ends it.
  struct Run {
    int range;
    int64_t begin;  // within the range
    int64_t end;
    bool weight_decay;
  };
  // The owned part of one parameter.
  struct Part {
    int range = -1;     // none
    int64_t begin = 0;  // within the range
    int64_t end = 0;
  };
  // Returns the operands of elements [begin, end) of the run's range.
  AdamWOperands Operands(const Run& run, int64_t begin, int64_t end) const;
  std::vector<int64_t> StateOffsets() const;
  std::vector<Part> OwnedParts() const;
  std::vector<Run> OwnedRuns() const;
  TensorView StatePart(const Tensor& state, int range, int64_t begin, int64_t end) const;

  Backend& backend_;
  const OptimizerConfig config_;
  const std::vector<FlatParameter> parameters_;
  const std::vector<OwnedRange> ranges_;
  const bool has_master_;
  const std::vector<int64_t> state_offsets_;  // by range; the last is the total
  const std::vector<Part> parts_;             // by parameter
  const std::vector<Run> runs_;
  Tensor master_;  // state of all ranges, concatenated
  Tensor exp_avg_;
  Tensor exp_avg_sq_;
  int64_t updates_ = 0;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_OPTIM_ADAMW_H_
