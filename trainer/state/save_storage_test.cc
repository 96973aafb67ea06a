#include "trainer/state/save_storage.h"

#include <functional>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// A run whose settings never ask for a checkpoint leaves its folder alone; each setting that does
// is enough.
TEST(SaveStorageTest, ARunSavesWhereASettingSaysWhen) {
  TrainConfig never;
  never.mutable_training()->set_train_iters(10);
  never.mutable_checkpoint()->set_save("d");
  never.mutable_checkpoint()->set_save_last_step(false);
  EXPECT_FALSE(Saves(never));
  const std::function<void(TrainConfig&)> settings[] = {
      [](TrainConfig& c) { c.mutable_checkpoint()->set_save_last_step(true); },
      [](TrainConfig& c) { c.mutable_checkpoint()->set_save_interval(5); },
      [](TrainConfig& c) { c.mutable_checkpoint()->set_non_persistent_save_interval(5); },
      [](TrainConfig& c) { c.mutable_checkpoint()->set_save_interval_minutes(5); },
      [](TrainConfig& c) { c.mutable_checkpoint()->set_save_continuously(true); },
      [](TrainConfig& c) { c.mutable_checkpoint()->set_stop_file_path("s"); },
      [](TrainConfig& c) { c.mutable_training()->set_exit_interval(5); },
      [](TrainConfig& c) { c.mutable_training()->set_exit_duration_in_mins(5); },
  };
  for (const auto& set : settings) {
    TrainConfig config = never;
    set(config);
    EXPECT_TRUE(Saves(config)) << config.ShortDebugString();
    config.mutable_checkpoint()->set_enable_save_ckpt(false);
    EXPECT_FALSE(Saves(config));
  }
}

}  // namespace
}  // namespace tessera
