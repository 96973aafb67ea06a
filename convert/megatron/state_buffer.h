#ifndef TESSERA_CONVERT_MEGATRON_STATE_BUFFER_H_
#define TESSERA_CONVERT_MEGATRON_STATE_BUFFER_H_

// The flat buffers in which Megatron's distributed optimizer keeps its state. A buffer holds the
// parameters that one rank has of one chunk of the model, in the reverse of the module's order.
// Each begins at a multiple of kBufferAlignment, and buckets divide the buffer.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/model_rules.h"
#include "convert/megatron/optimizer_state.h"

namespace tessera::ckpt::convert {

inline constexpr int64_t kBufferAlignment = 64;

// A parameter as a rank has it.
struct RankParameter {
  const ForeignParameter* parameter = nullptr;
  TensorParallelShare share;
  int64_t elements = 0;
  // That of a tied embedding which two pipeline stages have.
  bool has_own_bucket = false;
};

// Elements of a buffer that are stored one after the other.
struct BufferRun {
  int64_t begin = 0;  // in the buffer
  int64_t count = 0;
  ForeignPlace place;
};

// A buffer without the padding at the ends of its buckets.
struct StateBuffer {
  std::string where;                     // for messages
  int64_t elements = 0;                  // of each kind
  std::vector<int64_t> bucket_elements;  // empty where they are not stored
  // The runs of each kind, sorted.
  std::vector<std::pair<ForeignKind, std::vector<BufferRun>>> kinds;
};

// The buffer that was gathered from data-parallel ranks into a file.
StateBuffer BufferOf(const GatheredBuffer& gathered, const std::string& path,
                     const std::string& where);

// Where each parameter begins in a buffer, in the order of `parameters`, which is the module's.
// Buckets are those of the buffer or, where it does not tell them, end with the parameter that
// gives them `bucket_elements`; 0: only the last parameter does. Nullopt where the buffer does not
// have the size that results.
std::optional<std::vector<int64_t>> PlaceInBuffer(std::span<const RankParameter> parameters,
                                                  const StateBuffer& buffer,
                                                  int64_t bucket_elements);

// Adds the states of the parameters, which begin at `begins`. Errors: DataLoss, naming file and
// parameter, where a kind lacks elements of one; those of ForeignTensorSet::AddRange().
absl::Status AddBuffer(std::span<const RankParameter> parameters, std::span<const int64_t> begins,
                       const StateBuffer& buffer, ForeignTensorSet& set);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_STATE_BUFFER_H_
