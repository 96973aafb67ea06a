#include "convert/infinitrain/trainer_state.h"

#include <optional>

#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

constexpr char kText[] = R"({
  "n_embd": 16,
  "vocab_size": 61
  "global_step": 3,
  "last_lr": 0.001,
  "twice": 1,
  "twice": 2,
  "huge": 99999999999999999999,
  "optimizer": "adam",
  "pp_size": 1
})";

TEST(TrainerStateTest, FindsNumbersWhereACommaIsMissing) {
  EXPECT_EQ(FindInfiniTrainNumber(kText, "n_embd"), 16);
  EXPECT_EQ(FindInfiniTrainNumber(kText, "vocab_size"), 61);
  EXPECT_EQ(FindInfiniTrainNumber(kText, "global_step"), 3);
  EXPECT_EQ(FindInfiniTrainNumber(kText, "pp_size"), 1);
  EXPECT_EQ(FindInfiniTrainNumber("{\"pp_size\" : -1}", "pp_size"), -1);
}

TEST(TrainerStateTest, OtherValuesAreUnknown) {
  for (const char* key : {"step", "last_lr", "twice", "huge", "optimizer", ""}) {
    EXPECT_EQ(FindInfiniTrainNumber(kText, key), std::nullopt) << key;
  }
  for (const char* text :
       {"", "\"step\"", "\"step\":", "\"step\": ,", "\"step\" 3", "\"step\": 3 4"}) {
    EXPECT_EQ(FindInfiniTrainNumber(text, "step"), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tessera::ckpt::convert
