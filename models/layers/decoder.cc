#include "models/layers/decoder.h"

#include <algorithm>
#include <utility>

#include "checkpoint/base/status_macros.h"
#include "glog/logging.h"
#include "trainer/tensor/memory.h"

namespace tessera {
namespace {

// Above this the head works in chunks of rows. Training in either mode has the same limit, so that
// recomputation changes no sum.
constexpr int64_t kMaxTrainingLogitsBytes = int64_t{512} << 20;
constexpr int64_t kMaxForwardLogitsBytes = int64_t{64} << 20;

TensorView Flat(const TensorView& x) { return x.empty() ? x : x.Reshape({x.elements()}); }

}  // namespace

struct Decoder::Buffers : public Activations {
  int64_t bytes() const override { return memory.view().bytes(); }

  int64_t batch = 0;
  int64_t sequence = 0;
  ActivationUse use = ActivationUse::kTraining;
  Tensor memory;
  std::vector<TensorView> inputs;  // [R,C]; entry i of block i, the last one of the head
  std::vector<TransformerBlock::Kept> kept;
  TransformerBlock::Scratch scratch;
  LmHead::Buffers head;
  TensorView d;  // [R,C]: the gradient on its way down; only where the embedding is, else the
                 // caller's d_input serves
};

Decoder::Decoder(DecoderParts parts, Backend& backend)
    : parts_(std::move(parts)), backend_(backend) {}

Pass Decoder::MakePass(const MicroBatch& batch) const {
  return {.backend = backend_,
          .batch = batch.ids.dim(0),
          .sequence = batch.ids.dim(1),
          .step = batch.step,
          .first_sample = batch.first_sample,
          .training = batch.training};
}

Decoder::Buffers Decoder::LayOut(const Pass& pass, ActivationUse use, Arena& arena) const {
  const bool backward = use != ActivationUse::kForwardOnly;
  const int64_t blocks = static_cast<int64_t>(parts_.blocks.size());
  const Shape shape = {pass.rows(), parts_.hidden_size};
  Buffers buffers;
  buffers.batch = pass.batch;
  buffers.sequence = pass.sequence;
  buffers.use = use;
  // Forward only: two buffers in turn.
  const int64_t inputs = backward ? blocks + 1 : std::min<int64_t>(blocks + 1, 2);
  for (int64_t i = 0; i <= blocks; ++i) {
    buffers.inputs.push_back(i < inputs ? arena.Take(dtype(), shape) : buffers.inputs[i - 2]);
  }
  for (int64_t i = 0; i < blocks; ++i) {
    const bool own = i == 0 || use == ActivationUse::kTraining;
    buffers.kept.push_back(own ? parts_.blocks[i].LayOutKept(arena, pass, dtype())
                               : buffers.kept.front());
  }
  if (backward && parts_.embedding.has_value()) buffers.d = arena.Take(dtype(), shape);
  const int64_t mark = arena.Mark();
  if (blocks > 0) {
    buffers.scratch = parts_.blocks.front().LayOutScratch(arena, pass, dtype(), backward);
  }
  arena.Rewind(mark);
  if (parts_.head.has_value()) {
    buffers.head = parts_.head->LayOut(arena, pass, dtype(), backward,
                                       backward ? kMaxTrainingLogitsBytes : kMaxForwardLogitsBytes);
  }
  return buffers;
}

std::unique_ptr<Activations> Decoder::NewActivations(int64_t batch, int64_t sequence,
                                                     ActivationUse use) {
  CHECK(batch > 0 && sequence > 0) << batch << " x " << sequence;
  if (parts_.rope != nullptr) parts_.rope->Prepare(sequence);
  const Pass pass = {.backend = backend_, .batch = batch, .sequence = sequence};
  Arena measure;
  LayOut(pass, use, measure);
  MemoryScope scope(MemoryCategory::kActivations);
  Tensor memory(DType::kF32, {measure.high_water_bytes() / static_cast<int64_t>(sizeof(float))},
                backend_.device());
  Arena place(memory.view().data());
  auto buffers = std::make_unique<Buffers>(LayOut(pass, use, place));
  buffers->memory = std::move(memory);
  return buffers;
}

int64_t Decoder::BoundaryRows(int64_t batch, int64_t sequence) const { return batch * sequence; }

absl::StatusOr<double> Decoder::Forward(const MicroBatch& batch, Activations& activations,
                                        TensorView input, TensorView output) {
  const auto& buffers = static_cast<const Buffers&>(activations);
  const Pass pass = MakePass(batch);
  CHECK(pass.batch == buffers.batch && pass.sequence == buffers.sequence)
      << "activations of another shape";
  CHECK(input.empty() == parts_.embedding.has_value());
  CHECK(output.empty() == parts_.head.has_value());
  if (parts_.embedding.has_value()) {
    parts_.embedding->Forward(pass, Flat(batch.ids), buffers.inputs.front());
  } else {
    backend_.Copy(input, buffers.inputs.front());
  }
  for (size_t i = 0; i < parts_.blocks.size(); ++i) {
    parts_.blocks[i].Forward(pass, buffers.inputs[i], buffers.kept[i], buffers.scratch,
                             buffers.inputs[i + 1]);
  }
  if (!parts_.head.has_value()) {
    backend_.Copy(buffers.inputs.back(), output);
    return 0.0;
  }
  if (batch.targets.empty()) return 0.0;
  return parts_.head->Forward(pass, buffers.inputs.back(), Flat(batch.targets), buffers.head);
}

absl::Status Decoder::Backward(const MicroBatch& batch, Activations& activations,
                               double loss_scale, bool accumulate, TensorView d_output,
                               TensorView d_input, GradientObserver* observer) {
  const int64_t gradients = parts_.parameters->gradient_elements();
  if (observer != nullptr) TESSERA_RETURN_IF_ERROR(observer->Prepare(0, gradients));
  const auto& buffers = static_cast<const Buffers&>(activations);
  const Pass pass = MakePass(batch);
  CHECK(buffers.use != ActivationUse::kForwardOnly);
  CHECK(d_output.empty() == parts_.head.has_value());
  CHECK(d_input.empty() == parts_.embedding.has_value());
  const TensorView d = parts_.embedding.has_value() ? buffers.d : d_input;
  if (parts_.head.has_value()) {
    parts_.head->Backward(pass, buffers.inputs.back(), Flat(batch.targets), buffers.head,
                          loss_scale, accumulate, d);
  } else {
    backend_.Copy(d_output, d);
  }
  const size_t blocks = parts_.blocks.size();
  for (size_t i = blocks; i-- > 0;) {
    // The one set of a recomputing model still holds the last block's.
    if (buffers.use == ActivationUse::kTrainingRecompute && i + 1 != blocks) {
      parts_.blocks[i].ForwardKept(pass, buffers.inputs[i], buffers.kept[i], buffers.scratch);
    }
    parts_.blocks[i].Backward(pass, buffers.inputs[i], buffers.kept[i], buffers.scratch, accumulate,
                              d);
  }
  if (parts_.embedding.has_value()) {
    parts_.embedding->Backward(pass, Flat(batch.ids), d, accumulate || parts_.tied_head,
                               accumulate);
  }
  return observer == nullptr ? absl::OkStatus() : observer->Ready(0, gradients);
}

absl::Status Decoder::LastLogits(const MicroBatch& batch, Activations& activations,
                                 TensorView logits) {
  const auto& buffers = static_cast<const Buffers&>(activations);
  CHECK(parts_.head.has_value());
  parts_.head->LastLogits(MakePass(batch), buffers.inputs.back(), buffers.head, logits);
  return absl::OkStatus();
}

double Decoder::FlopsPerToken(int64_t sequence) const {
  // Query t meets t + 1 keys: (T + 1) / 2 on average, twice (scores and values), two operations
  // each, three times (forward, and twice that backward).
  double attention = 0;
  for (const TransformerBlock& block : parts_.blocks) {
    attention += 6.0 * static_cast<double>(block.attention_shape().out_columns()) *
                 static_cast<double>(sequence + 1);
  }
  return 6.0 * static_cast<double>(parts_.matrix_weights) + attention;
}

}  // namespace tessera
