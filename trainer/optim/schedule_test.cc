#include "trainer/optim/schedule.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tessera {
namespace {

// The expected values were computed with Megatron-LM's formulas in Python, independently of this
// code.
using Expected = std::vector<std::pair<int64_t, double>>;

OptimizerConfig Config(LrDecayStyle::Value style) {
  OptimizerConfig config;
  config.set_lr(1e-3);
  config.set_min_lr(1e-4);
  config.set_lr_decay_style(style);
  config.set_lr_warmup_iters(10);
  config.set_lr_decay_iters(110);
  config.set_lr_wsd_decay_iters(40);
  return config;
}

void ExpectRates(const OptimizerConfig& config, const Expected& expected) {
  for (const auto& [step, rate] : expected) {
    EXPECT_NEAR(LearningRate(config, step), rate, 1e-18) << "step " << step;
  }
}

TEST(ScheduleTest, WarmsUpFromZeroWhateverTheStyle) {
  for (const LrDecayStyle::Value style :
       {LrDecayStyle::CONSTANT, LrDecayStyle::LINEAR, LrDecayStyle::COSINE, LrDecayStyle::WSD}) {
    ExpectRates(Config(style), {{0, 0}, {1, 1e-4}, {5, 5e-4}, {9, 9e-4}, {10, 1e-3}});
  }
}

TEST(ScheduleTest, StartsAtTheHighestRateWithoutWarmup) {
  OptimizerConfig config = Config(LrDecayStyle::LINEAR);
  config.set_lr_warmup_iters(0);
  config.set_lr_decay_iters(100);
  ExpectRates(config, {{0, 1e-3}, {1, 9.91e-4}, {50, 5.5e-4}, {100, 1e-4}, {101, 1e-4}});
}

TEST(ScheduleTest, ConstantNeverFalls) {
  ExpectRates(Config(LrDecayStyle::CONSTANT), {{11, 1e-3}, {110, 1e-3}, {111, 1e-3}, {9999, 1e-3}});
}

TEST(ScheduleTest, Linear) {
  ExpectRates(Config(LrDecayStyle::LINEAR), {{11, 0.000991},
                                             {20, 0.00091},
                                             {60, 0.00055},
                                             {109, 0.000109},
                                             {110, 0.0001},
                                             {111, 0.0001}});
}

TEST(ScheduleTest, Cosine) {
  ExpectRates(Config(LrDecayStyle::COSINE), {{11, 0.0009997779521645793},
                                             {20, 0.0009779754323328191},
                                             {60, 0.00055},
                                             {109, 0.00010022204783542078},
                                             {110, 0.0001},
                                             {111, 0.0001}});
}

TEST(ScheduleTest, WsdIsStableThenFallsInEachStyle) {
  OptimizerConfig config = Config(LrDecayStyle::WSD);
  const Expected stable = {{10, 1e-3}, {11, 1e-3}, {69, 1e-3}, {70, 1e-3}};
  const Expected after = {{110, 1e-4}, {111, 1e-4}, {9999, 1e-4}};
  const std::pair<LrWsdDecayStyle::Value, Expected> cases[] = {
      {LrWsdDecayStyle::EXPONENTIAL,
       {{71, 0.0009690770773814519}, {80, 0.0007136135474566861}, {90, 0.0004727922061357856}}},
      {LrWsdDecayStyle::LINEAR, {{71, 0.0009775}, {80, 0.000775}, {90, 0.00055}}},
      {LrWsdDecayStyle::COSINE,
       {{71, 0.0009986128001799076}, {80, 0.0008681980515339464}, {90, 0.00055}}},
      {LrWsdDecayStyle::MINUS_SQRT,
       {{71, 0.000857697505292423}, {80, 0.00055}, {90, 0.0003636038969321072}}},
  };
  for (const auto& [style, falling] : cases) {
    config.set_lr_wsd_decay_style(style);
    SCOPED_TRACE(LrWsdDecayStyle::Value_Name(style));
    ExpectRates(config, stable);
    ExpectRates(config, falling);
    ExpectRates(config, after);
  }
}

TEST(ScheduleTest, WsdThatDecaysFromTheEndOfTheWarmup) {
  OptimizerConfig config = Config(LrDecayStyle::WSD);
  config.set_lr_wsd_decay_style(LrWsdDecayStyle::LINEAR);
  config.set_lr_wsd_decay_iters(100);
  ExpectRates(config, {{10, 1e-3}, {11, 9.91e-4}, {60, 5.5e-4}, {110, 1e-4}});
}

}  // namespace
}  // namespace tessera
