#include "compute/kernels/cuda/attention_tiles.h"

#include <glog/logging.h>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

AttentionShape MakeAttentionShape(const AttentionOptions& options, const TensorView& q,
                                  const TensorView& k, const TensorView& v) {
  CHECK(k.dtype() == q.dtype() && v.dtype() == q.dtype());
  CHECK(q.rank() == 4 && k.rank() == 4 && k.shape() == v.shape());
  CHECK(k.dim(0) == q.dim(0) && k.dim(1) == q.dim(1) && k.dim(3) == q.dim(3))
      << ToString(k.shape()) << " for queries of " << ToString(q.shape());
  CHECK_EQ(q.dim(2) % k.dim(2), 0);
  return {.batch = q.dim(0),
          .sequence = q.dim(1),
          .heads = q.dim(2),
          .kv_heads = k.dim(2),
          .first_sample = options.first_sample,
          .first_head = options.first_head,
          .head_size = static_cast<int>(q.dim(3)),
          .scale = static_cast<float>(options.scale),
          .dropout = options.dropout_probability != 0,
          .key = MakeDropoutKey(options.dropout_stream, options.dropout_probability)};
}

}  // namespace tessera::cuda
