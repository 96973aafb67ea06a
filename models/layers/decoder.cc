#include "models/layers/decoder.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/trace.h"
#include "compute/parallel/micro_batches.h"
#include "glog/logging.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

// Above this size the head works in chunks of rows. Training with and without recomputation has the
// same limit, so that recomputation changes no sum.
constexpr int64_t kMaxTrainingLogitsBytes = int64_t{512} << 20;
constexpr int64_t kMaxForwardLogitsBytes = int64_t{64} << 20;

TensorView Flat(const TensorView& x) { return x.empty() ? x : x.Reshape({x.elements()}); }

absl::Status Prepare(GradientObserver* observer, int64_t begin, int64_t end) {
  return observer == nullptr || begin == end ? absl::OkStatus() : observer->Prepare(begin, end);
}

absl::Status Ready(GradientObserver* observer, int64_t begin, int64_t end) {
  return observer == nullptr || begin == end ? absl::OkStatus() : observer->Ready(begin, end);
}

}  // namespace

struct Decoder::Buffers : public Activations {
  int64_t bytes() const override { return memory.view().bytes(); }

  int64_t batch = 0;
  int64_t sequence = 0;
  ActivationUse use = ActivationUse::kTraining;
  Tensor memory;
  std::vector<TensorView> inputs;  // [r,C]; inputs of each block and, last, of the head
  std::vector<TransformerBlock::SavedActivations> saved;
  TransformerBlock::Scratch scratch;
  Embedding::Scratch embedding;
  LmHead::Buffers head;
  TensorView d;  // [r,C]: the gradient on its way down; only where the embedding is, else the
                 // caller's d_input serves
};

Decoder::Decoder(DecoderParts parts, Backend& backend)
    : parts_(std::move(parts)), backend_(backend) {}

Pass Decoder::MakePass(int64_t batch, int64_t sequence) const {
  return {.backend = backend_,
          .tensor_parallel = parts_.tensor_parallel,
          .batch = batch,
          .sequence = sequence,
          .units = parts_.sums_by_unit ? batch / CanonicalUnit(batch) : 1};
}

Pass Decoder::MakePass(const MicroBatch& batch) const {
  Pass pass = MakePass(batch.ids.dim(0), batch.ids.dim(1));
  pass.step = batch.step;
  pass.first_sample = batch.first_sample;
  pass.training = batch.training;
  pass.late_loss = batch.late_loss;
  if (batch.cache != nullptr) pass.first_position = batch.cache->tokens;
  return pass;
}

int64_t Decoder::BoundaryRows(int64_t batch, int64_t sequence) const {
  return MakePass(batch, sequence).own_rows();
}

Decoder::Buffers Decoder::LayOut(const Pass& pass, ActivationUse use, Arena& arena) const {
  const bool backward = use != ActivationUse::kForwardOnly;
  const int64_t blocks = static_cast<int64_t>(parts_.blocks.size());
  const Shape shape = {pass.own_rows(), parts_.hidden_size};
  Buffers buffers;
  buffers.batch = pass.batch;
  buffers.sequence = pass.sequence;
  buffers.use = use;
  // Forward only: two alternating buffers.
  const int64_t inputs = backward ? blocks + 1 : std::min<int64_t>(blocks + 1, 2);
  for (int64_t i = 0; i <= blocks; ++i) {
    buffers.inputs.push_back(i < inputs ? arena.Take(dtype(), shape) : buffers.inputs[i - 2]);
  }
  for (int64_t i = 0; i < blocks; ++i) {
    const bool keeps_norms = use == ActivationUse::kTrainingWithNorms;
    const bool own = i == 0 || use == ActivationUse::kTraining || keeps_norms;
    buffers.saved.push_back(own ? parts_.blocks[i].LayOutSaved(arena, pass, dtype(), keeps_norms)
                                : buffers.saved.front());
  }
  if (backward && parts_.embedding.has_value()) buffers.d = arena.Take(dtype(), shape);
  const int64_t mark = arena.Mark();
  if (blocks > 0) {
    buffers.scratch = parts_.blocks.front().LayOutScratch(arena, pass, dtype(), backward);
  }
  arena.Rewind(mark);
  if (parts_.embedding.has_value()) {
    buffers.embedding = parts_.embedding->LayOutScratch(arena, pass, dtype());
  }
  arena.Rewind(mark);
  if (parts_.head.has_value()) {
    buffers.head = parts_.head->LayOut(arena, pass, dtype(), backward,
                                       backward ? kMaxTrainingLogitsBytes : kMaxForwardLogitsBytes);
  }
  return buffers;
}

int64_t Decoder::ActivationBytes(int64_t batch, int64_t sequence, ActivationUse use) const {
  Arena measure;
  LayOut(MakePass(batch, sequence), use, measure);
  return measure.high_water_bytes();
}

std::unique_ptr<Activations> Decoder::NewActivations(int64_t batch, int64_t sequence,
                                                     ActivationUse use) {
  CHECK(batch > 0 && sequence > 0) << batch << " x " << sequence;
  if (parts_.rope != nullptr) parts_.rope->Prepare(sequence, backend_);
  MemoryScope scope(MemoryCategory::kActivations);
  const int64_t bytes = ActivationBytes(batch, sequence, use);
  Tensor memory(DType::kF32, {bytes / static_cast<int64_t>(sizeof(float))}, backend_.device());
  Arena place(memory.view().data());
  auto buffers = std::make_unique<Buffers>(LayOut(MakePass(batch, sequence), use, place));
  buffers->memory = std::move(memory);
  return buffers;
}

NormPlace Decoder::InputNorm(const Buffers& buffers, size_t i) const {
  if (i < parts_.blocks.size()) {
    return parts_.blocks[i].InputNorm(buffers.saved[i], buffers.scratch);
  }
  return parts_.head.has_value() ? parts_.head->InputNorm(buffers.head) : NormPlace();
}

absl::StatusOr<double> Decoder::Forward(const MicroBatch& batch, Activations& activations,
                                        TensorView input, TensorView output) {
  const auto& buffers = static_cast<const Buffers&>(activations);
  const Pass pass = MakePass(batch);
  CHECK(pass.batch == buffers.batch && pass.sequence == buffers.sequence)
      << "activations of another shape";
  KeyValueCache* const cache = batch.cache;
  CHECK(cache == nullptr ||
        (pass.batch == 1 && !pass.training && cache->tokens + pass.sequence <= cache->capacity));
  CHECK(input.empty() == parts_.embedding.has_value());
  CHECK(output.empty() == parts_.head.has_value());
  if (parts_.embedding.has_value()) {
    const TraceSpan span("operation", "embedding forward");
    TESSERA_RETURN_IF_ERROR(parts_.embedding->Forward(pass, Flat(batch.ids), buffers.embedding,
                                                      buffers.inputs.front()));
  } else {
    backend_.Copy({input, buffers.inputs.front()});
  }
  if (const NormPlace first = InputNorm(buffers, 0); first.norm != nullptr) {
    TESSERA_RETURN_IF_ERROR(NormForward(pass, buffers.inputs.front(), first));
  }
  for (size_t i = 0; i < parts_.blocks.size(); ++i) {
    TraceSpan span("operation", "layer forward");
    span.Add("layer_of_chunk", static_cast<int64_t>(i));
    TESSERA_RETURN_IF_ERROR(parts_.blocks[i].Forward(
        pass, buffers.inputs[i], buffers.saved[i], buffers.scratch, buffers.inputs[i + 1],
        InputNorm(buffers, i + 1), cache == nullptr ? nullptr : &cache->blocks[i]));
  }
  if (cache != nullptr) cache->tokens += pass.sequence;
  if (!parts_.head.has_value()) {
    backend_.Copy({buffers.inputs.back(), output});
    return 0.0;
  }
  if (batch.targets.empty()) return 0.0;
  const TraceSpan span("operation", "head and loss forward");
  if (!FusesHead(pass, batch, buffers)) {
    return parts_.head->Forward(pass, Flat(batch.targets), buffers.head);
  }
  const BackwardCall& call = *batch.backward_follows;
  TESSERA_RETURN_IF_ERROR(PrepareHead(call.observer));
  return parts_.head->ForwardFused(pass, Flat(batch.targets), buffers.head, call.loss_scale,
                                   call.accumulate);
}

bool Decoder::FusesHead(const Pass& pass, const MicroBatch& batch, const Buffers& buffers) const {
  return batch.backward_follows.has_value() && buffers.use != ActivationUse::kForwardOnly &&
         parts_.head->Fuses(pass);
}

absl::Status Decoder::PrepareHead(GradientObserver* observer) const {
  // To the end of the gradient space: the second gradients belong to the head.
  TESSERA_RETURN_IF_ERROR(
      Prepare(observer, parts_.layout.boundaries.back(), parts_.parameters->gradient_elements()));
  return Prepare(observer, 0, parts_.layout.shared_table_end);
}

absl::Status Decoder::Backward(const MicroBatch& batch, Activations& activations, double loss_scale,
                               bool accumulate, TensorView d_output, TensorView d_input,
                               GradientObserver* observer) {
  const auto& buffers = static_cast<const Buffers&>(activations);
  const Pass pass = MakePass(batch);
  CHECK(buffers.use != ActivationUse::kForwardOnly);
  CHECK(d_output.empty() == parts_.head.has_value());
  CHECK(d_input.empty() == parts_.embedding.has_value());
  const TensorView d = parts_.embedding.has_value() ? buffers.d : d_input;
  if (parts_.head.has_value()) {
    TESSERA_RETURN_IF_ERROR(
        BackwardHead(pass, batch, buffers, loss_scale, accumulate, d, observer));
  } else {
    backend_.Copy({d_output, d});
  }
  for (size_t i = parts_.blocks.size(); i-- > 0;) {
    TESSERA_RETURN_IF_ERROR(BackwardBlock(pass, i, buffers, accumulate, d, observer));
  }
  if (!parts_.embedding.has_value()) return absl::OkStatus();
  return BackwardEmbedding(pass, batch, buffers, accumulate, d, observer);
}

absl::Status Decoder::BackwardHead(const Pass& pass, const MicroBatch& batch,
                                   const Buffers& buffers, double loss_scale, bool accumulate,
                                   const TensorView& d, GradientObserver* observer) const {
  const TraceSpan span("operation", "head and loss backward");
  const TensorView& x = buffers.inputs.back();
  if (FusesHead(pass, batch, buffers)) {
    const BackwardCall& call = *batch.backward_follows;
    CHECK(call.loss_scale == loss_scale && call.accumulate == accumulate &&
          call.observer == observer)
        << "another backward pass than the forward pass was promised";
    TESSERA_RETURN_IF_ERROR(parts_.head->BackwardFused(pass, x, buffers.head, accumulate, d));
  } else {
    TESSERA_RETURN_IF_ERROR(PrepareHead(observer));
    TESSERA_RETURN_IF_ERROR(parts_.head->Backward(pass, x, Flat(batch.targets), buffers.head,
                                                  loss_scale, accumulate, d));
  }
  return Ready(observer, parts_.layout.boundaries.back(), parts_.parameters->gradient_elements());
}

absl::Status Decoder::BackwardBlock(const Pass& pass, size_t i, const Buffers& buffers,
                                    bool accumulate, const TensorView& d,
                                    GradientObserver* observer) const {
  TraceSpan span("operation", "layer backward");
  span.Add("layer_of_chunk", static_cast<int64_t>(i));
  const TransformerBlock& block = parts_.blocks[i];
  const TensorView& x = buffers.inputs[i];
  // With recomputation, the only set of saved activations still holds the last block's.
  if (buffers.use == ActivationUse::kTrainingRecompute && i + 1 != parts_.blocks.size()) {
    TESSERA_RETURN_IF_ERROR(block.Recompute(pass, x, buffers.saved[i], buffers.scratch));
  }
  const int64_t begin = parts_.layout.boundaries[i], end = parts_.layout.boundaries[i + 1];
  TESSERA_RETURN_IF_ERROR(Prepare(observer, begin, end));
  TESSERA_RETURN_IF_ERROR(
      block.Backward(pass, x, buffers.saved[i], buffers.scratch, accumulate, d));
  return Ready(observer, begin, end);
}

absl::Status Decoder::BackwardEmbedding(const Pass& pass, const MicroBatch& batch,
                                        const Buffers& buffers, bool accumulate,
                                        const TensorView& d, GradientObserver* observer) const {
  const TraceSpan span("operation", "embedding backward");
  const int64_t shared = parts_.layout.shared_table_end, end = parts_.layout.boundaries.front();
  TESSERA_RETURN_IF_ERROR(Prepare(observer, shared, end));
  TESSERA_RETURN_IF_ERROR(
      parts_.embedding->Backward(pass, Flat(batch.ids), buffers.embedding, d,
                                 /*table_has_gradient=*/accumulate || shared > 0, accumulate));
  return Ready(observer, 0, end);
}

absl::Status Decoder::LastLogits(const MicroBatch& batch, Activations& activations,
                                 TensorView logits) {
  const auto& buffers = static_cast<const Buffers&>(activations);
  CHECK(parts_.head.has_value());
  return parts_.head->LastLogits(MakePass(batch), buffers.inputs.back(), buffers.head, logits);
}

KeyValueCache Decoder::NewCache(int64_t tokens) {
  if (parts_.rope != nullptr) parts_.rope->Prepare(tokens, backend_);
  MemoryScope scope(MemoryCategory::kActivations);
  KeyValueCache cache{.capacity = tokens, .blocks = {}};
  for (const TransformerBlock& block : parts_.blocks) {
    cache.blocks.push_back(block.NewCache(tokens, dtype(), backend_.device()));
  }
  return cache;
}

double Decoder::FlopsPerToken(int64_t sequence) const {
  // Query t attends to t + 1 keys: (T + 1) / 2 on average, twice (scores and values), two
  // operations each, three times (forward, and twice that backward).
  return 6.0 * static_cast<double>(parts_.matrix_weights) +
         6.0 * static_cast<double>(parts_.attention_columns) * static_cast<double>(sequence + 1);
}

}  // namespace tessera
