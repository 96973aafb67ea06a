#include "tests/exact/training.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/engine/state_dict.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/layout/copy_box.h"
#include "trainer/comm/threads/thread_world.h"
#include "trainer/config/config.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/dataset.h"
#include "trainer/data/token_file.h"
#include "trainer/kernels/cpu/cpu_backend.h"
#include "trainer/parallel/mesh.h"
#include "trainer/random/philox.h"
#include "trainer/state/state_dict.h"
#include "trainer/step/trainer.h"

namespace tessera::testing {
namespace {

// Puts the tensors of all ranks together, and compares what more than one of them holds.
class StateCollector {
 public:
  absl::Status Add(const ckpt::StateDict& state) {
    const std::lock_guard lock(mutex_);
    for (const ckpt::ShardedTensor& tensor : state.tensors) {
      if (!tensor.alias_of.empty()) continue;
      TESSERA_RETURN_IF_ERROR(AddTensor(tensor));
    }
    return absl::OkStatus();
  }

  std::map<std::string, std::vector<std::byte>> Take() {
    std::map<std::string, std::vector<std::byte>> all;
    for (auto& [name, tensor] : tensors_) all.emplace(name, std::move(tensor.bytes));
    return all;
  }

  // OK when every element of every tensor has been added.
  absl::Status CheckComplete() const {
    for (const auto& [name, tensor] : tensors_) {
      if (std::find(tensor.known.begin(), tensor.known.end(), std::byte{0}) != tensor.known.end()) {
        return absl::InternalError(absl::StrCat(name, " is not complete"));
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Collected {
    std::vector<std::byte> bytes;
    std::vector<std::byte> known;  // 0xff where a rank has given the byte
  };

  absl::Status AddTensor(const ckpt::ShardedTensor& tensor) {
    const size_t element = ckpt::DTypeSize(tensor.dtype);
    const ckpt::Box whole = ckpt::WholeBox(tensor.global_shape);
    Collected& all = tensors_[tensor.name];
    const size_t bytes = ckpt::ElementCount(whole.shape) * element;
    all.bytes.resize(bytes);
    all.known.resize(bytes);
    std::vector<std::byte> mine(bytes), given(bytes);
    const ckpt::BoxView to{mine.data(), whole, {}};
    for (const ckpt::LocalShard& shard : tensor.shards) {
      ckpt::CopyBox(shard.box,
                    {static_cast<const std::byte*>(shard.data), shard.box, shard.strides}, to,
                    element);
      const std::vector<std::byte> ones(ckpt::ElementCount(shard.box.shape) * element,
                                        std::byte{0xff});
      ckpt::CopyBox(shard.box, {ones.data(), shard.box, {}}, {given.data(), whole, {}}, element);
    }
    for (size_t i = 0; i < bytes; ++i) {
      if (given[i] == std::byte{0}) continue;
      if (all.known[i] != std::byte{0} && all.bytes[i] != mine[i]) {
        return absl::InternalError(
            absl::StrCat(tensor.name, ": two ranks disagree at byte ", i, " of ", bytes));
      }
      all.bytes[i] = mine[i];
      all.known[i] = std::byte{0xff};
    }
    return absl::OkStatus();
  }

  std::mutex mutex_;
  std::map<std::string, Collected> tensors_;
};

absl::Status TrainRank(const TrainConfig& config, Communicator& world, TrainedRun& run,
                       StateCollector& collector) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Mesh> mesh,
                           Mesh::Create(ConfigTopology(config), &world));
  const std::unique_ptr<Backend> backend =
      MakeCpuBackend(static_cast<int>(config.training().threads()));
  const uint64_t seed = static_cast<uint64_t>(config.training().seed());
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<TokenDataset> dataset,
      TokenDataset::Open(config.data().train_data_path(), config.training().seq_length(),
                         config.model().vocab_size()));
  const BatchLoader loader(dataset.get(), seed);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                           Trainer::Create(config, {.seed = seed}, *mesh, *backend));
  trainer->InitializeWeights(seed);
  trainer->ResetOptimizer();
  StepPosition position;
  for (; position.step < config.training().train_iters(); ++position.step) {
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, trainer->Step(loader, position));
    position.consumed_samples += config.training().global_batch_size();
    if (world.rank() != 0) continue;
    run.losses.push_back(result.loss);
    run.grad_norms.push_back(result.grad_norm);
  }
  TESSERA_ASSIGN_OR_RETURN(const EvaluationResult evaluation, trainer->Evaluate(loader, 16));
  if (world.rank() == 0) run.evaluation_loss = evaluation.loss;
  std::vector<StateChunk> chunks;
  for (const TrainedChunk& chunk : trainer->chunks()) {
    chunks.push_back({chunk.parameters, chunk.optimizer});
  }
  TESSERA_RETURN_IF_ERROR(collector.Add(WeightState(chunks)));
  TESSERA_RETURN_IF_ERROR(collector.Add(OptimizerTensors(chunks)));
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteTokens(const std::string& path, int64_t vocabulary, int64_t count) {
  const RandomStream stream{.seed = 7, .use = RandomUse::kDataOrder, .stream = 1};
  std::vector<int32_t> tokens{1};
  for (int64_t i = 1; i < count; ++i) {
    const uint32_t word = RandomWord(stream, static_cast<uint64_t>(i));
    tokens.push_back(word % 4 != 0 ? static_cast<int32_t>((tokens.back() * 31 + 17) % vocabulary)
                                   : static_cast<int32_t>((word >> 8) % vocabulary));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TokenFileWriter> writer,
                           TokenFileWriter::Create(path, TokenFormat::kGpt2));
  TESSERA_RETURN_IF_ERROR(writer->Append(tokens));
  return writer->Close();
}

absl::StatusOr<TrainedRun> TrainOnThreads(const TrainConfig& resolved_config) {
  TrainedRun run;
  StateCollector collector;
  ThreadWorld world(ConfigTopology(resolved_config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run(
      [&](Communicator& rank) { return TrainRank(resolved_config, rank, run, collector); }));
  TESSERA_RETURN_IF_ERROR(collector.CheckComplete());
  run.state = collector.Take();
  return run;
}

std::string FirstDifference(const TrainedRun& a, const TrainedRun& b) {
  if (a.losses.size() != b.losses.size()) return "different numbers of steps";
  const auto same = [](double x, double y) { return std::memcmp(&x, &y, sizeof(x)) == 0; };
  for (size_t i = 0; i < a.losses.size(); ++i) {
    if (!same(a.losses[i], b.losses[i])) {
      return absl::StrCat("loss of step ", i + 1, ": ", a.losses[i], " and ", b.losses[i]);
    }
    if (!same(a.grad_norms[i], b.grad_norms[i])) {
      return absl::StrCat("gradient norm of step ", i + 1, ": ", a.grad_norms[i], " and ",
                          b.grad_norms[i]);
    }
  }
  if (!same(a.evaluation_loss, b.evaluation_loss)) {
    return absl::StrCat("evaluation: ", a.evaluation_loss, " and ", b.evaluation_loss);
  }
  if (a.state.size() != b.state.size()) return "different numbers of tensors";
  for (const auto& [name, bytes] : a.state) {
    const auto other = b.state.find(name);
    if (other == b.state.end()) return absl::StrCat(name, " is only in one");
    if (other->second != bytes) return absl::StrCat("contents of ", name);
  }
  return "";
}

double LargestLossDifference(const TrainedRun& a, const TrainedRun& b) {
  double largest = 0;
  for (size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i) {
    largest = std::max(largest, std::abs(a.losses[i] - b.losses[i]) / std::abs(a.losses[i]));
  }
  return largest;
}

}  // namespace tessera::testing
