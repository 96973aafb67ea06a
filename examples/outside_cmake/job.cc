// A job that can be killed and started again with another number of shards: it saves every tenth
// step, keeps the newest two checkpoints, and continues from the newest valid one.
//   job FOLDER LAST_STEP SHARDS

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"

namespace ckpt = tessera::ckpt;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  ckpt::CheckpointManagerOptions options;
  options.schedule = {.interval_steps = 10, .last_step = std::atoll(argv[2])};
  options.keep = {.newest = 2};
  // value() ends the program with the error if there is one.
  const auto manager = ckpt::CheckpointManager::Open(argv[1], options).value();

  // 12 numbers in equal shards.
  constexpr int64_t kNumbers = 12;
  const int64_t shards = std::atoll(argv[3]), size = kNumbers / shards;
  std::vector<std::vector<float>> memory(shards, std::vector<float>(size));
  ckpt::ShardedTensor tensor = {.name = "numbers", .global_shape = {kNumbers}};
  for (int64_t i = 0; i < shards; ++i) {
    tensor.shards.push_back(
        ckpt::Shard::Of(memory[i], {.global_offset = {i * size}, .shape = {size}}));
  }
  const ckpt::StateDict state = {{tensor}};

  const ckpt::ResumeResult resumed = manager->TryResume(state).value();
  int64_t step = resumed.checkpoint.has_value() ? resumed.checkpoint->step() : 0;
  std::cout << "begins after step " << step << "\n";
  for (bool ends = step >= options.schedule.last_step; !ends;) {
    for (std::vector<float>& shard : memory) {
      for (float& number : shard) number += 1;  // the training
    }
    ends = manager->TrySave({.step = ++step}, state).value().end != ckpt::EndReason::kNone;
  }
  std::cout << "ends after step " << step << " with " << memory.back().back() << "\n";
}
