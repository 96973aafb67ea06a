#include "models/layers/lm_head.h"

#include <algorithm>

#include "base/status_macros.h"
#include "models/layers/shard_sum.h"

namespace tessera {
namespace {

struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
};

// Chunk `i` of the rows, whose number is limited by the height of the logits buffer.
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

// The part [rows, ...] of a virtual shard of x [S, rows, ...].
TensorView ShardPart(const TensorView& x, int64_t shard) {
  return x.Slice(0, shard, shard + 1).Reshape(Shape(x.shape().begin() + 1, x.shape().end()));
}

const TensorView& Gradient(const VocabularyShard& shard) {
  return shard.table->has_second_grad ? shard.table->second_grad : shard.table->grad;
}

}  // namespace

LmHead::Buffers LmHead::LayOut(Arena& arena, const Pass& pass, DType dtype, bool backward,
                               int64_t max_logits_bytes) const {
  const int64_t rows = pass.rows(), own_rows = pass.own_rows(), shards = pass.shards();
  const DType statistics = SumDType(dtype);
  const int64_t row_bytes = shards * shard_rows() * ElementSize(dtype);
  const int64_t height = std::clamp<int64_t>(max_logits_bytes / row_bytes, 1, rows);
  Buffers buffers;
  buffers.normed = arena.Take(dtype, {rows, channels()});
  if (backward) {
    buffers.d_normed = arena.Take(dtype, {own_rows, channels()});
    if (NeedsSumScratch(pass, dtype)) buffers.sum = arena.Take(statistics, {rows, channels()});
    buffers.norms = NormGradients(arena, pass, dtype, *norm_, /*count=*/1);
  }
  buffers.norm_stats = arena.Take(statistics, {norm_->statistics(), own_rows});
  for (size_t i = 0; i < shards_.size(); ++i) {
    buffers.logits.push_back(arena.Take(dtype, {height, shard_rows()}));
  }
  buffers.stats = arena.Take(statistics, {shards, rows, 3});
  buffers.combined = arena.Take(statistics, {rows, 3});
  buffers.losses = arena.Take(statistics, {rows});
  buffers.last = arena.Take(dtype, {pass.batch, channels()});
  if (shards > 1) buffers.last_logits = arena.Take(DType::kF32, {shards, pass.batch, shard_rows()});
  return buffers;
}

void LmHead::Project(const Pass& pass, const VocabularyShard& shard, const TensorView& normed,
                     const TensorView& logits) const {
  pass.backend.MatMul({normed, shard.table->value.Transpose(0, 1), logits, /*accumulate=*/false});
}

absl::StatusOr<double> LmHead::Forward(const Pass& pass, const TensorView& targets,
                                       const Buffers& buffers) const {
  Backend& backend = pass.backend;
  const int64_t rows = pass.rows(), height = buffers.logits[0].dim(0);
  for (int64_t i = 0; i < ChunkCount(rows, height); ++i) {
    const Chunk chunk = RowChunk(i, rows, height);
    for (size_t v = 0; v < shards_.size(); ++v) {
      const VocabularyShard& shard = shards_[v];
      const TensorView logits = FirstRows(buffers.logits[v], chunk);
      const int64_t global = pass.tensor_parallel.first_shard() + static_cast<int64_t>(v);
      Project(pass, shard, Rows(buffers.normed, chunk), logits);
      backend.CrossEntropyStats({logits, shard.valid, Rows(targets, chunk), shard.first_id,
                                 Rows(ShardPart(buffers.stats, global), chunk)});
    }
  }
  TESSERA_RETURN_IF_ERROR(
      pass.tensor_parallel.AllGather(buffers.stats, "statistics of cross-entropy"));
  backend.CrossEntropyLoss({buffers.stats, targets, buffers.combined, buffers.losses});
  return backend.Sum({buffers.losses});
}

absl::Status LmHead::Backward(const Pass& pass, const TensorView& x, const TensorView& targets,
                              const Buffers& buffers, double loss_scale, bool accumulate,
                              const TensorView& d) const {
  Backend& backend = pass.backend;
  const int64_t rows = pass.rows(), height = buffers.logits[0].dim(0);
  const int64_t last = ChunkCount(rows, height) - 1;
  const TensorView partial = PartialSumPlace(pass, buffers.sum, buffers.d_normed);
  for (int64_t i = last; i >= 0; --i) {
    const Chunk chunk = RowChunk(i, rows, height);
    const TensorView normed = Rows(buffers.normed, chunk);
    std::vector<TensorView> logits;
    for (size_t v = 0; v < shards_.size(); ++v) {
      const VocabularyShard& shard = shards_[v];
      logits.push_back(FirstRows(buffers.logits[v], chunk));
      if (i != last) Project(pass, shard, normed, logits[v]);
      backend.CrossEntropyBackward({Rows(buffers.combined, chunk), Rows(targets, chunk),
                                    shard.valid, shard.first_id, loss_scale, logits[v]});
    }
    PropagateLogits(pass, normed, logits, accumulate || i != last, Rows(partial, chunk));
  }
  return BackwardFused(pass, x, buffers, accumulate, d);
}

void LmHead::PropagateLogits(const Pass& pass, const TensorView& normed,
                             const std::vector<TensorView>& d_logits, bool accumulate,
                             const TensorView& d_normed) const {
  std::vector<MatMulOperands> products;
  for (size_t v = 0; v < shards_.size(); ++v) {
    pass.backend.MatMul({d_logits[v].Transpose(0, 1), normed, Gradient(shards_[v]), accumulate});
    products.push_back({d_logits[v], shards_[v].table->value});
  }
  AddLocalShards(pass, products, d_normed);
}

bool LmHead::Fuses(const Pass& pass) const { return pass.tensor_parallel.size() == 1; }

double LmHead::ForwardFused(const Pass& pass, const TensorView& targets, const Buffers& buffers,
                            double loss_scale, bool accumulate) const {
  Backend& backend = pass.backend;
  const int64_t rows = pass.rows(), height = buffers.logits[0].dim(0);
  const int64_t last = ChunkCount(rows, height) - 1;
  const TensorView partial = PartialSumPlace(pass, buffers.sum, buffers.d_normed);
  for (int64_t i = last; i >= 0; --i) {
    const Chunk chunk = RowChunk(i, rows, height);
    const TensorView normed = Rows(buffers.normed, chunk), own_targets = Rows(targets, chunk);
    const TensorView combined = Rows(buffers.combined, chunk);
    const TensorView losses = Rows(buffers.losses, chunk);
    // Those of one chunk, at the beginning of the memory.
    const TensorView stats(buffers.stats.data(), buffers.stats.dtype(),
                           {pass.shards(), chunk.end - chunk.begin, 3});
    std::vector<TensorView> logits;
    for (size_t v = 0; v < shards_.size(); ++v) {
      logits.push_back(FirstRows(buffers.logits[v], chunk));
      Project(pass, shards_[v], normed, logits[v]);
    }
    if (shards_.size() == 1) {
      backend.CrossEntropyGradient(
          {logits[0], shards_[0].valid, own_targets, loss_scale, stats, combined, losses});
    } else {
      for (size_t v = 0; v < shards_.size(); ++v) {
        backend.CrossEntropyStats({logits[v], shards_[v].valid, own_targets, shards_[v].first_id,
                                   ShardPart(stats, static_cast<int64_t>(v))});
      }
      backend.CrossEntropyLoss({stats, own_targets, combined, losses});
      for (size_t v = 0; v < shards_.size(); ++v) {
        backend.CrossEntropyBackward(
            {combined, own_targets, shards_[v].valid, shards_[v].first_id, loss_scale, logits[v]});
      }
    }
    PropagateLogits(pass, normed, logits, accumulate || i != last, Rows(partial, chunk));
  }
  return backend.Sum({buffers.losses});
}

absl::Status LmHead::BackwardFused(const Pass& pass, const TensorView& x, const Buffers& buffers,
                                   bool accumulate, const TensorView& d) const {
  const TensorView partial = PartialSumPlace(pass, buffers.sum, buffers.d_normed);
  TESSERA_RETURN_IF_ERROR(
      FinishShardSum(pass, partial, /*bias=*/{}, buffers.d_normed, "gradient of the head's input"));
  buffers.norms.Backward(pass, *norm_, 0, buffers.d_normed, x, buffers.norm_stats, d,
                         /*accumulate_dx=*/false, accumulate);
  const Norm* norms[] = {norm_.get()};
  return buffers.norms.Finish(pass, norms, accumulate);
}

// last [B,C] = the last row of each sequence, whichever rank holds it.
absl::Status LmHead::LastRows(const Pass& pass, const TensorView& x, const TensorView& last) const {
  const int ranks = pass.splits_rows() ? pass.tensor_parallel.size() : 1;
  // Sequences that end before this rank's first row, for every rank and their end.
  std::vector<int64_t> ended, counts;
  for (int rank = 0; rank <= ranks; ++rank) {
    ended.push_back(pass.rows() / ranks * rank / pass.sequence);
    if (rank > 0) counts.push_back(ended[rank] - ended[rank - 1]);
  }
  const int rank = pass.splits_rows() ? pass.tensor_parallel.rank() : 0;
  for (int64_t b = ended[rank]; b < ended[rank + 1]; ++b) {
    const int64_t row = (b + 1) * pass.sequence - 1 - pass.first_own_row();
    pass.backend.Copy({x.Slice(0, row, row + 1), last.Slice(0, b, b + 1)});
  }
  if (!pass.splits_rows()) return absl::OkStatus();
  return pass.tensor_parallel.AllGather(last, counts, "last rows");
}

absl::Status LmHead::LastLogits(const Pass& pass, const TensorView& x, const Buffers& buffers,
                                const TensorView& logits) const {
  Backend& backend = pass.backend;
  TESSERA_RETURN_IF_ERROR(LastRows(pass, x, buffers.last));
  const TensorView normed = buffers.normed.Slice(0, 0, pass.batch);
  const int64_t statistics = buffers.norm_stats.dim(0);
  const TensorView stats(buffers.stats.data(), buffers.stats.dtype(), {statistics, pass.batch});
  norm_->Forward(backend, buffers.last, normed, stats);
  if (pass.shards() == 1) {
    const TensorView weight = shards_[0].table->value.Slice(0, 0, vocab_size_);
    backend.MatMul({normed, weight.Transpose(0, 1), logits, /*accumulate=*/false});
    return absl::OkStatus();
  }
  for (size_t v = 0; v < shards_.size(); ++v) {
    const int64_t global = pass.tensor_parallel.first_shard() + static_cast<int64_t>(v);
    Project(pass, shards_[v], normed, ShardPart(buffers.last_logits, global));
  }
  TESSERA_RETURN_IF_ERROR(pass.tensor_parallel.AllGather(buffers.last_logits, "last logits"));
  for (int64_t v = 0; v < pass.shards(); ++v) {
    const int64_t begin = std::min(v * shard_rows(), vocab_size_);
    const int64_t end = std::min((v + 1) * shard_rows(), vocab_size_);
    if (begin == end) continue;
    backend.Copy(
        {ShardPart(buffers.last_logits, v).Slice(1, 0, end - begin), logits.Slice(1, begin, end)});
  }
  return absl::OkStatus();
}

}  // namespace tessera
