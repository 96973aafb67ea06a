#ifndef TESSERA_TRAINER_APP_SAMPLE_TEXT_H_
#define TESSERA_TRAINER_APP_SAMPLE_TEXT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/random/philox.h"
#include "tokenizer/tokenizer.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Chooses the next token from logits[V], with the probabilities softmax(logits / temperature) over
// the top_k most likely (0: all), by a uniform number in [0, 1). Temperature 0 chooses the most
// likely token, and the lowest id among equals.
int32_t ChooseToken(std::span<const float> logits, double temperature, int64_t top_k,
                    float uniform);

// Returns the logits of the token after a context, for the whole vocabulary.
using NextLogits = std::function<absl::StatusOr<std::vector<float>>(std::span<const int32_t>)>;

// A chosen token and its logits. The views are valid while the token is passed on.
struct SampledToken {
  int32_t id = 0;
  std::string_view text;
  std::span<const float> logits;
};

// Continues config.prompt() by num_tokens_to_generate tokens and passes each to `emit` immediately;
// ends early at end of text. The model sees the last `max_context` tokens. Deterministic in
// `stream`, so that ranks with the same logits choose the same tokens. Errors: those of the
// tokenizer and of `next_logits`; Aborted for logits that are not finite.
absl::Status SampleText(const NextLogits& next_logits, const Tokenizer& tokenizer,
                        const SamplingConfig& config, int64_t max_context,
                        const RandomStream& stream,
                        const std::function<absl::Status(const SampledToken&)>& emit);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_SAMPLE_TEXT_H_
