#include "tests/perf/gpt2_run.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "tests/perf/harness.h"
#include "trainer/state/state_chunks.h"

namespace tessera {
namespace {

constexpr int kLayers = 12;
constexpr int64_t kVocabulary = 50257;
constexpr int64_t kTokens = 1 << 20;
constexpr int64_t kSteps = 1000;  // more than any program takes

// Returns the settings of a run. The values of the tokens do not affect the time.
absl::StatusOr<TrainConfig> Config(const Gpt2RunOptions& options, const std::string& tokens) {
  const int64_t vocabulary = kVocabulary * options.layers / kLayers;
  TESSERA_RETURN_IF_ERROR(testing::WriteTokens(tokens, vocabulary, kTokens));
  const std::string first_layers =
      absl::StrCat("size: 'gpt2-124m' num_layers: ", options.layers, " vocab_size: ", vocabulary);
  return testing::MakeConfig({.model = options.model.empty() ? first_layers : options.model,
                              .tokens = tokens,
                              .topology = options.topology,
                              .exact_shards = options.exact_tp_shards,
                              .bf16 = options.bf16,
                              .micro_batch_size = options.micro_batch,
                              .global_batch_size = options.micro_batch * options.micro_batches,
                              .seq_length = options.sequence,
                              .steps = kSteps,
                              .decay_steps = kSteps,
                              .bucket_elements = ParallelConfig().ddp_bucket_size()});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gpt2Run>> Gpt2Run::Create(const Gpt2RunOptions& options,
                                                         Communicator* world) {
  std::unique_ptr<Gpt2Run> run(new Gpt2Run);
  run->backend_ = MakeCpuBackend(options.threads, options.exact_tp_shards > 0);
  Backend* backend = run->backend_.get();
  if (options.profile) {
    run->profiler_ = std::make_unique<testing::ProfilingBackend>(*backend);
    backend = run->profiler_.get();
  }
  // The files may go when they are open.
  TESSERA_RETURN_IF_ERROR(WithFolder("", [&](const std::string& folder) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, Config(options, folder + "/tokens.bin"));
    TESSERA_ASSIGN_OR_RETURN(run->rank_,
                             testing::TrainingRank::Create(config, /*seed=*/1, world,
                                                           /*log=*/nullptr, {.backend = backend}));
    return absl::OkStatus();
  }));
  if (options.initialize) run->rank_->Initialize();
  return run;
}

absl::StatusOr<double> Gpt2Run::Step() {
  const double start = Now();
  TESSERA_RETURN_IF_ERROR(rank_->Step().status());
  return Now() - start;
}

ckpt::StateDict Gpt2Run::State() const {
  const std::vector<StateChunk> chunks = rank_->state();
  ckpt::StateDict state = WeightState(chunks);
  for (ckpt::ShardedTensor& tensor : OptimizerTensors(chunks).tensors) {
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

std::vector<std::span<std::byte>> Gpt2Run::Buffers() const {
  std::vector<std::span<std::byte>> buffers;
  for (const StateChunk& chunk : rank_->state()) {
    for (const TensorView& buffer : StateBuffers(chunk)) {
      buffers.emplace_back(static_cast<std::byte*>(buffer.data()), buffer.bytes());
    }
  }
  return buffers;
}

absl::StatusOr<Gpt2State> Gpt2State::Create() {
  Gpt2State state;
  TESSERA_ASSIGN_OR_RETURN(state.run, Gpt2Run::Create({.bf16 = true}, nullptr));
  state.dict = state.run->State();
  uint64_t random = 1;
  for (const ckpt::ShardedTensor& tensor : state.dict.tensors) {
    const uint64_t element_bytes = ElementSize(tensor.dtype);
    for (const ckpt::Shard& shard : tensor.shards) {
      const uint64_t bytes = ElementCount(shard.box.shape) * element_bytes;
      state.bytes += bytes;
      if (!shard.strides.empty()) continue;  // a part of a fused tensor, which has initial values
      for (uint64_t at = 0; at + sizeof(random) <= bytes; at += sizeof(random)) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        std::memcpy(static_cast<std::byte*>(shard.data) + at, &random, sizeof(random));
      }
    }
  }
  return state;
}

}  // namespace tessera
