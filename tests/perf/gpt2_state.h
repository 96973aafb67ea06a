#ifndef TESSERA_TESTS_PERF_GPT2_STATE_H_
#define TESSERA_TESTS_PERF_GPT2_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace tessera {

// The full training state of GPT-2 124M on a single process: bf16 weights, fp32 master weights and
// two moments of each parameter, contiguous in that order, with random contents.
class Gpt2State {
 public:
  Gpt2State();

  const ckpt::StateDict& dict() const { return dict_; }
  ckpt::StateDict& dict() { return dict_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void Add(const std::string& name, ckpt::TensorRole role, ckpt::ElementType dtype,
           int64_t element_bytes, const ckpt::Shape& shape);

  ckpt::StateDict dict_;
  std::vector<std::vector<uint64_t>> memory_;
  uint64_t random_ = 1;
  uint64_t bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_GPT2_STATE_H_
