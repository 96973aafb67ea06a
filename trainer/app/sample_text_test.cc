#include "trainer/app/sample_text.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "tokenizer/byte_tokenizer.h"

namespace tessera {
namespace {

TEST(ChooseTokenTest, TemperatureZeroTakesTheMostLikelyAndTheLowestOfEquals) {
  EXPECT_EQ(ChooseToken(std::vector<float>{0, 3, 1, 3}, 0, 0, 0.99f), 1);
}

TEST(ChooseTokenTest, TopOneTakesTheMostLikelyAtAnyTemperature) {
  EXPECT_EQ(ChooseToken(std::vector<float>{-5, -7, -4}, 100, 1, 0.99f), 2);
}

// The frequencies of an even sweep over [0, 1) are the probabilities.
TEST(ChooseTokenTest, FollowsTheSoftmax) {
  const std::vector<float> logits{0.0f, 0.6931472f, 1.3862944f, -1e9f};  // 1 : 2 : 4 : 0
  constexpr int kSweep = 7000;
  std::vector<int> counts(4);
  for (int i = 0; i < kSweep; ++i) {
    ++counts[ChooseToken(logits, 1, 0, (static_cast<float>(i) + 0.5f) / kSweep)];
  }
  EXPECT_NEAR(counts[0], kSweep / 7.0, 2);
  EXPECT_NEAR(counts[1], kSweep * 2 / 7.0, 2);
  EXPECT_NEAR(counts[2], kSweep * 4 / 7.0, 2);
  EXPECT_EQ(counts[3], 0);
}

TEST(ChooseTokenTest, TopKLeavesOutTheRest) {
  const std::vector<float> logits{0.0f, 0.6931472f, 1.3862944f};
  for (int i = 0; i < 100; ++i) {
    EXPECT_NE(ChooseToken(logits, 1, 2, (static_cast<float>(i) + 0.5f) / 100), 0);
  }
}

TEST(ChooseTokenTest, LowTemperatureSharpens) {
  const std::vector<float> logits{1.0f, 2.0f};
  EXPECT_EQ(ChooseToken(logits, 0.01, 0, 0.0001f), 1);
}

// The weights that a program has saved may be NaN, and every comparison with it is false.
TEST(SampleTextTest, LogitsThatAreNotFiniteEndTheText) {
  const ByteTokenizer tokenizer;
  SamplingConfig config;
  config.set_num_tokens_to_generate(3);
  for (const float broken :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::string text;
    const absl::Status status = SampleText(
        [&](std::span<const int32_t> context) {
          std::vector<float> logits(tokenizer.vocab_size());
          logits['a'] = 100;
          if (context.size() == 2) logits['b'] = broken;
          return logits;
        },
        tokenizer, config, /*max_context=*/8, {},
        [&](const SampledToken& token) {
          text += token.text;
          return absl::OkStatus();
        });
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_NE(status.message().find("logits of token 2 are not finite"), std::string::npos)
        << status;
    EXPECT_EQ(text, "a");
  }
}

}  // namespace
}  // namespace tessera
