#include "models/layers/lm_head.h"

#include <algorithm>
#include <bit>

#include "base/status_macros.h"
#include "compute/parallel/tree_sum.h"
#include "models/layers/sums.h"

namespace tessera {
namespace {

// Returns the rows of a chunk: as many as the limit allows of a unit, or as many units, a power of
// two.
int64_t ChunkRows(const Pass& pass, int64_t limit) {
  const int64_t unit_rows = pass.unit_rows();
  if (limit < unit_rows) return std::max<int64_t>(limit, 1);
  const int64_t units = std::min(pass.units, limit / unit_rows);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(units))) * unit_rows;
}

const TensorView& Gradient(const VocabularyShard& shard) {
  return shard.table->has_second_grad ? shard.table->second_grad : shard.table->grad;
}

// The sum of the losses of all rows, by unit; also the late loss, or only that.
double SumOfLosses(const Pass& pass, const TensorView& losses) {
  if (pass.late_loss != nullptr && pass.units == 1)
    return pass.backend.Sum({losses, pass.late_loss});
  std::vector<double> sums;
  for (int64_t row = 0; row < pass.rows(); row += pass.unit_rows()) {
    sums.push_back(pass.backend.Sum({losses.Slice(0, row, row + pass.unit_rows())}));
  }
  const double sum = TreeSum(sums);
  if (pass.late_loss != nullptr) *pass.late_loss = sum;
  return sum;
}

}  // namespace

// Some rows: a power of two of whole units, or a part of one unit. A group is all chunks of one
// unit, or one chunk of whole units.
struct LmHead::Chunk {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t group = 0;
  bool begins_group = false;
  bool ends_group = false;

  TensorView Rows(const TensorView& x) const { return x.Slice(0, begin, end); }
  TensorView FirstRows(const TensorView& x) const { return x.Slice(0, 0, end - begin); }
};

std::vector<LmHead::Chunk> LmHead::Chunks(const Pass& pass, const Buffers& buffers) {
  const int64_t rows = buffers.chunk_rows;
  std::vector<Chunk> chunks;
  const int64_t group_rows = std::max(rows, pass.unit_rows());
  for (int64_t group = 0; group * group_rows < pass.rows(); ++group) {
    const int64_t first = group * group_rows, last = first + group_rows;
    for (int64_t begin = first; begin < last; begin += rows) {
      chunks.push_back({.begin = begin,
                        .end = std::min(last, begin + rows),
                        .group = group,
                        .begins_group = begin == first,
                        .ends_group = begin + rows >= last});
    }
  }
  return chunks;
}

LmHead::Buffers LmHead::LayOut(Arena& arena, const Pass& pass, DType dtype, bool backward,
                               int64_t max_logits_bytes) const {
  const int64_t rows = pass.rows(), own_rows = pass.own_rows(), shards = pass.shards();
  const DType statistics = SumDType(dtype);
  const int64_t row_bytes = shards * shard_rows() * ElementSize(dtype);
  Buffers buffers;
  buffers.chunk_rows = ChunkRows(pass, max_logits_bytes / row_bytes);
  buffers.normed = arena.Take(dtype, {rows, channels()});
  if (backward) {
    buffers.d_normed = arena.Take(dtype, {own_rows, channels()});
    if (NeedsSumScratch(pass, dtype)) buffers.sum = arena.Take(statistics, {rows, channels()});
    buffers.norms = NormGradients(arena, pass, dtype, *norm_, /*count=*/1);
    const int64_t groups = pass.units / std::max<int64_t>(1, buffers.chunk_rows / pass.unit_rows());
    for (size_t i = 0; groups > 1 && i < shards_.size(); ++i) {
      const auto levels = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(groups))) - 1;
      buffers.group_sums.push_back(arena.Take(statistics, {levels, shard_rows(), channels()}));
    }
  }
  buffers.norm_stats = arena.Take(statistics, {norm_->statistics(), own_rows});
  for (size_t i = 0; i < shards_.size(); ++i) {
    buffers.logits.push_back(arena.Take(dtype, {buffers.chunk_rows, shard_rows()}));
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
  for (const Chunk& chunk : Chunks(pass, buffers)) {
    for (size_t v = 0; v < shards_.size(); ++v) {
      const VocabularyShard& shard = shards_[v];
      const TensorView logits = chunk.FirstRows(buffers.logits[v]);
      const int64_t global = pass.tensor_parallel.first_shard() + static_cast<int64_t>(v);
      Project(pass, shard, chunk.Rows(buffers.normed), logits);
      backend.CrossEntropyStats({logits, shard.valid, chunk.Rows(targets), shard.first_id,
                                 chunk.Rows(PartOf(buffers.stats, global))});
    }
  }
  TESSERA_RETURN_IF_ERROR(
      pass.tensor_parallel.AllGather(buffers.stats, "statistics of cross-entropy"));
  backend.CrossEntropyLoss({buffers.stats, targets, buffers.combined, buffers.losses});
  return SumOfLosses(pass, buffers.losses);
}

TensorView LmHead::GroupSum(const Buffers& buffers, size_t shard, int open) const {
  return open == 0 ? Gradient(shards_[shard]) : PartOf(buffers.group_sums[shard], open - 1);
}

absl::Status LmHead::Backward(const Pass& pass, const TensorView& x, const TensorView& targets,
                              const Buffers& buffers, double loss_scale, bool accumulate,
                              const TensorView& d) const {
  const std::vector<Chunk> chunks = Chunks(pass, buffers);
  for (size_t i = chunks.size(); i-- > 0;) {
    const Chunk& chunk = chunks[i];
    for (size_t v = 0; v < shards_.size(); ++v) {
      const VocabularyShard& shard = shards_[v];
      const TensorView logits = chunk.FirstRows(buffers.logits[v]);
      if (i + 1 != chunks.size()) Project(pass, shard, chunk.Rows(buffers.normed), logits);
      pass.backend.CrossEntropyBackward({chunk.Rows(buffers.combined), chunk.Rows(targets),
                                         shard.valid, shard.first_id, loss_scale, logits});
    }
    PropagateLogits(pass, buffers, chunks, i, accumulate);
  }
  return BackwardFused(pass, x, buffers, accumulate, d);
}

void LmHead::PropagateLogits(const Pass& pass, const Buffers& buffers,
                             const std::vector<Chunk>& chunks, size_t i, bool accumulate) const {
  const Chunk& chunk = chunks[i];
  const int64_t units = std::max<int64_t>(1, buffers.chunk_rows / pass.unit_rows());
  const bool adds =
      chunks.back().group == 0 ? accumulate || i + 1 != chunks.size() : !chunk.ends_group;
  std::vector<MatMulOperands> products;
  for (size_t v = 0; v < shards_.size(); ++v) {
    const TensorView logits = chunk.FirstRows(buffers.logits[v]);
    // The groups before this one, from the last on: the tree over all is its own mirror image.
    uint64_t before = static_cast<uint64_t>(chunks.back().group - chunk.group);
    int open = std::popcount(before);
    MultiplyOverRows(pass.backend, logits, chunk.Rows(buffers.normed), units,
                     GroupSum(buffers, v, open), adds);
    for (; chunk.begins_group && before % 2 == 1; before /= 2, --open) {
      const TensorView sum = GroupSum(buffers, v, open - 1);
      pass.backend.Add({sum, GroupSum(buffers, v, open), sum});
    }
    products.push_back({logits, shards_[v].table->value});
  }
  AddLocalShards(pass, products, chunk.Rows(PartialSumPlace(pass, buffers.sum, buffers.d_normed)));
}

bool LmHead::Fuses(const Pass& pass) const { return pass.tensor_parallel.size() == 1; }

double LmHead::ForwardFused(const Pass& pass, const TensorView& targets, const Buffers& buffers,
                            double loss_scale, bool accumulate) const {
  Backend& backend = pass.backend;
  const std::vector<Chunk> chunks = Chunks(pass, buffers);
  for (size_t i = chunks.size(); i-- > 0;) {
    const Chunk& chunk = chunks[i];
    const TensorView own_targets = chunk.Rows(targets);
    const TensorView combined = chunk.Rows(buffers.combined), losses = chunk.Rows(buffers.losses);
    // Those of one chunk, at the beginning of the memory.
    const TensorView stats(buffers.stats.data(), buffers.stats.dtype(),
                           {pass.shards(), chunk.end - chunk.begin, 3});
    std::vector<TensorView> logits;
    for (size_t v = 0; v < shards_.size(); ++v) {
      logits.push_back(chunk.FirstRows(buffers.logits[v]));
      Project(pass, shards_[v], chunk.Rows(buffers.normed), logits[v]);
    }
    if (shards_.size() == 1) {
      backend.CrossEntropyGradient(
          {logits[0], shards_[0].valid, own_targets, loss_scale, stats, combined, losses});
    } else {
      for (size_t v = 0; v < shards_.size(); ++v) {
        backend.CrossEntropyStats({logits[v], shards_[v].valid, own_targets, shards_[v].first_id,
                                   PartOf(stats, static_cast<int64_t>(v))});
      }
      backend.CrossEntropyLoss({stats, own_targets, combined, losses});
      for (size_t v = 0; v < shards_.size(); ++v) {
        backend.CrossEntropyBackward(
            {combined, own_targets, shards_[v].valid, shards_[v].first_id, loss_scale, logits[v]});
      }
    }
    PropagateLogits(pass, buffers, chunks, i, accumulate);
  }
  return SumOfLosses(pass, buffers.losses);
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
    Project(pass, shards_[v], normed, PartOf(buffers.last_logits, global));
  }
  TESSERA_RETURN_IF_ERROR(pass.tensor_parallel.AllGather(buffers.last_logits, "last logits"));
  for (int64_t v = 0; v < pass.shards(); ++v) {
    const int64_t begin = std::min(v * shard_rows(), vocab_size_);
    const int64_t end = std::min((v + 1) * shard_rows(), vocab_size_);
    if (begin == end) continue;
    backend.Copy(
        {PartOf(buffers.last_logits, v).Slice(1, 0, end - begin), logits.Slice(1, begin, end)});
  }
  return absl::OkStatus();
}

}  // namespace tessera
