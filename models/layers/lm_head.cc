#include "models/layers/lm_head.h"

#include <algorithm>

namespace tessera {
namespace {

struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
};

// Chunk `i` of the rows, cut by the height of the logits buffer.
Chunk RowChunk(int64_t i, int64_t rows, int64_t height) {
  return {i * height, std::min(rows, (i + 1) * height)};
}

int64_t ChunkCount(int64_t rows, int64_t height) { return (rows + height - 1) / height; }

TensorView Rows(const TensorView& x, const Chunk& chunk) {
  return x.Slice(0, chunk.begin, chunk.end);
}

TensorView FirstRows(const TensorView& x, const Chunk& chunk) {
  return x.Slice(0, 0, chunk.end - chunk.begin);
}

}  // namespace

LmHead::Buffers LmHead::LayOut(Arena& arena, const Pass& pass, DType dtype, bool backward,
                               int64_t max_logits_bytes) const {
  const int64_t rows = pass.rows();
  const DType statistics = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const int64_t row_bytes = linear_.out_features() * ElementSize(dtype);
  const int64_t height = std::clamp<int64_t>(max_logits_bytes / row_bytes, 1, rows);
  Buffers buffers;
  buffers.normed = arena.Take(dtype, {rows, linear_.in_features()});
  if (backward) buffers.d_normed = arena.Take(dtype, {rows, linear_.in_features()});
  buffers.norm_stats = arena.Take(statistics, {norm_->statistics(), rows});
  buffers.logits = arena.Take(dtype, {height, linear_.out_features()});
  buffers.stats = arena.Take(statistics, {1, rows, 3});
  buffers.combined = arena.Take(statistics, {rows, 3});
  buffers.losses = arena.Take(statistics, {rows});
  return buffers;
}

double LmHead::Forward(const Pass& pass, const TensorView& x, const TensorView& targets,
                       const Buffers& buffers) const {
  Backend& backend = pass.backend;
  const int64_t rows = pass.rows(), height = buffers.logits.dim(0);
  norm_->Forward(backend, x, buffers.normed, buffers.norm_stats);
  const TensorView stats = buffers.stats.Reshape({rows, 3});
  for (int64_t i = 0; i < ChunkCount(rows, height); ++i) {
    const Chunk chunk = RowChunk(i, rows, height);
    const TensorView logits = FirstRows(buffers.logits, chunk);
    linear_.Forward(backend, Rows(buffers.normed, chunk), logits);
    backend.CrossEntropyStats(logits, vocab_size_, Rows(targets, chunk), /*first_id=*/0,
                              Rows(stats, chunk));
  }
  backend.CrossEntropyLoss(buffers.stats, targets, buffers.combined, buffers.losses);
  return backend.Sum(buffers.losses);
}

void LmHead::Backward(const Pass& pass, const TensorView& x, const TensorView& targets,
                      const Buffers& buffers, double loss_scale, bool accumulate,
                      const TensorView& d) const {
  Backend& backend = pass.backend;
  const int64_t rows = pass.rows(), height = buffers.logits.dim(0);
  const int64_t last = ChunkCount(rows, height) - 1;
  for (int64_t i = last; i >= 0; --i) {
    const Chunk chunk = RowChunk(i, rows, height);
    const TensorView logits = FirstRows(buffers.logits, chunk);
    const TensorView normed = Rows(buffers.normed, chunk);
    if (i != last) linear_.Forward(backend, normed, logits);
    backend.CrossEntropyBackward(Rows(buffers.combined, chunk), Rows(targets, chunk), vocab_size_,
                                 /*first_id=*/0, loss_scale, logits);
    linear_.BackwardWeight(backend, normed, logits, accumulate || i != last);
    linear_.BackwardInput(backend, logits, Rows(buffers.d_normed, chunk));
  }
  norm_->Backward(backend, buffers.d_normed, x, buffers.norm_stats, d, /*accumulate_dx=*/false,
                  accumulate);
}

void LmHead::LastLogits(const Pass& pass, const TensorView& x, const Buffers& buffers,
                        const TensorView& logits) const {
  Backend& backend = pass.backend;
  const TensorView last_position =
      x.Reshape({pass.batch, pass.sequence, x.dim(1)}).Slice(1, pass.sequence - 1, pass.sequence);
  const TensorView last(last_position.data(), x.dtype(), {pass.batch, x.dim(1)},
                        {pass.sequence * x.dim(1), 1});
  const TensorView normed = buffers.normed.Slice(0, 0, pass.batch);
  const int64_t statistics = buffers.norm_stats.dim(0);
  const TensorView stats(buffers.norm_stats.data(), buffers.norm_stats.dtype(),
                         {statistics, pass.batch});
  norm_->Forward(backend, last, normed, stats);
  backend.MatMul(normed, weight_->value.Slice(0, 0, vocab_size_).Transpose(0, 1), logits,
                 /*accumulate=*/false);
}

}  // namespace tessera
