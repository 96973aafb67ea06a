#include <glog/logging.h>

#include <cstdint>
#include <vector>

#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/backend_impl.h"
#include "compute/tensor/tensor.h"

namespace tessera::reference {

// out[r,:] = table[ids[r] - first_id, :], or zeros where this shard has no such row
void ReferenceBackend::EmbeddingForward(TensorView table, TensorView ids, int64_t first_id,
                                        TensorView out) {
  const std::vector<int64_t> rows = LoadIds(ids);
  Array gathered({static_cast<int64_t>(rows.size()), table.dim(1)});
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t local = rows[r] - first_id;
    if (local < 0 || local >= table.dim(0)) continue;
    const Array row(table.Slice(0, local, local + 1));
    for (int64_t c = 0; c < table.dim(1); ++c) gathered(r, c) = row(0, c);
  }
  gathered.StoreTo(out);
}

// d_table[v,:] += sum of d_out[r,:] over the rows r with ids[r] - first_id == v
void ReferenceBackend::EmbeddingBackward(TensorView d_out, TensorView ids, int64_t first_id,
                                         TensorView d_table) {
  const std::vector<int64_t> rows = LoadIds(ids);
  const Array gradient(d_out);
  CHECK_EQ(gradient.dim(0), static_cast<int64_t>(rows.size()));
  Array sums(d_table.shape());
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t local = rows[r] - first_id;
    if (local < 0 || local >= d_table.dim(0)) continue;
    for (int64_t c = 0; c < gradient.dim(1); ++c) sums(local, c) += gradient(r, c);
  }
  sums.AddTo(d_table);
}

// x[r,c] += table[r % sequence, c]
void ReferenceBackend::AddPositions(TensorView table, int64_t sequence, TensorView x) {
  const Array positions(table);
  CHECK_LE(sequence, positions.dim(0));
  Array sum(x);
  for (int64_t r = 0; r < sum.dim(0); ++r) {
    for (int64_t c = 0; c < sum.dim(1); ++c) sum(r, c) += positions(r % sequence, c);
  }
  sum.StoreTo(x);
}

// d_table[t,c] (+)= sum of d_x[r,c] over the rows r with r % sequence == t. Rows of the table past
// the sequence get a gradient of zero.
void ReferenceBackend::AddPositionsBackward(TensorView d_x, int64_t sequence, TensorView d_table,
                                            bool accumulate) {
  const Array gradient(d_x);
  CHECK_LE(sequence, d_table.dim(0));
  Array sums(d_table.shape());
  for (int64_t r = 0; r < gradient.dim(0); ++r) {
    for (int64_t c = 0; c < gradient.dim(1); ++c) sums(r % sequence, c) += gradient(r, c);
  }
  sums.StoreTo(d_table, accumulate);
}

}  // namespace tessera::reference
