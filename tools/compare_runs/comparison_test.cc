#include "tools/compare_runs/comparison.h"

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RunRecords Records(int64_t first, int64_t last) {
  RunRecords run;
  for (int64_t step = first; step <= last; ++step) {
    run.steps[step] = {.loss = 5.0 - 0.1 * static_cast<double>(step),
                       .grad_norm = 1.0 / static_cast<double>(step),
                       .lr = 1e-3,
                       .tokens_per_second = 100.0 * static_cast<double>(step)};
  }
  return run;
}

const ComparedQuantity& Quantity(const RunComparison& comparison, const std::string& name) {
  return *std::find_if(comparison.quantities.begin(), comparison.quantities.end(),
                       [&](const ComparedQuantity& q) { return q.name == name; });
}

TEST(ComparisonTest, EqualRuns) {
  RunRecords faster = Records(1, 10);
  for (auto& [step, record] : faster.steps) record.tokens_per_second *= 3;
  const RunComparison comparison = CompareRuns(Records(1, 10), faster, {.exact = true});
  EXPECT_TRUE(comparison.equal());
  EXPECT_EQ(Quantity(comparison, "loss").compared, 10);
  EXPECT_EQ(Quantity(comparison, "loss").equal_bits, 10);
  EXPECT_EQ(Quantity(comparison, "tokens_per_second").equal_bits, 0);
  EXPECT_NEAR(Quantity(comparison, "tokens_per_second").largest_difference, 2.0 / 3, 1e-12);
}

TEST(ComparisonTest, EachJudgedNumberMustAgree) {
  for (double StepRecord::*number : {&StepRecord::loss, &StepRecord::grad_norm, &StepRecord::lr}) {
    RunRecords other = Records(1, 10);
    other.steps[4].*number *= 1 + 1e-4;
    other.steps[7].*number *= 1 + 1e-3;
    const RunComparison comparison = CompareRuns(Records(1, 10), other, {});
    EXPECT_FALSE(comparison.equal());
    const ComparedQuantity* first = comparison.first_difference();
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->first_step, 4);
    EXPECT_EQ(first->largest_step, 7);
    EXPECT_NEAR(first->largest_difference, 1e-3, 1e-5);
    EXPECT_EQ(first->first_b, other.steps[4].*number);
    EXPECT_EQ(first->equal_bits, 8);
  }
}

TEST(ComparisonTest, ALossThatIsNotFiniteIsADifference) {
  for (const double loss : {NAN, INFINITY, -INFINITY}) {
    RunRecords run = Records(1, 10);
    run.steps[4].loss = loss;
    EXPECT_TRUE(CompareRuns(run, run, {}).equal());
    for (const bool absolute : {false, true}) {
      const RunComparison comparison = CompareRuns(Records(1, 10), run, {.absolute = absolute});
      EXPECT_FALSE(comparison.equal()) << loss;
      EXPECT_EQ(Quantity(comparison, "loss").first_step, 4) << loss;
      EXPECT_EQ(Quantity(comparison, "loss").within_rounding, 0) << loss;
    }
    // A log of fewer digits.
    for (int step = 1; step <= 10; ++step) run.roundings[step] = {5e-5, 5e-5, 5e-5, kNotRecorded};
    EXPECT_FALSE(CompareRuns(Records(1, 10), run, {}).equal()) << loss;
  }
}

TEST(ComparisonTest, DefaultTolerancesDependOnThePrecision) {
  RunRecords a = Records(1, 10), b = Records(1, 10);
  b.steps[5].loss *= 1 + 5e-6;
  EXPECT_TRUE(CompareRuns(a, b, {}).equal());
  EXPECT_FALSE(CompareRuns(a, b, {.exact = true}).equal());
  EXPECT_FALSE(CompareRuns(a, b, {.tolerance = 1e-6}).equal());
  b.steps[5].loss *= 1 + 5e-3;
  EXPECT_FALSE(CompareRuns(a, b, {}).equal());
  a.bf16 = false;
  EXPECT_FALSE(CompareRuns(a, b, {}).equal());
  b.bf16 = true;
  EXPECT_EQ(CompareRuns(a, b, {}).tolerance, kBf16Tolerance);
  EXPECT_TRUE(CompareRuns(a, b, {}).equal());
  b.steps[5].loss *= 1 + 2e-2;
  EXPECT_FALSE(CompareRuns(a, b, {}).equal());
}

TEST(ComparisonTest, MissingStepsFail) {
  RunRecords gap = Records(1, 10);
  gap.steps.erase(4);
  const RunComparison comparison = CompareRuns(Records(1, 10), gap, {});
  EXPECT_FALSE(comparison.equal());
  EXPECT_THAT(comparison.only_a, ElementsAre(4));
  EXPECT_THAT(comparison.only_b, IsEmpty());
  EXPECT_EQ(comparison.first_difference(), nullptr);

  const RunRecords resumed = Records(6, 12);
  EXPECT_FALSE(CompareRuns(Records(1, 10), resumed, {}).equal());
  EXPECT_THAT(CompareRuns(Records(1, 10), resumed, {}).only_b, ElementsAre(11, 12));
  EXPECT_TRUE(CompareRuns(Records(1, 10), resumed, {.first_step = 6, .last_step = 10}).equal());
}

TEST(ComparisonTest, EvaluationsCountWhereBothRunsHaveSome) {
  RunRecords a = Records(1, 10), b = Records(1, 10);
  a.evaluation_losses = {{5, 2.0}, {10, 1.0}};
  EXPECT_TRUE(CompareRuns(a, b, {}).equal());
  b.evaluation_losses = {{5, 2.0}};
  EXPECT_THAT(CompareRuns(a, b, {}).only_a_evaluations, ElementsAre(10));
  EXPECT_FALSE(CompareRuns(a, b, {}).equal());
  b.evaluation_losses[10] = 1.1;
  const RunComparison comparison = CompareRuns(a, b, {});
  EXPECT_FALSE(comparison.equal());
  EXPECT_EQ(comparison.first_difference()->name, "eval_loss");
  EXPECT_EQ(comparison.first_difference()->first_step, 10);
}

// Records as a log has them that prints each number with four places.
RunRecords Printed(int64_t first, int64_t last, int64_t interval) {
  RunRecords run = Records(first, last);
  run.foreign = "a log";
  std::erase_if(run.steps, [&](const auto& step) { return step.first % interval != 0; });
  for (auto& [step, record] : run.steps) {
    for (double StepRecord::*number : {&StepRecord::loss, &StepRecord::grad_norm}) {
      record.*number = std::round(record.*number * 1e4) / 1e4;
    }
    run.roundings[step] = {5e-5, 5e-5, 5e-5, kNotRecorded};
  }
  return run;
}

TEST(ComparisonTest, PrintedDigitsAreTolerated) {
  const CompareOptions options{.tolerance = 1e-9};
  const RunRecords exact = Records(1, 10), log = Printed(1, 10, 1);
  const RunComparison comparison = CompareRuns(exact, log, options);
  EXPECT_TRUE(comparison.equal());
  EXPECT_EQ(Quantity(comparison, "grad_norm").within_rounding, 4);  // 1/3, 1/6, 1/7 and 1/9
  EXPECT_EQ(Quantity(comparison, "tokens_per_second").compared, 0);
  EXPECT_TRUE(CompareRuns(log, exact, options).equal());
  EXPECT_FALSE(CompareRuns(exact, log, {.exact = true}).equal());
  RunRecords other = log;
  other.steps[3].grad_norm += 1e-4;
  EXPECT_FALSE(CompareRuns(exact, other, options).equal());
  // With the same number of printed digits, both must print the same number.
  EXPECT_TRUE(CompareRuns(log, log, options).equal());
  EXPECT_FALSE(CompareRuns(log, other, options).equal());
  other = log;
  other.steps[3].loss = NAN;
  EXPECT_EQ(CompareRuns(exact, other, options).first_difference()->first_step, 3);
}

TEST(ComparisonTest, LogsMaySkipStepsButNotEndEarlier) {
  EXPECT_TRUE(CompareRuns(Records(1, 10), Printed(1, 10, 3), {}).equal());
  EXPECT_TRUE(CompareRuns(Printed(1, 11, 3), Records(1, 11), {}).equal());
  EXPECT_THAT(CompareRuns(Records(1, 12), Printed(1, 10, 3), {}).only_a, ElementsAre(12));
  // What metrics.jsonl lacks is missing.
  EXPECT_THAT(CompareRuns(Records(1, 7), Printed(1, 10, 3), {}).only_b, ElementsAre(9));
  const RunComparison none = CompareRuns(Records(1, 4), Printed(6, 10, 1), {});
  EXPECT_FALSE(none.comparable());
  EXPECT_FALSE(none.equal());
}

TEST(ComparisonTest, OptionsOfTheJudgement) {
  RunRecords a = Records(1, 10), b = Records(1, 10);
  b.steps[2].loss += 1e-4;  // of 4.8
  EXPECT_FALSE(CompareRuns(a, b, {}).equal());
  EXPECT_TRUE(CompareRuns(a, b, {.fp32_tolerance = 5e-5}).equal());
  EXPECT_FALSE(CompareRuns(a, b, {.fp32_tolerance = 5e-5, .absolute = true}).equal());
  EXPECT_TRUE(CompareRuns(a, b, {.fp32_tolerance = 2e-4, .absolute = true}).equal());
  EXPECT_TRUE(CompareRuns(a, b, {.judged = {"lr", "grad_norm"}}).equal());
  b.bf16 = true;
  EXPECT_FALSE(CompareRuns(a, b, {.bf16_tolerance = 1e-6}).equal());
  a.steps[1].tokens_per_second = b.steps[1].tokens_per_second = NAN;
  for (auto& [step, record] : b.steps) record.tokens_per_second *= 2;
  EXPECT_EQ(SpeedRatio(a, b, {}), 2);
  EXPECT_TRUE(std::isnan(SpeedRatio(a, {}, {})));
}

TEST(ComparisonTest, RelativeDifferences) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(RelativeDifference(0, 0), 0);
  EXPECT_EQ(RelativeDifference(0, -0.0), 0);
  EXPECT_EQ(RelativeDifference(2, 1), 0.5);
  EXPECT_EQ(RelativeDifference(1, 2), 0.5);
  EXPECT_EQ(RelativeDifference(0, 1e-30), 1);
  EXPECT_EQ(RelativeDifference(NAN, NAN), 0);
  EXPECT_EQ(RelativeDifference(NAN, 1), infinity);
  EXPECT_EQ(RelativeDifference(infinity, infinity), 0);
  EXPECT_EQ(RelativeDifference(infinity, 1), infinity);
}

TEST(ComparisonTest, NegativeZeroIsAnotherNumberInBits) {
  RunRecords a = Records(1, 2), b = Records(1, 2);
  a.steps[2].lr = 0;
  b.steps[2].lr = -0.0;
  EXPECT_TRUE(CompareRuns(a, b, {.tolerance = 0}).equal());
  EXPECT_FALSE(CompareRuns(a, b, {.exact = true}).equal());
}

TEST(ComparisonTest, StepRanges) {
  EXPECT_EQ(StepRanges({}), "");
  EXPECT_EQ(StepRanges({3}), "3");
  EXPECT_EQ(StepRanges({1, 2, 5, 6, 7, 9}), "1, 2, 5 to 7, 9");
}

}  // namespace
}  // namespace tessera
