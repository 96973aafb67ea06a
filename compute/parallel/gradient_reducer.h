#ifndef TESSERA_COMPUTE_PARALLEL_GRADIENT_REDUCER_H_
#define TESSERA_COMPUTE_PARALLEL_GRADIENT_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/gradient_buckets.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {

struct GradientReducerOptions {
  // Ranks with the same parameters and other micro-batches; null: there are no such ranks.
  Communicator* data_parallel = nullptr;
  // The two ranks with copies of on_two_stages parameters, which have the same data and tensor
  // coordinates; null: there are no such parameters.
  Communicator* tie = nullptr;
  int zero_stage = 0;  // 0, 1 or 2
  bool exact = false;  // sums over micro-batches in the tree over their global index
  int64_t bucket_elements = int64_t{4} << 20;
  int64_t micro_batches = 1;  // per step on this rank
  DType dtype = DType::kF32;  // dtype of gradients
  // Binds the gradient views of everything within [begin, end) of the gradient space to `memory`
  // [end - begin].
  std::function<void(int64_t begin, int64_t end, TensorView memory)> bind;
};

// A flat range of values that this rank updates, and its gradient. Gaps between parameters have
// unspecified contents.
struct OwnedGradient {
  int64_t begin = 0;
  int64_t end = 0;
  TensorView grad;  // [end - begin]; the same memory at every step
};

// The memory of a stage's gradients, and their sum over micro-batches and data-parallel ranks.
//
//   for each micro-batch i of this rank, in order:
//     StartMicroBatch(i)
//     model.Backward(..., accumulate(), ..., &reducer)
//   Finish()
//   ... update the values of owned() ...
//   GatherValues(values)
//
// - ZeRO 0: an all-reduce per bucket. Every rank owns everything.
// - ZeRO 1: a reduce-scatter per bucket. A rank owns a piece of each. Gradients have full size.
// - ZeRO 2: a reduce-scatter per bucket and micro-batch, from bucket buffers that are allocated on
//   demand and reused. Only owned pieces of gradients are kept.
//
// Reductions start within Ready(), in the last backward pass (ZeRO 2: in each), and progress in
// later calls of Prepare() and Ready(); Finish() waits for the rest.
//
// Sums: with `exact`, the binary tree over global micro-batches for every valid split
// (micro_batches.h), bucket size and ZeRO stage. Otherwise plain sums, in one fixed order. Second
// gradients of tied parameters are accumulated separately and added at the end, when both are
// complete.
//
// With one data rank there is no overhead: no copies, no messages; without `exact` (or with one
// micro-batch) the backward pass writes directly to the memory that the optimizer reads.
//
// Memory (MemoryCategory::kGradients):
// - the owned gradients (ZeRO 0, 1: the gradient space);
// - with `exact`, the same again for each subtree that is open at once (MaxOpenTerms());
// - at most kBucketBuffers buffers of the largest bucket within bucket_elements, and one of the
//   largest bucket beyond. There are more only where a backward pass writes more buckets at once;
// - for on_two_stages parameters, a buffer of at most bucket_elements.
//
// Wire, per step, on data rank r of P: for each bucket of n bytes with piece n_r, the bytes of the
// operation in comm/communicator.h.
//
// Collective over data_parallel (and tie): all ranks have the same layout and options and make the
// same calls in the same order. Returns the errors of the communicator. The returned views are
// valid for the lifetime of the reducer. Not thread-safe.
class GradientReducer : public GradientObserver {
 public:
  static constexpr int kBucketBuffers = 3;
  // Number of bucket exchanges in flight. Far fewer than the numbers that distinguish the messages
  // of a group's operations.
  static constexpr size_t kMaxExchanges = 32;

  // CHECKs the layout. Binds all gradients, except where Prepare() does so later.
  GradientReducer(Backend& backend, GradientLayout layout, GradientReducerOptions options);

  // Begins a micro-batch. Requires 0 <= micro_batch < options.micro_batches, in order.
  void StartMicroBatch(int64_t micro_batch);
  // Returns whether the backward pass of this micro-batch accumulates into the gradients instead of
  // overwriting them.
  bool accumulate() const;
  // Returns whether accumulate() is true for every micro-batch but the first of a step. If so, the
  // gradients of later micro-batches alone are nowhere in memory.
  bool accumulates() const { return in_place_ && options_.micro_batches > 1; }
  absl::Status Prepare(int64_t begin, int64_t end) override;
  absl::Status Ready(int64_t begin, int64_t end) override;
  // Ends the step: owned() holds the gradients of the whole global batch.
  absl::Status Finish();

  // Returns the ranges that this rank owns: ordered by `begin`, disjoint, none empty. A parameter
  // lies in at most one range, completely or partly, so a rank owns a contiguous part of it. ZeRO
  // 0: one range of all values.
  const std::vector<OwnedGradient>& owned() const { return owned_; }
  // Sends the owned ranges of the flat `values` [value_elements], contiguous, to the other ranks,
  // and receives the rest. Does nothing for ZeRO 0.
  absl::Status GatherValues(const TensorView& values, const BeforeOverwrite& before = nullptr);

  // Returns the maximum memory of a step, as above, whether allocated yet or not.
  int64_t memory_bytes() const;

  const GradientLayout& layout() const { return layout_; }
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  // A parameter's gradient, or a second gradient, in the gradient space.
  struct GradientRange {
    int64_t begin;
    int64_t end;
    int bucket;
  };
  struct Bucket {
    BucketSum sum;             // of the part that this rank keeps: the bucket, or its piece
    TensorView work;           // where the backward pass of this micro-batch writes
    BucketBuffers::Loan loan;  // work's memory, unless it is the sum's
    int64_t unfinished = 0;    // ranges of this micro-batch
    bool prepared = false;     // in this micro-batch
  };
  struct Reduction {
    int bucket;
    int64_t micro_batch;       // whose piece is added; negative: the whole step's
    TensorView piece;          // where the reduced piece arrives
    BucketBuffers::Loan loan;  // memory of the reduced bucket
    Pending pending;
  };

  int ranks() const;
  int rank() const;
  bool last() const { return micro_batch_ + 1 == options_.micro_batches; }
  bool owns_all() const { return options_.zero_stage == 0 || ranks() == 1; }
  std::vector<GradientRange> Ranges() const;
  std::vector<Bucket> MakeSums();
  std::vector<OwnedGradient> OwnedRanges() const;
  BucketBuffers MakeBuffers() const;
  int64_t TieBufferElements() const;
  // Binds the gradients to their memory between steps.
  void BindResult();
  TensorView OwnedPiece(int bucket) const;
  // Visits each range in [begin, end), from the last to the first.
  absl::Status ForEachRange(int64_t begin, int64_t end,
                            const std::function<absl::Status(const GradientRange&)>& visit) const;

  absl::Status PrepareBucket(int bucket);
  absl::StatusOr<BucketBuffers::Loan> Borrow(int64_t elements);
  absl::Status CompleteBucket(int bucket);
  absl::Status ReduceMicroBatch(int bucket);
  absl::Status ReduceStep(int bucket);
  void EndOldest();
  absl::Status WaitForOldest();
  absl::Status WaitForBucket(int bucket);
  absl::Status Poll();
  void AddSecondContribution(int second_bucket);
  absl::Status AddOtherStage(const TensorView& piece);

  Backend& backend_;
  const GradientLayout layout_;
  const GradientReducerOptions options_;
  const std::vector<GradientBucket> buckets_;
  // Whether gradients are reduced once per micro-batch (ZeRO 2) instead of once per step.
  const bool by_micro_batch_;
  // Whether the backward pass writes to the result in every micro-batch.
  const bool in_place_;
  const std::vector<GradientRange> ranges_;  // by `begin`
  Tensor gradients_;  // the gradient space, or (by_micro_batch_) the owned pieces of all buckets
  std::vector<Bucket> states_;  // by bucket
  const std::vector<OwnedGradient> owned_;
  BucketBuffers buffers_;
  Tensor tie_buffer_;                 // received from the other stage
  int64_t micro_batch_ = -1;          // within this step; negative before the first
  std::deque<Reduction> reductions_;  // oldest first; destroyed before the memory it uses
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_GRADIENT_REDUCER_H_
