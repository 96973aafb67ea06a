#ifndef TESSERA_MODELS_LAYERS_PASS_H_
#define TESSERA_MODELS_LAYERS_PASS_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/tensor_parallel.h"

namespace tessera {

// The properties of the current micro-batch that every layer needs.
//
// R = batch * sequence rows, batch-major. Between tensor-parallel regions a rank has r consecutive
// rows: all, or, with sequence parallelism, R / ranks.
//
// EXACT numerics add over rows (gradients of parameters, the loss) by canonical unit: first the
// terms of each unit, then the units in the tree T(0, units) (communicator.h's ReduceOp). So a sum
// does not depend on how samples are divided into micro-batches. Of 2^k u samples, u odd, a unit
// has u: the tree over micro-batches continues the tree over the units of each.
struct Pass {
  Backend& backend;
  const TensorParallel& tensor_parallel = kNoTensorParallel;
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t first_sample = 0;
  bool training = false;       // dropout on
  int64_t units = 1;           // of the micro-batch; 1 in FAST numerics
  int64_t first_position = 0;  // of each sequence's first row; others than 0 in decoding alone
  std::shared_ptr<double> late_loss = nullptr;  // see MicroBatch

  int64_t rows() const { return batch * sequence; }
  int shards() const { return tensor_parallel.shards(); }
  int64_t unit_rows() const { return rows() / units; }
  // Returns whether rows are split. Rows that are not divisible (a sampled text of any length) are
  // not.
  bool splits_rows() const {
    return tensor_parallel.sequence_parallel() && unit_rows() % tensor_parallel.shards() == 0;
  }
  int64_t own_rows() const { return splits_rows() ? rows() / tensor_parallel.size() : rows(); }
  int64_t first_own_row() const { return splits_rows() ? own_rows() * tensor_parallel.rank() : 0; }
  // Returns this rank's rows of x [R, ...].
  TensorView OwnRows(const TensorView& x) const {
    return splits_rows() ? x.Slice(0, first_own_row(), first_own_row() + own_rows()) : x;
  }
  // Fills x [R, ...], which holds this rank's rows, with the rows of the other ranks.
  absl::Status GatherRows(const TensorView& x, std::string_view what) const {
    return splits_rows() ? tensor_parallel.AllGather(x, what) : absl::OkStatus();
  }
};

// Returns the dtype of sums, statistics and losses: fp32, or fp64 if the compute dtype is fp64.
inline DType SumDType(DType compute) { return compute == DType::kF64 ? DType::kF64 : DType::kF32; }

// A dropout layer of the model, with its own random stream, keyed by (seed, step, name).
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
  // Applies dropout to x [r,C], this rank's rows, in place; the backward pass is the same call on
  // the gradient.
  void Apply(const Pass& pass, const TensorView& x) const {
    if (!active(pass)) return;
    Dropout dropout;
    dropout.probability = probability_;
    dropout.stream = stream(pass);
    dropout.first_sample = pass.first_sample;
    dropout.rows_per_sample = pass.sequence;
    dropout.row_offset = pass.first_own_row();
    dropout.global_columns = x.dim(1);
    pass.backend.ApplyDropout({dropout, x});
  }

 private:
  double probability_ = 0;
  uint64_t seed_ = 0;
  uint64_t name_hash_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_PASS_H_
