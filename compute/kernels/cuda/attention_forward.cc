// Flash attention: Dao, "FlashAttention-2" (2023). With S[t,s] = scale q[t] k[s], out[t] = sum over
// s <= t of softmax(S[t])[s] v[s], over tiles of keys, with a running maximum and sum.

#include <glog/logging.h>

#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_softmax.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/attention_warpgroups.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <int kTiles>
TESSERA_DEVICE void DropScores(const AttentionShape& shape, int batch, int head, int first_query,
                               int first_key, float (&scores)[kTiles][4]) {
  DropoutFactors factors(shape.key, shape.first_sample + batch);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t row = shape.DropoutIndex(head, first_query + TileRow(i));
      scores[n][i] *= factors.Of(row + (first_key + n * kTileColumns + TileColumn(i)));
    }
  }
}

// One block for each 64 queries, head and sample; the last ones, which see the most keys, first.
template <typename Kind, typename T>
TESSERA_KERNEL void TESSERA_BOUNDS(kAttentionThreads, Kind::kBlocks)
    AttentionForwardTiles(AttentionShape shape, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> out,
                          float* log_sum_exp) {
  const int head = simt::BlockY(), batch = simt::BlockZ(), kv_head = shape.KeyHead(head);
  const int block_query = (shape.blocks() - 1 - simt::BlockX()) * kOwnRows;
  const int own = simt::WarpIndex() * kTileRows, first_query = block_query + own;
  simt::SharedMemory memory;
  const BlockTiles<Kind> tiles(memory);
  const typename Kind::Own queries = tiles.TakeOwn(0);
  const auto load = [&](int tile, int stage) {
    LoadTiles<Kind>({k, v}, shape, batch, kv_head, tile * Kind::kRows,
                    {tiles.Get(stage, 0), tiles.Get(stage, 1)});
  };
  LoadTiles<Kind>({q}, shape, batch, head, block_query, {queries});
  load(0, 0);
  simt::WaitForCopies();
  simt::SyncThreads();
  const typename Kind::OwnRows query_rows(queries, own);

  typename Kind::Sums sums = {};
  RowState state;
  const int key_end = simt::Min(block_query + kOwnRows, shape.sequence);
  ForTiles<Kind::kStages>(simt::BlocksOf(key_end, Kind::kRows), load, [&](int tile, int stage) {
    const int first_key = tile * Kind::kRows;
    typename Kind::Scores scores = {};
    float corrections[2];
    MultiplyByRows(query_rows, tiles.Get(stage, 0), scores);
    HideUnseen</*kRowsAreQueries=*/true>(first_query - first_key, scores);
    UpdateSoftmax(shape.scale_log2, scores, state, corrections);
    if constexpr (Kind::kDropout) {
      DropScores(shape, batch, head, first_query, first_key, scores);
    }
    CorrectSums(corrections, sums);
    MultiplyByColumns(scores, tiles.Get(stage, 1), sums);
  });

  StoreAttention(sums, state, shape, batch, head, first_query, out, log_sum_exp);
}

}  // namespace

void DeviceKernels::Run(const ops::AttentionForward& op) {
  const Operation here(*this, "AttentionForward", op.q, op.k, op.v, op.out);
  CHECK_EQ(op.k.dim(1), op.q.dim(1)) << "keys of earlier tokens are for the CPU";
  const AttentionShape shape = MakeAttentionShape(op.options, op.q, op.k);
  if (attention_.warpgroups && CanAttendByWarpgroups(op)) {
    return LaunchAttentionByWarpgroups(stream(), shape, op);
  }
  WithType(op.q.dtype(), [&]<typename T>(T) {
    WithAttentionKind<AttentionPass::kForward, T>(shape, [&]<typename Kind>() {
      simt::Launch<AttentionForwardTiles<Kind, T>>(
          {shape.blocks(), shape.heads, shape.batch}, kAttentionThreads, Kind::kSharedBytes,
          stream(), shape, AsHeads<T>(op.q), AsHeads<T>(op.k), AsHeads<T>(op.v), AsHeads<T>(op.out),
          op.log_sum_exp.as<float>());
    });
  });
}

}  // namespace tessera::cuda
