#include "models/layers/split_norm.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/status_macros.h"

namespace tessera {
namespace {

// The blocks [first, first + count) of `all`, which contain this rank's rows.
struct RowBlocks {
  int64_t all = 0;
  int64_t first = 0;
  int64_t count = 0;
};

RowBlocks BlocksOf(const Pass& pass) {
  const TensorParallel& tensor_parallel = pass.tensor_parallel;
  const int64_t all = std::min<int64_t>(pass.shards(), pass.rows());
  if (!pass.splits_rows()) return {all, 0, all};
  return {all, tensor_parallel.first_shard(), tensor_parallel.local_shards()};
}

// Element i of the first dim.
TensorView Part(const TensorView& x, int64_t i) {
  return x.Slice(0, i, i + 1).Reshape(Shape(x.shape().begin() + 1, x.shape().end()));
}

Norm::Gradients VectorsOf(const TensorView& x) {
  return {Part(x, 0), x.dim(0) > 1 ? Part(x, 1) : TensorView()};
}

// Replaces part `begin` by T(begin, end) of the parts.
void AddInTree(Backend& backend, const TensorView& parts, int64_t begin, int64_t end) {
  if (end - begin == 1) return;
  const int64_t middle =
      begin + static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(end - begin - 1)));
  AddInTree(backend, parts, begin, middle);
  AddInTree(backend, parts, middle, end);
  const TensorView sum = Part(parts, begin);
  backend.Add({sum, Part(parts, middle), sum});
}

void AddOrCopy(Backend& backend, const TensorView& from, const TensorView& to, bool accumulate) {
  if (to.empty()) return;
  if (accumulate) {
    backend.Add({to, from, to});
  } else {
    backend.Copy({from, to});
  }
}

}  // namespace

absl::Status NormForward(const Pass& pass, const TensorView& x, const NormPlace& to) {
  to.norm->Forward(pass.backend, x, pass.OwnRows(to.out), to.stats);
  return pass.GatherRows(to.out, "normalised rows");
}

absl::Status AddNormForward(const Pass& pass, const TensorView& a, const TensorView& b,
                            const TensorView& sum, const NormPlace& to) {
  to.norm->AddForward(pass.backend, a, b, sum, pass.OwnRows(to.out), to.stats);
  return pass.GatherRows(to.out, "normalised rows");
}

NormGradients::NormGradients(Arena& arena, const Pass& pass, DType dtype, const Norm& norm,
                             int count) {
  if (pass.shards() == 1) return;
  const int64_t vectors = norm.gradient_vectors(), channels = norm.channels();
  blocks_ = arena.Take(SumDType(dtype), {BlocksOf(pass).count, vectors, channels});
  sums_ = arena.Take(SumDType(dtype), {count, vectors, channels});
}

void NormGradients::Backward(const Pass& pass, const Norm& norm, int index, const TensorView& d_out,
                             const TensorView& x, const TensorView& stats, const TensorView& d_x,
                             bool accumulate_dx, bool accumulate) const {
  if (pass.shards() == 1) {
    norm.Backward(pass.backend, d_out, x, stats, d_x, accumulate_dx, norm.gradients(), accumulate);
    return;
  }
  const RowBlocks blocks = BlocksOf(pass);
  const auto first_row = [&](int64_t block) {
    return (blocks.first + block) * pass.rows() / blocks.all - pass.first_own_row();
  };
  for (int64_t i = 0; i < blocks.count; ++i) {
    const int64_t begin = first_row(i), end = first_row(i + 1);
    norm.Backward(pass.backend, d_out.Slice(0, begin, end), x.Slice(0, begin, end),
                  stats.Slice(1, begin, end), d_x.Slice(0, begin, end), accumulate_dx,
                  VectorsOf(Part(blocks_, i)), /*accumulate=*/false);
  }
  AddInTree(pass.backend, blocks_, 0, blocks.count);
  pass.backend.Copy({Part(blocks_, 0), Part(sums_, index)});
}

absl::Status NormGradients::Finish(const Pass& pass, std::span<const Norm* const> norms,
                                   bool accumulate) const {
  if (pass.shards() == 1) return absl::OkStatus();
  if (pass.splits_rows()) {
    TESSERA_RETURN_IF_ERROR(pass.tensor_parallel.AllReduce(sums_, "gradients of norms"));
  }
  for (size_t i = 0; i < norms.size(); ++i) {
    const Norm::Gradients from = VectorsOf(Part(sums_, static_cast<int64_t>(i)));
    const Norm::Gradients to = norms[i]->gradients();
    AddOrCopy(pass.backend, from.weight, to.weight, accumulate);
    AddOrCopy(pass.backend, from.bias, to.bias, accumulate);
  }
  return absl::OkStatus();
}

}  // namespace tessera
