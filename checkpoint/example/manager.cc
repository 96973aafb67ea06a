// A job that can be killed and started again: it saves every tenth step, keeps the newest three
// checkpoints, and continues from the newest valid one.
//   manager FOLDER LAST_STEP

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"

namespace ckpt = tessera::ckpt;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  ckpt::CheckpointManagerOptions options;
  options.schedule = {.interval_steps = 10, .last_step = std::atoll(argv[2])};
  options.keep = {.newest = 3};
  // value() ends the program with the error where there is one.
  const auto manager = ckpt::CheckpointManager::Open(argv[1], options).value();

  std::vector<float> numbers(8);
  ckpt::ShardedTensor tensor = {.name = "numbers", .global_shape = {8}};
  tensor.shards = {ckpt::Shard::Of(numbers, {.global_offset = {0}, .shape = {8}})};
  const ckpt::StateDict state = {{tensor}};

  const ckpt::ResumeResult resumed = manager->TryResume(state).value();
  for (const ckpt::SkippedCheckpoint& skipped : resumed.skipped) {
    std::cout << ckpt::Describe(manager->storage(), skipped) << "\n";
  }
  int64_t step = resumed.checkpoint.has_value() ? resumed.checkpoint->step() : 0;
  std::cout << "begins after step " << step << "\n";
  for (bool ends = step >= options.schedule.last_step; !ends;) {
    for (float& number : numbers) number += 1;  // the training
    ends = manager->TrySave({.step = ++step}, state).value().end != ckpt::EndReason::kNone;
  }
  std::cout << "ends after step " << step << " with " << numbers.front() << "\n";
}
