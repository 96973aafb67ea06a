#include "trainer/state/state_health.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "base/status_macros.h"

namespace tessera {
namespace {

// Infinities and NaNs, and no other numbers, have an exponent of ones only.
template <typename Word, Word kExponent>
bool AllFinite(const void* data, size_t count) {
  const Word* const words = static_cast<const Word*>(data);
  Word largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max<Word>(largest, words[i] & kExponent);
  return largest != kExponent;
}

bool IsFinite(DType dtype, const void* data, size_t count) {
  switch (dtype) {
    case DType::kF32:
      return AllFinite<uint32_t, 0x7F800000>(data, count);
    case DType::kBF16:
      return AllFinite<uint16_t, 0x7F80>(data, count);
    default:
      return true;
  }
}

bool IsFinite(const ckpt::ShardedTensor& tensor, const ckpt::Shard& shard) {
  const DType dtype = shard.dtype == DType::kUnspecified ? tensor.dtype : shard.dtype;
  if (shard.box.empty()) return true;
  if (shard.strides.empty()) {
    return IsFinite(dtype, shard.data, static_cast<size_t>(ElementCount(shard.box.shape)));
  }
  // Rows of the last dim, which is contiguous in every buffer of the trainer; one element at a time
  // otherwise.
  const size_t dims = shard.box.shape.size();
  const bool rows = dims > 0 && shard.strides[dims - 1] == 1;
  const size_t row_elements = rows ? static_cast<size_t>(shard.box.shape[dims - 1]) : 1;
  const size_t outer = rows ? dims - 1 : dims;
  const size_t element_bytes = dtype == DType::kBF16 ? 2 : 4;
  Shape index(outer, 0);
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < outer; ++d) offset += index[d] * shard.strides[d];
    if (!IsFinite(dtype, static_cast<const std::byte*>(shard.data) + offset * element_bytes,
                  row_elements)) {
      return false;
    }
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == shard.box.shape[d - 1]) index[--d] = 0;
    if (d == 0) return true;
  }
}

// Squares of fp32 do not overflow in fp64. What lies between parameters is zero.
bool IsFiniteOnDevice(const StateChunk& chunk) {
  for (const TensorView& buffer : StateBuffers(chunk)) {
    if (buffer.elements() > 0 && !std::isfinite(chunk.backend->SumOfSquares({buffer})))
      return false;
  }
  return true;
}

bool StateIsFinite(StateChunks chunks) {
  if (chunks.empty() || chunks.front().backend == nullptr) {
    return tessera::IsFinite(WeightState(chunks)) && tessera::IsFinite(OptimizerTensors(chunks));
  }
  return std::all_of(chunks.begin(), chunks.end(), IsFiniteOnDevice);
}

}  // namespace

bool IsFinite(const ckpt::StateDict& state) {
  for (const ckpt::ShardedTensor& tensor : state.tensors) {
    for (const ckpt::Shard& shard : tensor.shards) {
      if (!IsFinite(tensor, shard)) return false;
    }
  }
  return true;
}

bool IsSaneLoss(double loss, int64_t vocab_size) {
  // Well above any spike of a run that recovers.
  return std::isfinite(loss) && loss < 10 + 4 * std::log(static_cast<double>(vocab_size));
}

absl::StatusOr<ckpt::StateHealth> MeasureHealth(StateChunks chunks, Communicator* world,
                                                double last_loss, int64_t vocab_size,
                                                std::optional<double> validation_loss) {
  int64_t broken_ranks = StateIsFinite(chunks) ? 0 : 1;
  if (world != nullptr) {
    TESSERA_RETURN_IF_ERROR(world->AllReduce(std::span(&broken_ranks, 1), ReduceOp::kSum,
                                             {.what = "health of the state"}));
  }
  ckpt::StateHealth health;
  health.set_state_is_finite(broken_ranks == 0);
  health.set_loss_is_sane(IsSaneLoss(last_loss, vocab_size));
  if (validation_loss.has_value()) health.set_validation_loss(*validation_loss);
  return health;
}

}  // namespace tessera
