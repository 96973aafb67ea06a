#include "trainer/app/sample_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compute/random/fixed_math.h"

namespace tessera {

int32_t ChooseToken(std::span<const float> logits, double temperature, int64_t top_k,
                    float uniform) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const int64_t all = static_cast<int64_t>(ids.size());
  const int64_t kept = temperature == 0 ? 1 : top_k > 0 ? std::min(top_k, all) : all;
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  ids.resize(kept);
  if (kept == 1) return ids[0];
  std::vector<double> cumulative;
  double sum = 0;
  for (const int32_t id : ids) {
    sum += FixedExp((logits[id] - logits[ids[0]]) / temperature);
    cumulative.push_back(sum);
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  return ids[std::min<int64_t>(chosen - cumulative.begin(), kept - 1)];
}

absl::Status SampleText(const NextLogits& next_logits, const Tokenizer& tokenizer,
                        const SamplingConfig& config, int64_t max_context,
                        const RandomStream& stream,
                        const std::function<absl::Status(const SampledToken&)>& emit) {
  std::vector<int32_t> tokens{tokenizer.end_of_text()};
  if (!config.prompt().empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt,
                             tokenizer.EncodeWithSpecialTokens(config.prompt()));
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  }
  for (int64_t i = 0; i < config.num_tokens_to_generate(); ++i) {
    const std::span<const int32_t> all(tokens);
    const std::span<const int32_t> context =
        all.last(std::min<size_t>(all.size(), static_cast<size_t>(max_context)));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<float> logits, next_logits(context));
    if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) {
      return absl::AbortedError(absl::StrCat("num_tokens_to_generate: the logits of token ", i + 1,
                                             " are not finite: the weights are broken"));
    }
    const int32_t next = ChooseToken(logits, config.temperature(), config.top_k(),
                                     RandomUniform(stream, static_cast<uint64_t>(i)));
    if (next == tokenizer.end_of_text()) break;
    tokens.push_back(next);
    const auto text = tokenizer.TokenText(next);
    TESSERA_RETURN_IF_ERROR(emit({next, text, logits}));
  }
  return absl::OkStatus();
}

}  // namespace tessera
