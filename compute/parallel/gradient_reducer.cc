#include "compute/parallel/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "glog/logging.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

int Size(const Communicator* group) { return group == nullptr ? 1 : group->size(); }

constexpr int kTieTag = 0;

}  // namespace

GradientReducer::GradientReducer(Backend& backend, GradientLayout layout,
                                 GradientReducerOptions options)
    : backend_(backend),
      layout_(std::move(layout)),
      options_(std::move(options)),
      buckets_(CutBuckets(layout_, options_.bucket_elements, Size(options_.data_parallel))),
      by_micro_batch_(options_.zero_stage == 2 && ranks() > 1),
      in_place_(!by_micro_batch_ && (!options_.exact || options_.micro_batches == 1)),
      ranges_(Ranges()),
      states_(MakeSums()),
      owned_(OwnedRanges()),
      buffers_(MakeBuffers()) {
  CHECK(0 <= options_.zero_stage && options_.zero_stage <= 2);
  CHECK_GT(options_.micro_batches, 0);
  CHECK(options_.tie == nullptr || options_.tie->size() == 2);
  BindResult();
}

int GradientReducer::ranks() const { return Size(options_.data_parallel); }

int GradientReducer::rank() const {
  return options_.data_parallel == nullptr ? 0 : options_.data_parallel->rank();
}

std::vector<GradientReducer::GradientRange> GradientReducer::Ranges() const {
  std::vector<GradientRange> ranges;
  for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) {
    for (const int i : buckets_[b].parameters) {
      const FlatParameter& parameter = layout_.parameters[i];
      const int64_t begin = buckets_[b].second ? parameter.second_begin : parameter.begin;
      ranges.push_back({.begin = begin, .end = begin + parameter.elements, .bucket = b});
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const GradientRange& a, const GradientRange& b) { return a.begin < b.begin; });
  return ranges;
}

std::vector<GradientReducer::Bucket> GradientReducer::MakeSums() {
  int64_t kept = 0;
  for (const GradientBucket& bucket : buckets_) kept += bucket.piece_elements[rank()];
  MemoryScope scope(MemoryCategory::kGradients);
  gradients_ = Tensor(options_.dtype, {by_micro_batch_ ? kept : layout_.gradient_elements},
                      backend_.device());
  std::vector<Bucket> states;
  int64_t next = 0;
  for (const GradientBucket& bucket : buckets_) {
    const int64_t begin = by_micro_batch_ ? next : bucket.begin;
    const int64_t elements = by_micro_batch_ ? bucket.piece_elements[rank()] : bucket.elements();
    next += elements;
    states.push_back({.sum = BucketSum(gradients_.view().Slice(0, begin, begin + elements),
                                       backend_.device(), options_.micro_batches, options_.exact),
                      .work = {},
                      .loan = {}});
  }
  return states;
}

std::vector<OwnedGradient> GradientReducer::OwnedRanges() const {
  std::vector<OwnedGradient> owned;
  if (owns_all()) {
    const int64_t end = layout_.value_elements;
    if (end > 0) owned.push_back({0, end, gradients_.view().Slice(0, 0, end)});
    return owned;
  }
  for (int b = static_cast<int>(buckets_.size()) - 1; b >= 0; --b) {
    const GradientBucket& bucket = buckets_[b];
    if (bucket.second || bucket.piece_elements[rank()] == 0) continue;
    owned.push_back({bucket.PieceBegin(rank()), bucket.PieceEnd(rank()), OwnedPiece(b)});
  }
  return owned;
}

BucketBuffers GradientReducer::MakeBuffers() const {
  int64_t small = 0, large = 0;
  int small_buckets = 0, large_buckets = 0;
  for (const GradientBucket& bucket : buckets_) {
    const int64_t elements = bucket.elements();
    const bool is_small = elements <= options_.bucket_elements;
    (is_small ? small : large) = std::max(is_small ? small : large, elements);
    ++(is_small ? small_buckets : large_buckets);
  }
  return BucketBuffers(options_.dtype, backend_.device(), small, large,
                       std::min(small_buckets, kBucketBuffers), std::min(large_buckets, 1));
}

int64_t GradientReducer::TieBufferElements() const {
  int64_t largest = 0;
  for (size_t b = 0; options_.tie != nullptr && b < buckets_.size(); ++b) {
    const bool tied = layout_.parameters[buckets_[b].parameters[0]].on_two_stages;
    if (tied) largest = std::max(largest, OwnedPiece(static_cast<int>(b)).elements());
  }
  return std::min(largest, options_.bucket_elements);
}

int64_t GradientReducer::memory_bytes() const {
  const int64_t kept = gradients_.view().elements();
  int64_t elements = kept + TieBufferElements();
  if (!in_place_) {
    elements += kept * MaxOpenTerms(options_.micro_batches, options_.exact);
    elements += buffers_.max_elements();
  }
  return elements * ElementSize(options_.dtype);
}

void GradientReducer::BindResult() {
  options_.bind(0, layout_.gradient_elements, by_micro_batch_ ? TensorView() : gradients_.view());
}

TensorView GradientReducer::OwnedPiece(int bucket) const {
  const TensorView& kept = states_[bucket].sum.result();
  if (by_micro_batch_ || owns_all()) return kept;
  const GradientBucket& cut = buckets_[bucket];
  return kept.Slice(0, cut.PieceBegin(rank()) - cut.begin, cut.PieceEnd(rank()) - cut.begin);
}

absl::Status GradientReducer::ForEachRange(
    int64_t begin, int64_t end,
    const std::function<absl::Status(const GradientRange&)>& visit) const {
  auto range = std::lower_bound(ranges_.begin(), ranges_.end(), end,
                                [](const GradientRange& a, int64_t b) { return a.begin < b; });
  while (range != ranges_.begin()) {
    --range;
    if (range->end <= begin && range->begin < begin) break;
    CHECK(begin <= range->begin && range->end <= end)
        << "[" << begin << ", " << end << ") cuts the gradient in [" << range->begin << ", "
        << range->end << ")";
    TESSERA_RETURN_IF_ERROR(visit(*range));
  }
  return absl::OkStatus();
}

void GradientReducer::StartMicroBatch(int64_t micro_batch) {
  CHECK_EQ(micro_batch, micro_batch_ + 1);
  CHECK_LT(micro_batch, options_.micro_batches);
  micro_batch_ = micro_batch;
  for (size_t b = 0; b < states_.size(); ++b) {
    if (micro_batch > 0) CHECK_EQ(states_[b].unfinished, 0) << "bucket " << b;
    states_[b].unfinished = static_cast<int64_t>(buckets_[b].parameters.size());
    states_[b].prepared = false;
  }
}

bool GradientReducer::accumulate() const { return in_place_ && micro_batch_ > 0; }

absl::Status GradientReducer::Prepare(int64_t begin, int64_t end) {
  TESSERA_RETURN_IF_ERROR(Poll());
  if (in_place_) return absl::OkStatus();
  return ForEachRange(begin, end,
                      [this](const GradientRange& range) { return PrepareBucket(range.bucket); });
}

absl::Status GradientReducer::PrepareBucket(int bucket) {
  Bucket& state = states_[bucket];
  if (state.prepared) return absl::OkStatus();
  state.prepared = true;
  const int64_t elements = buckets_[bucket].elements();
  MemoryScope scope(MemoryCategory::kGradients);
  AllocationScope allocations;
  state.work = by_micro_batch_ ? TensorView() : state.sum.Place(micro_batch_);
  if (state.work.empty()) {
    TESSERA_ASSIGN_OR_RETURN(state.loan, Borrow(elements));
    state.work = state.loan.memory;
  }
  TESSERA_RETURN_IF_ERROR(allocations.End());
  options_.bind(buckets_[bucket].begin, buckets_[bucket].end, state.work);
  return absl::OkStatus();
}

absl::StatusOr<BucketBuffers::Loan> GradientReducer::Borrow(int64_t elements) {
  BucketBuffers::Loan loan = buffers_.Borrow(elements);
  while (loan.none() && !reductions_.empty()) {
    TESSERA_RETURN_IF_ERROR(WaitForOldest());
    loan = buffers_.Borrow(elements);
  }
  return loan.none() ? buffers_.BorrowAnyway(elements) : loan;
}

absl::Status GradientReducer::Ready(int64_t begin, int64_t end) {
  TESSERA_RETURN_IF_ERROR(ForEachRange(begin, end, [this](const GradientRange& range) {
    Bucket& state = states_[range.bucket];
    CHECK(in_place_ || state.prepared) << "a gradient that was not prepared";
    CHECK_GT(state.unfinished, 0) << "a gradient that is ready twice";
    return --state.unfinished == 0 ? CompleteBucket(range.bucket) : absl::OkStatus();
  }));
  return Poll();
}

absl::Status GradientReducer::CompleteBucket(int bucket) {
  if (by_micro_batch_) {
    TESSERA_RETURN_IF_ERROR(WaitForBucket(bucket));
    return ReduceMicroBatch(bucket);
  }
  Bucket& state = states_[bucket];
  if (!in_place_) {
    state.sum.Add(backend_, micro_batch_, state.work);
    buffers_.Return(state.loan);
  }
  return last() && ranks() > 1 ? ReduceStep(bucket) : absl::OkStatus();
}

absl::Status GradientReducer::ReduceMicroBatch(int bucket) {
  const GradientBucket& cut = buckets_[bucket];
  Bucket& state = states_[bucket];
  MemoryScope scope(MemoryCategory::kGradients);
  AllocationScope allocations;
  TensorView piece = state.sum.Place(micro_batch_);
  TESSERA_RETURN_IF_ERROR(allocations.End());
  if (piece.empty()) {
    piece =
        state.work.Slice(0, cut.PieceBegin(rank()) - cut.begin, cut.PieceEnd(rank()) - cut.begin);
  }
  Pending pending = options_.data_parallel->StartReduceScatter(
      state.work, piece, ReduceOp::kSum, cut.piece_elements, {.what = "gradients"});
  reductions_.push_back({.bucket = bucket,
                         .micro_batch = micro_batch_,
                         .piece = piece,
                         .loan = std::exchange(state.loan, {}),
                         .pending = std::move(pending)});
  return absl::OkStatus();
}

absl::Status GradientReducer::ReduceStep(int bucket) {
  if (reductions_.size() == kMaxExchanges) TESSERA_RETURN_IF_ERROR(WaitForOldest());
  const TensorView& sum = states_[bucket].sum.result();
  Communicator& group = *options_.data_parallel;
  const CallOptions call = {.what = "gradients"};
  Pending pending = owns_all() ? group.StartAllReduce(sum, ReduceOp::kSum, call)
                               : group.StartReduceScatter(sum, OwnedPiece(bucket), ReduceOp::kSum,
                                                          buckets_[bucket].piece_elements, call);
  reductions_.push_back({.bucket = bucket,
                         .micro_batch = -1,
                         .piece = {},
                         .loan = {},
                         .pending = std::move(pending)});
  return absl::OkStatus();
}

void GradientReducer::EndOldest() {
  Reduction& oldest = reductions_.front();
  if (oldest.micro_batch >= 0) {
    states_[oldest.bucket].sum.Add(backend_, oldest.micro_batch, oldest.piece);
  }
  buffers_.Return(oldest.loan);
  reductions_.pop_front();
}

absl::Status GradientReducer::WaitForOldest() {
  TESSERA_RETURN_IF_ERROR(reductions_.front().pending.Follow());
  EndOldest();
  return absl::OkStatus();
}

absl::Status GradientReducer::WaitForBucket(int bucket) {
  const auto holds = [bucket](const Reduction& reduction) { return reduction.bucket == bucket; };
  while (std::any_of(reductions_.begin(), reductions_.end(), holds)) {
    TESSERA_RETURN_IF_ERROR(WaitForOldest());
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Poll() {
  while (!reductions_.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const bool ended, reductions_.front().pending.Test());
    if (!ended) break;
    EndOldest();
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::Finish() {
  CHECK(last()) << "a step ended at micro-batch " << micro_batch_;
  for (Bucket& state : states_) CHECK_EQ(state.unfinished, 0);
  while (!reductions_.empty()) TESSERA_RETURN_IF_ERROR(WaitForOldest());
  for (Bucket& state : states_) state.sum.Reset();
  micro_batch_ = -1;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].second) AddSecondContribution(static_cast<int>(b));
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const bool tied = layout_.parameters[buckets_[b].parameters[0]].on_two_stages;
    if (options_.tie == nullptr || buckets_[b].second || !tied) continue;
    TESSERA_RETURN_IF_ERROR(AddOtherStage(OwnedPiece(static_cast<int>(b))));
  }
  BindResult();
  return absl::OkStatus();
}

void GradientReducer::AddSecondContribution(int second_bucket) {
  const int parameter = buckets_[second_bucket].parameters[0];
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].second || buckets_[b].parameters[0] != parameter) continue;
    const TensorView first = OwnedPiece(static_cast<int>(b));
    if (first.elements() > 0) backend_.Add({first, OwnedPiece(second_bucket), first});
  }
}

// The sum of two terms does not depend on their order: both stages compute the same bits.
absl::Status GradientReducer::AddOtherStage(const TensorView& piece) {
  Communicator& tie = *options_.tie;
  const int other = 1 - tie.rank();
  const int64_t part = TieBufferElements();
  if (tie_buffer_.view().empty()) {
    MemoryScope scope(MemoryCategory::kGradients);
    AllocationScope allocations;
    tie_buffer_ = Tensor(options_.dtype, {part}, backend_.device());
    TESSERA_RETURN_IF_ERROR(allocations.End());
  }
  const CallOptions call = {.what = "gradients of a tied table"};
  for (int64_t begin = 0; begin < piece.elements(); begin += part) {
    const int64_t end = std::min(begin + part, piece.elements());
    const TensorView mine = piece.Slice(0, begin, end);
    const TensorView theirs = tie_buffer_.view().Slice(0, 0, end - begin);
    Pending received = tie.StartReceive(theirs, other, kTieTag, call);
    Pending sent = tie.StartSend(mine, other, kTieTag, call);
    TESSERA_RETURN_IF_ERROR(sent.Follow());
    TESSERA_RETURN_IF_ERROR(received.Follow());
    backend_.Add({mine, theirs, mine});
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::GatherValues(const TensorView& values,
                                           const BeforeOverwrite& before) {
  if (owns_all()) return absl::OkStatus();
  CHECK_EQ(values.elements(), layout_.value_elements);
  std::deque<Pending> gathers;  // oldest first
  for (const GradientBucket& bucket : buckets_) {
    if (bucket.second) continue;
    if (gathers.size() == kMaxExchanges) {
      TESSERA_RETURN_IF_ERROR(gathers.front().Follow());
      gathers.pop_front();
    }
    if (before != nullptr) before(values.Slice(0, bucket.begin, bucket.end));
    gathers.push_back(options_.data_parallel->StartAllGather(
        values.Slice(0, bucket.PieceBegin(rank()), bucket.PieceEnd(rank())),
        values.Slice(0, bucket.begin, bucket.end), bucket.piece_elements, {.what = "weights"}));
  }
  for (Pending& gather : gathers) TESSERA_RETURN_IF_ERROR(gather.Follow());
  return absl::OkStatus();
}

}  // namespace tessera
