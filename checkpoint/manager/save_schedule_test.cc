// When a job saves and when it ends, by all of its settings and what its ranks know.

#include "checkpoint/manager/save_schedule.h"

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/no_space.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

struct State : KnownFacts {
  StopRequest request;  // what the stop file says
};

// The decisions of a run other than "nothing", by step: "permanent", "rolling end" and so on.
class Schedule {
 public:
  explicit Schedule(const SaveScheduleOptions& options, int64_t resumed_step = 0)
      : schedule_(options), requests_(resumed_step), step_(resumed_step) {}

  // Takes steps up to `step`, each with the facts that `change` makes of quiet ones.
  Schedule& To(int64_t step, const std::function<void(State&)>& change = nullptr) {
    while (step_ < step && !ended_) {
      State state;
      state.step = ++step_;
      state.elapsed = absl::Seconds(step_);
      if (change) change(state);
      state.stop_file = requests_.AfterStep(step_, state.request);
      const SaveDecision decision = schedule_.AfterStep(state);
      if (decision.save == SaveKind::kNone && decision.end == EndReason::kNone) continue;
      ended_ = decision.end != EndReason::kNone;
      constexpr const char* kSaves[] = {"nothing", "rolling", "permanent"};
      constexpr const char* kEnds[] = {"",           " last",     " signal",  " program",
                                       " stop file", " duration", " interval"};
      decisions[step_] = std::string(kSaves[static_cast<int>(decision.save)]) +
                         kEnds[static_cast<int>(decision.end)];
    }
    return *this;
  }

  std::map<int64_t, std::string> decisions;

 private:
  SaveSchedule schedule_;
  StopRequests requests_;
  int64_t step_;
  bool ended_ = false;
};

using Decisions = std::map<int64_t, std::string>;

std::function<void(State&)> StopFile(int64_t value, int64_t version) {
  return [=](State& state) { state.request = {.step = value, .version = version}; };
}

TEST(SaveScheduleTest, IntervalAndLastStep) {
  EXPECT_EQ(Schedule({.interval_steps = 4, .last_step = 10}).To(20).decisions,
            (Decisions{{4, "permanent"}, {8, "permanent"}, {10, "permanent last"}}));
  EXPECT_EQ(Schedule({.last_step = 10}).To(20).decisions, (Decisions{{10, "permanent last"}}));
  EXPECT_EQ(Schedule({.interval_steps = 4, .last_step = 10}, 5).To(20).decisions,
            (Decisions{{8, "permanent"}, {10, "permanent last"}}));
  EXPECT_EQ(Schedule({.interval_steps = 5, .last_step = 10}).To(20).decisions,
            (Decisions{{5, "permanent"}, {10, "permanent last"}}));
}

TEST(SaveScheduleTest, WithoutALastStepNoStepIsTheLast) {
  EXPECT_EQ(Schedule({.interval_steps = 4}).To(9).decisions,
            (Decisions{{4, "permanent"}, {8, "permanent"}}));
  EXPECT_EQ(Schedule({}).To(9).decisions, Decisions());
}

TEST(SaveScheduleTest, EnableSaveCkptFalseSavesNothingAndEndsAllTheSame) {
  SaveScheduleOptions options{.saves = false,
                              .interval_steps = 2,
                              .continuous = true,
                              .rolling_interval_steps = 1,
                              .last_step = 5};
  EXPECT_EQ(Schedule(options).To(9).decisions, (Decisions{{5, "nothing last"}}));
  EXPECT_EQ(Schedule(options).To(9, StopFile(3, 2)).decisions,
            (Decisions{{3, "nothing stop file"}}));
}

TEST(SaveScheduleTest, RollingOnesGiveWayToPermanentOnes) {
  EXPECT_EQ(Schedule({.interval_steps = 6, .rolling_interval_steps = 3, .last_step = 13})
                .To(20)
                .decisions,
            (Decisions{{3, "rolling"},
                       {6, "permanent"},
                       {9, "rolling"},
                       {12, "permanent"},
                       {13, "permanent last"}}));
}

TEST(SaveScheduleTest, TheLastStepIsSavedUnlessItIsLikeAnyOther) {
  EXPECT_EQ(Schedule({.last_step = 5}).To(5).decisions, (Decisions{{5, "permanent last"}}));
  EXPECT_EQ(Schedule({.last_step = 5, .saves_last_step = false}).To(5).decisions,
            (Decisions{{5, "nothing last"}}));
  EXPECT_EQ(
      Schedule({.interval_steps = 5, .last_step = 5, .saves_last_step = false}).To(5).decisions,
      (Decisions{{5, "permanent last"}}));
}

TEST(SaveScheduleTest, ByTheClock) {
  EXPECT_EQ(Schedule({.interval = absl::Seconds(4), .last_step = 100}).To(13).decisions,
            (Decisions{{4, "permanent"}, {8, "permanent"}, {12, "permanent"}}));
  // Counted from the last permanent one, whatever its reason.
  EXPECT_EQ(Schedule({.interval_steps = 5, .interval = absl::Seconds(4), .last_step = 100})
                .To(13)
                .decisions,
            (Decisions{{4, "permanent"}, {5, "permanent"}, {9, "permanent"}, {10, "permanent"}}));
}

TEST(SaveScheduleTest, ContinuousWaitsForTheSaveInFlight) {
  const auto busy = [](State& state) { state.save_in_flight = state.step % 3 != 0; };
  EXPECT_EQ(Schedule({.continuous = true, .last_step = 100}).To(8, busy).decisions,
            (Decisions{{3, "permanent"}, {6, "permanent"}}));
}

TEST(SaveScheduleTest, ExitIntervalAndExitDurationSaveAndEnd) {
  EXPECT_EQ(Schedule({.last_step = 100, .exit_interval_steps = 7}).To(50).decisions,
            (Decisions{{7, "permanent interval"}}));
  EXPECT_EQ(Schedule({.last_step = 100, .exit_interval_steps = 7}, 7).To(50).decisions,
            (Decisions{{14, "permanent interval"}}));
  EXPECT_EQ(Schedule({.last_step = 100, .exit_after = absl::Seconds(6)}).To(50).decisions,
            (Decisions{{6, "permanent duration"}}));
}

TEST(SaveScheduleTest, AProgramThatEndsSavesBefore) {
  const auto fail = [](State& state) { state.program_ends = state.step >= 5; };
  EXPECT_EQ(Schedule({.last_step = 100}).To(50, fail).decisions,
            (Decisions{{5, "permanent program"}}));
}

TEST(SaveScheduleTest, ASignalSavesAndEnds) {
  const auto signal = [](State& state) { state.stop_signal = state.step >= 5 ? 15 : 0; };
  EXPECT_EQ(Schedule({.last_step = 100}).To(50, signal).decisions,
            (Decisions{{5, "permanent signal"}}));
  EXPECT_EQ(Schedule({.rolling_interval_steps = 5, .last_step = 100}).To(50, signal).decisions,
            (Decisions{{5, "permanent signal"}}));
  EXPECT_EQ(Schedule({.last_step = 100, .saves_at_signals = false}).To(50, signal).decisions,
            (Decisions{{5, "nothing signal"}}));
  EXPECT_EQ(Schedule({.interval_steps = 5, .last_step = 100, .saves_at_signals = false})
                .To(50, signal)
                .decisions,
            (Decisions{{5, "permanent signal"}}));
  EXPECT_EQ(Schedule({.last_step = 5}).To(50, signal).decisions,
            (Decisions{{5, "permanent last"}}));
}

TEST(SaveScheduleTest, StopFilePathSavesAtItsStepAndEnds) {
  EXPECT_EQ(Schedule({.last_step = 100}).To(50, StopFile(5, 1)).decisions,
            (Decisions{{5, "permanent stop file"}}));
  EXPECT_EQ(Schedule({.last_step = 100}).To(50, StopFile(0, 3)).decisions, (Decisions{}));
  // Where it coincides with a rolling checkpoint, a permanent one is saved.
  EXPECT_EQ(
      Schedule({.rolling_interval_steps = 5, .last_step = 100}).To(50, StopFile(5, 1)).decisions,
      (Decisions{{5, "permanent stop file"}}));
}

TEST(SaveScheduleTest, ANegativeStopStepSavesAndContinues) {
  EXPECT_EQ(Schedule({.last_step = 12}).To(50, StopFile(-5, 1)).decisions,
            (Decisions{{5, "permanent"}, {12, "permanent last"}}));
  for (const int64_t version : {1, 2}) {
    EXPECT_EQ(Schedule({.last_step = 12})
                  .To(50, StopFile(std::numeric_limits<int64_t>::min(), version))
                  .decisions,
              (Decisions{{12, "permanent last"}}))
        << version;
  }
}

TEST(SaveScheduleTest, AStopStepThatHasPassedActsAtTheNextStepOnce) {
  EXPECT_EQ(Schedule({.last_step = 100}).To(8).To(50, StopFile(5, 2)).decisions,
            (Decisions{{9, "permanent stop file"}}));
  EXPECT_EQ(Schedule({.last_step = 100}).To(8).To(50, StopFile(-5, 2)).decisions,
            (Decisions{{9, "permanent"}}));
  // The same value, written again.
  EXPECT_EQ(
      Schedule({.last_step = 100}).To(8).To(12, StopFile(-5, 2)).To(50, StopFile(-5, 3)).decisions,
      (Decisions{{9, "permanent"}, {13, "permanent"}}));
  // Withdrawn in time.
  EXPECT_EQ(Schedule({.last_step = 100}).To(8, StopFile(20, 2)).To(50, StopFile(0, 3)).decisions,
            (Decisions{}));
}

TEST(SaveScheduleTest, AStaleStopFileDoesNotStopAResumedRunAgain) {
  for (const int64_t value : {5, -5, 3}) {
    EXPECT_EQ(Schedule({.last_step = 100}, 5).To(50, StopFile(value, 1)).decisions, (Decisions{}));
  }
  // One that is still ahead does, as does a value that was written later.
  EXPECT_EQ(Schedule({.last_step = 100}, 5).To(50, StopFile(9, 1)).decisions,
            (Decisions{{9, "permanent stop file"}}));
  EXPECT_EQ(Schedule({.last_step = 100}, 5).To(50, StopFile(3, 2)).decisions,
            (Decisions{{6, "permanent stop file"}}));
}

TEST(SaveScheduleTest, CheckpointsThatAreDueWaitForAHealthyStep) {
  const auto ill_until = [](int64_t step) {
    return [step](State& state) { state.healthy = state.step > step; };
  };
  EXPECT_EQ(Schedule({.interval_steps = 4, .last_step = 100}).To(7, ill_until(5)).decisions,
            (Decisions{{6, "permanent"}}));
  EXPECT_EQ(Schedule({.rolling_interval_steps = 4, .last_step = 100}).To(7, ill_until(5)).decisions,
            (Decisions{{6, "rolling"}}));
  EXPECT_EQ(Schedule({.interval_steps = 6, .rolling_interval_steps = 2, .last_step = 100})
                .To(9, ill_until(8))
                .decisions,
            (Decisions{{9, "permanent"}}));
  // The end of a run does not wait, and neither does a stop file.
  EXPECT_EQ(Schedule({.interval_steps = 2, .last_step = 8}).To(9, ill_until(50)).decisions,
            (Decisions{{8, "permanent last"}}));
  const auto ill_with_request = [](State& state) {
    state.healthy = false;
    state.request = {.step = -3, .version = 2};
  };
  EXPECT_EQ(Schedule({.interval_steps = 2, .last_step = 100}).To(9, ill_with_request).decisions,
            (Decisions{{3, "permanent"}}));
}

TEST(SaveScheduleTest, TroubleEndsARunThatDoesNotEndAnyway) {
  SaveSchedule schedule({.last_step = 3});
  const auto trouble = [&](int64_t step, SaveTrouble found) {
    KnownFacts facts;
    facts.step = step;
    facts.trouble = found;
    return schedule.AfterStep(facts).trouble;
  };
  EXPECT_EQ(trouble(1, SaveTrouble::kNone), SaveTrouble::kNone);
  EXPECT_EQ(trouble(2, SaveTrouble::kFailures), SaveTrouble::kFailures);
  EXPECT_EQ(trouble(3, SaveTrouble::kFailures), SaveTrouble::kNone) << "it tries once more";
  EXPECT_EQ(trouble(3, SaveTrouble::kFolderTaken), SaveTrouble::kFolderTaken);
  EXPECT_EQ(trouble(3, SaveTrouble::kLaterSteps), SaveTrouble::kLaterSteps);
}

TEST(SaveScheduleTest, AJobThatDoesNotSaveHasNoTroubleWithSaves) {
  SaveSchedule schedule({.saves = false, .last_step = 3});
  for (const SaveTrouble found : {SaveTrouble::kNoRoom, SaveTrouble::kFailures,
                                  SaveTrouble::kTooLong, SaveTrouble::kLaterSteps}) {
    KnownFacts facts;
    facts.step = 1;
    facts.trouble = found;
    EXPECT_EQ(schedule.AfterStep(facts).trouble, SaveTrouble::kNone);
  }
}

// What ranks with these facts know together.
KnownFacts Combined(const std::vector<KnownFacts>& of_ranks) {
  StepFacts sum;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    sum += Encode(of_ranks[rank], /*is_rank_0=*/rank == 0);
  }
  return Decode(9, sum);
}

TEST(StepFactsTest, WhatOneRankKnowsCountsForAll) {
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<KnownFacts> ranks(3);
    EXPECT_EQ(Combined(ranks).stop_signal, 0);
    EXPECT_TRUE(Combined(ranks).healthy);
    EXPECT_FALSE(Combined(ranks).program_ends);
    ranks[rank].stop_signal = SIGTERM;
    EXPECT_EQ(Combined(ranks).stop_signal, SIGTERM);
    ranks[(rank + 1) % 3].stop_signal = SIGINT;
    EXPECT_EQ(Combined(ranks).stop_signal, SIGINT);
    ranks[rank].healthy = false;
    EXPECT_FALSE(Combined(ranks).healthy);
    ranks[rank].program_ends = true;
    EXPECT_TRUE(Combined(ranks).program_ends);
    ranks[rank].stop_file = StopFileAsks::kSave;
    EXPECT_EQ(Combined(ranks).stop_file, StopFileAsks::kSave);
    ranks[(rank + 2) % 3].stop_file = StopFileAsks::kSaveAndEnd;
    EXPECT_EQ(Combined(ranks).stop_file, StopFileAsks::kSaveAndEnd);
  }
}

TEST(StepFactsTest, TimeAndSavesAreRankZeros) {
  const KnownFacts first = {
      .elapsed = absl::Milliseconds(7), .save_in_flight = true, .trouble = SaveTrouble::kTooLong};
  const KnownFacts other = {.elapsed = absl::Seconds(70), .trouble = SaveTrouble::kNoRoom};
  const KnownFacts all = Combined({first, other, other});
  EXPECT_EQ(all.step, 9);
  EXPECT_EQ(all.elapsed, absl::Milliseconds(7));
  EXPECT_TRUE(all.save_in_flight);
  EXPECT_EQ(all.trouble, SaveTrouble::kTooLong);
  EXPECT_FALSE(Combined({other, first}).save_in_flight);
}

const absl::Status kFailed = absl::PermissionDeniedError("the token has expired");
const absl::Status kSkipped = absl::CancelledError("another one is in flight");

TEST(FailedSavesTest, SoManyInARowAreTooMany) {
  FailedSaves saves({.max_failed_saves = 2});
  saves.Add(kFailed, absl::Seconds(1));
  saves.Add(kSkipped, absl::Seconds(2));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kNone);
  saves.Add(absl::OkStatus(), absl::Seconds(3));
  saves.Add(kFailed, absl::Seconds(4));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kNone);
  saves.Add(kFailed, absl::Seconds(5));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kFailures);
  saves.Add(kSkipped, absl::Seconds(6));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kFailures);
  EXPECT_EQ(saves.last(), kFailed);
}

// What Save() returns where another run has discarded it.
TEST(FailedSavesTest, AnAbortedSaveIsAFailure) {
  FailedSaves saves({.max_failed_saves = 1});
  const absl::Status gone = absl::AbortedError("a file of this save is gone");
  saves.Add(gone, absl::Seconds(1));
  EXPECT_EQ(saves.Judge(absl::Seconds(1)), SaveTrouble::kFailures);
  EXPECT_EQ(saves.last(), gone);
}

TEST(FailedSavesTest, ZeroIsAnyNumber) {
  FailedSaves saves({.max_failed_saves = 0});
  for (int i = 0; i < 1000; ++i) saves.Add(kFailed, absl::Seconds(i));
  EXPECT_EQ(saves.Judge(absl::Hours(9)), SaveTrouble::kNone);
}

TEST(FailedSavesTest, WantOfSpaceIsNoReasonToWait) {
  FailedSaves saves({.max_failed_saves = 0});
  saves.Add(absl::ResourceExhaustedError("no memory now"), absl::Seconds(1));
  EXPECT_EQ(saves.Judge(absl::Seconds(1)), SaveTrouble::kNone);
  saves.Add(NoSpaceError("full"), absl::Seconds(1));
  EXPECT_EQ(saves.Judge(absl::Seconds(1)), SaveTrouble::kNoRoom);
  saves.Add(absl::OkStatus(), absl::Seconds(2));
  EXPECT_EQ(saves.Judge(absl::Seconds(2)), SaveTrouble::kNone);
}

TEST(FailedSavesTest, TheTimeCountsFromTheLastCheckpointOrTheBeginning) {
  FailedSaves saves({.max_failed_saves = 0, .max_without_checkpoint = absl::Minutes(10)});
  EXPECT_EQ(saves.Judge(absl::Minutes(9)), SaveTrouble::kNone);
  EXPECT_EQ(saves.Judge(absl::Minutes(10)), SaveTrouble::kTooLong);
  saves.Add(absl::OkStatus(), absl::Minutes(9));
  saves.Add(kFailed, absl::Minutes(18));
  EXPECT_EQ(saves.Judge(absl::Minutes(18)), SaveTrouble::kNone);
  EXPECT_EQ(saves.Judge(absl::Minutes(19)), SaveTrouble::kTooLong);
}

}  // namespace
}  // namespace tessera::ckpt
