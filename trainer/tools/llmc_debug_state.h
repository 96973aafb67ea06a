#ifndef TESSERA_TRAINER_TOOLS_LLMC_DEBUG_STATE_H_
#define TESSERA_TRAINER_TOOLS_LLMC_DEBUG_STATE_H_

// The debug state of llm.c. Its test programs compare one forward and backward pass of GPT-2 with
// it. B batch, T sequence, V vocabulary without padding; little-endian:
//
//   int32 [256]     20240327, version 2, B, T, then zeros
//   int32 [B,T]     x, the tokens
//   int32 [B,T]     y, the targets; negative: ignored
//   fp32  [B,T,V]   logits
//   fp32            loss, the mean over the targets
//   fp32            gradients of the loss, in the order of the model file and with its padding

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// How a result of the trainer's layers differs from the debug state.
struct DebugStateDifference {
  std::string name;    // "logits", "loss" or the parameter whose gradient is compared
  double largest = 0;  // largest absolute difference; infinite if a value is not finite
  double scale = 0;    // largest magnitude in the debug state

  // Returns whether the difference is at most this share of the largest magnitude.
  bool IsWithin(double tolerance) const {
    return std::isfinite(largest) && largest <= tolerance * scale;
  }
};

// Runs a forward and a backward pass with the weights of a model file of llm.c on x and y of a
// debug state, in fp32, and compares the results. Returns the logits, the loss, and the gradients
// in the model's order.
//
// Errors, which name the file: NotFound; DataLoss for a file of another kind or length, and for
// tokens outside the vocabulary; InvalidArgument for a model other than GPT-2. Memory: weights,
// gradients, activations and the logits twice.
absl::StatusOr<std::vector<DebugStateDifference>> CheckDebugState(const std::string& model_file,
                                                                  const std::string& state_file,
                                                                  int threads);

// The tokens of a debug state to write: the first B*T + 1 of a token file (token_file.h). As in
// llm.c, the targets y are the tokens after x.
struct DebugStateTokens {
  std::string file;
  int64_t batch = 4;
  int64_t sequence = 64;
};

// Writes the debug state of the trainer's own pass, which replaces a file of that name. Meanwhile,
// STATE_FILE.gradients is beside it. Errors: as above; those of the token file; OutOfRange if it
// has too few tokens; those of the file system.
absl::Status WriteDebugState(const std::string& model_file, const DebugStateTokens& tokens,
                             const std::string& state_file, int threads);

}  // namespace tessera

#endif  // TESSERA_TRAINER_TOOLS_LLMC_DEBUG_STATE_H_
