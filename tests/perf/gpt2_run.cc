#include "tests/perf/gpt2_run.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/random/philox.h"
#include "tests/perf/harness.h"
#include "trainer/config/config.h"
#include "trainer/data/token_file.h"
#include "trainer/state/state_chunks.h"

namespace tessera {
namespace {

constexpr int kLayers = 12;
constexpr int64_t kVocabulary = 50257;
constexpr int64_t kTokens = 1 << 20;

int64_t Vocabulary(int layers) { return kVocabulary * layers / kLayers; }

// The values of the tokens do not affect the time.
absl::Status WriteTokens(const std::string& path, int64_t vocabulary) {
  const RandomStream random{.seed = 1, .use = RandomUse::kDataOrder, .stream = 1};
  std::vector<int32_t> tokens(kTokens);
  for (int64_t i = 0; i < kTokens; ++i) {
    tokens[i] = static_cast<int32_t>(RandomWord(random, static_cast<uint64_t>(i)) % vocabulary);
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TokenFileWriter> writer,
                           TokenFileWriter::Create(path, TokenFormat::kGpt2));
  TESSERA_RETURN_IF_ERROR(writer->Append(tokens));
  return writer->Close();
}

absl::StatusOr<TrainConfig> Config(const Gpt2RunOptions& options, const std::string& tokens) {
  const std::string first_layers = absl::StrCat("size: 'gpt2-124m' num_layers: ", options.layers,
                                                " vocab_size: ", Vocabulary(options.layers));
  TESSERA_ASSIGN_OR_RETURN(
      TrainConfig config,
      ParseConfig(absl::StrCat("model { ", options.model.empty() ? first_layers : options.model,
                               " } training { train_iters: 1000 } optimizer { lr: 1e-4 }"),
                  "built in"));
  config.mutable_data()->set_train_data_path(tokens);
  TrainingConfig& training = *config.mutable_training();
  training.set_bf16(options.bf16);
  training.set_micro_batch_size(options.micro_batch);
  training.set_global_batch_size(options.micro_batch * options.micro_batches);
  training.set_seq_length(options.sequence);
  ParallelConfig& parallel = *config.mutable_parallel();
  parallel.set_topology(options.topology);
  if (options.exact_tp_shards > 0) {
    parallel.set_numerics(Numerics::EXACT);
    parallel.set_exact_tp_shards(options.exact_tp_shards);
  }
  return ResolveConfig(config);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gpt2Run>> Gpt2Run::Create(const Gpt2RunOptions& options,
                                                         Communicator* world) {
  std::unique_ptr<Gpt2Run> run(new Gpt2Run);
  TrainConfig config;
  // The files may go when they are open.
  TESSERA_RETURN_IF_ERROR(WithFolder("", [&](const std::string& folder) -> absl::Status {
    const std::string tokens = folder + "/tokens.bin";
    TESSERA_RETURN_IF_ERROR(WriteTokens(tokens, Vocabulary(options.layers)));
    TESSERA_ASSIGN_OR_RETURN(config, Config(options, tokens));
    TESSERA_ASSIGN_OR_RETURN(
        run->data_, TokenDataset::Open(tokens, options.sequence, Vocabulary(options.layers)));
    return absl::OkStatus();
  }));
  run->loader_ = std::make_unique<BatchLoader>(run->data_.get(), 1);
  run->backend_ = MakeCpuBackend(options.threads, options.exact_tp_shards > 0);
  if (options.profile) run->profiler_ = std::make_unique<testing::ProfilingBackend>(*run->backend_);
  run->global_batch_ = config.training().global_batch_size();
  TESSERA_ASSIGN_OR_RETURN(run->mesh_, Mesh::Create(ConfigTopology(config), world));
  TESSERA_ASSIGN_OR_RETURN(run->trainer_,
                           Trainer::Create(config, {.seed = 1}, *run->mesh_,
                                           options.profile ? *run->profiler_ : *run->backend_));
  if (options.initialize) {
    run->trainer_->InitializeWeights(1);
    run->trainer_->ResetOptimizer();
  }
  return run;
}

absl::StatusOr<double> Gpt2Run::Step() {
  const double start = Now();
  TESSERA_RETURN_IF_ERROR(trainer_->Step(*loader_, position_).status());
  const double seconds = Now() - start;
  ++position_.step;
  position_.consumed_samples += global_batch_;
  return seconds;
}

ckpt::StateDict Gpt2Run::State() const {
  std::vector<StateChunk> chunks;
  for (const TrainedChunk& chunk : trainer_->chunks()) {
    chunks.push_back({chunk.parameters, chunk.optimizer});
  }
  ckpt::StateDict state = WeightState(chunks);
  for (ckpt::ShardedTensor& tensor : OptimizerTensors(chunks).tensors) {
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

std::vector<std::span<std::byte>> Gpt2Run::Buffers() const {
  std::vector<std::span<std::byte>> buffers;
  for (const TrainedChunk& chunk : trainer_->chunks()) {
    for (const TensorView& buffer : StateBuffers({chunk.parameters, chunk.optimizer})) {
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
