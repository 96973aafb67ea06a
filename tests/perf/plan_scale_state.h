#ifndef TESSERA_TESTS_PERF_PLAN_SCALE_STATE_H_
#define TESSERA_TESTS_PERF_PLAN_SCALE_STATE_H_

#include <cstdint>

#include "checkpoint/include/state_dict.h"

namespace tessera::ckpt {

// The tensor sizes of a Llama-3.
struct LlamaShape {
  int layers;
  int64_t hidden;
  int64_t ffn_hidden;
  int64_t kv_hidden;  // all key-value heads
  int64_t vocab;
};
inline constexpr LlamaShape kLlama70B = {80, 8192, 28672, 1024, 128256};
inline constexpr LlamaShape kLlama405B = {126, 16384, 53248, 1024, 128256};

struct Grid {
  int data, tensor, pipeline;
  int size() const { return data * tensor * pipeline; }
};

// Returns the state of one rank that trains with AdamW in bf16 under ZeRO-2. It has a part of the
// weights, which all ranks of its data-parallel group share. It has fp32 master weights and moments
// for a part of the stage's flattened parameters, with arbitrary boundaries. Ranks are numbered
// tensor fastest, then data, then pipeline. The memory does not exist.
StateDict LlamaState(const LlamaShape& model, const Grid& grid, int rank);

}  // namespace tessera::ckpt

#endif  // TESSERA_TESTS_PERF_PLAN_SCALE_STATE_H_
