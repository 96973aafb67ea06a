#include "trainer/step/replay_check.h"

#include <set>
#include <tuple>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ReplayTurnTest, ChecksComeAtTheIntervalOnly) {
  EXPECT_EQ(ReplayTurnAfter(5, 0, 2, 1), std::nullopt);
  EXPECT_EQ(ReplayTurnAfter(5, 3, 2, 1), std::nullopt);
  EXPECT_EQ(ReplayTurnAfter(6, 3, 2, 1), (ReplayTurn{.shift = 1, .micro_batch = 0}));
  // One replica repeats its own micro-batches.
  EXPECT_EQ(ReplayTurnAfter(6, 3, 1, 2), (ReplayTurn{.shift = 0, .micro_batch = 1}));
}

TEST(ReplayTurnTest, EveryPairIsComparedOverEveryMicroBatch) {
  constexpr int64_t kInterval = 7;
  for (int replicas = 1; replicas <= 5; ++replicas) {
    for (int64_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
      const int64_t checks = (replicas > 1 ? replicas - 1 : 1) * micro_batches;
      std::set<std::tuple<int, int, int64_t>> seen;
      for (int64_t check = 1; check <= checks; ++check) {
        const std::optional<ReplayTurn> turn =
            ReplayTurnAfter(check * kInterval, kInterval, replicas, micro_batches);
        ASSERT_TRUE(turn.has_value());
        for (int repeater = 0; repeater < replicas; ++repeater) {
          const int original = (repeater + turn->shift) % replicas;
          EXPECT_EQ(original == repeater, replicas == 1);
          seen.insert({original, repeater, turn->micro_batch});
        }
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(replicas * checks));
    }
  }
}

TEST(JudgeRepetitionsTest, WhoVariesOrIsOutvotedIsWrong) {
  struct Case {
    std::vector<int64_t> original, repeated, original_again, repeated_again, third;
    bool original_is_wrong, repeater_is_wrong;
  };
  const std::vector<Case> cases = {
      {{9}, {1}, {1}, {1}, {}, true, false},   // wrong once
      {{1}, {9}, {1}, {1}, {}, false, true},   //
      {{9}, {1}, {8}, {1}, {1}, true, false},  // varies
      {{1}, {9}, {1}, {8}, {1}, false, true},  //
      {{9}, {1}, {9}, {1}, {}, true, true},    // undecided
      {{9}, {1}, {9}, {1}, {1}, true, false},  // outvoted
      {{1}, {9}, {1}, {9}, {1}, false, true},  //
      {{9}, {1}, {9}, {1}, {8}, true, true},   // three results
      {{9}, {8}, {1}, {1}, {1}, true, true},   // both once
      {{1, 9}, {1, 1}, {1, 9}, {1, 1}, {1, 1}, true, false},
  };
  for (const Case& each : cases) {
    const ReplayVerdict verdict = JudgeRepetitions(
        {each.original, each.repeated, each.original_again, each.repeated_again, each.third});
    EXPECT_EQ(verdict.original_is_wrong, each.original_is_wrong) << verdict.why;
    EXPECT_EQ(verdict.repeater_is_wrong, each.repeater_is_wrong) << verdict.why;
  }
}

TEST(JudgeRepetitionsTest, AReplicaOnItsOwnIsWrongOnceOrVaries) {
  EXPECT_EQ(JudgeOwnRepetitions({{9}, {1}, {1}, {1}, {}}).why,
            "once: of four results, three are equal");
  EXPECT_EQ(JudgeOwnRepetitions({{1}, {9}, {1}, {1}, {}}).why,
            "once: of four results, three are equal");
  EXPECT_EQ(JudgeOwnRepetitions({{9}, {8}, {1}, {1}, {}}).why, "its results vary");
}

}  // namespace
}  // namespace tessera
