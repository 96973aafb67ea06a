#include "tests/device/check/training_checks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "tensor/tensor.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"
#include "trainer/optim/adamw.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/saved_run.h"
#include "trainer/step/trainer.h"

namespace tessera::testing {
namespace {

constexpr uint64_t kSeed = 5;

// The models by the names that reports use.
std::vector<std::pair<std::string, std::string>> Models(const TrainingSizes& sizes) {
  return {{"GPT-2", sizes.gpt2}, {"Llama-3", sizes.llama3}};
}

absl::StatusOr<TrainConfig> Config(const TrainingSizes& sizes, const std::string& folder,
                                   const std::string& model, bool bf16, int64_t steps) {
  const std::string tokens = folder + "/tokens.bin";
  TESSERA_RETURN_IF_ERROR(WriteTokens(tokens, sizes.vocabulary, 100 * sizes.seq_length));
  TESSERA_ASSIGN_OR_RETURN(TrainConfig config,
                           MakeConfig({.model = model,
                                       .tokens = tokens,
                                       .bf16 = bf16,
                                       .micro_batch_size = sizes.batch / 2,
                                       .global_batch_size = sizes.batch,
                                       .seq_length = sizes.seq_length,
                                       .steps = steps,
                                       .decay_steps = std::max<int64_t>(steps, 10),
                                       .bucket_elements = int64_t{1} << 20}));
  config.mutable_training()->set_threads(sizes.threads);
  return config;
}

struct Run {
  std::vector<double> losses, grad_norms;  // by step, from the first that this run has taken
  int64_t first_step = 0;
  std::vector<std::vector<float>> moments;  // of each weight, after the last step

  bool operator==(const Run&) const = default;
};

// A device of a run, and the backend with which it computes; null for the CPU.
struct Place {
  Place(TrainingDevice* on) : device(on), backend(on == nullptr ? nullptr : on->backend.get()) {}
  Place(TrainingDevice& on, Backend& by) : device(&on), backend(&by) {}

  TrainingDevice* device;
  Backend* backend;
};

std::vector<std::vector<float>> Moments(const Trainer& trainer, Backend& backend) {
  std::vector<std::vector<float>> moments;
  for (const TrainedChunk& chunk : trainer.chunks()) {
    const AdamW& optimizer = *chunk.optimizer;
    for (int i = 0; i < static_cast<int>(optimizer.parameters().size()); ++i) {
      const TensorView moment = optimizer.State(i).exp_avg;
      std::vector<float>& values = moments.emplace_back(static_cast<size_t>(moment.elements()));
      if (!values.empty()) backend.Download(moment, values.data());
    }
  }
  return moments;
}

// Trains to the config's last step, from its checkpoint if there is one; saves after step
// `saved_step`.
absl::Status TrainRank(const TrainConfig& config, int64_t saved_step, const Place& place,
                       Communicator& world, Run* run) {
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(1);
  RankDevice rank_device;
  if (place.device != nullptr) {
    rank_device = {.backend = place.backend, .compute = place.device->compute.get()};
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> rank,
                           TrainingRank::Create(config, kSeed, &world, nullptr, rank_device));
  const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&world);
  TESSERA_ASSIGN_OR_RETURN(const std::optional<SavedRun> saved,
                           FindSavedRun(config, {.ranks = *group}, [](const std::string&) {}));
  if (saved.has_value()) {
    TESSERA_RETURN_IF_ERROR(rank->Load(*saved).status());
  } else {
    rank->Initialize();
  }
  run->first_step = rank->progress().step;
  while (rank->progress().step < config.training().train_iters()) {
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, rank->Step());
    run->losses.push_back(result.loss);
    run->grad_norms.push_back(result.grad_norm);
    if (rank->progress().step == saved_step) TESSERA_RETURN_IF_ERROR(rank->Save());
  }
  // A run that has only loaded saves what it has loaded.
  if (run->losses.empty() && saved_step > 0) TESSERA_RETURN_IF_ERROR(rank->Save());
  TESSERA_RETURN_IF_ERROR(rank->FinishSaves().status());
  run->moments = Moments(rank->trainer(), place.backend != nullptr ? *place.backend : *cpu);
  return place.backend != nullptr ? place.backend->Synchronize() : absl::OkStatus();
}

absl::StatusOr<Run> Train(const TrainConfig& config, const Place& place, int64_t saved_step = 0) {
  Run run;
  ThreadWorld world(1);
  TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& rank) -> absl::Status {
    if (place.device != nullptr) TESSERA_RETURN_IF_ERROR(place.device->context->runtime().Select());
    return TrainRank(config, saved_step, place, rank, &run);
  }));
  return run;
}

double RelativeDifference(double a, double b) {
  // NaN is as wrong as can be.
  const double difference = std::abs(a - b) / std::abs(b);
  return std::isnan(difference) ? HUGE_VAL : difference;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() && !a.empty() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, RelativeDifference(a[i], b[i]));
  }
  return largest;
}

// Relative to the largest element of each tensor.
double LargestMomentDifference(const Run& a, const Run& b) {
  double largest = a.moments.size() == b.moments.size() && !a.moments.empty() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < std::min(a.moments.size(), b.moments.size()); ++i) {
    double difference = 0, magnitude = 0;
    for (size_t k = 0; k < b.moments[i].size(); ++k) {
      const double one = std::abs(double{a.moments[i][k]} - b.moments[i][k]);
      difference = std::isnan(one) ? HUGE_VAL : std::max(difference, one);
      magnitude = std::max(magnitude, std::abs(double{b.moments[i][k]}));
    }
    if (difference > 0) largest = std::max(largest, difference / magnitude);
  }
  return largest;
}

const char* Name(bool bf16) { return bf16 ? "bf16" : "fp32"; }

}  // namespace

TrainingSizes SmallTraining() {
  return {.gpt2 =
              "size: \"gpt2-tiny\" num_layers: 1 hidden_size: 16 ffn_hidden_size: 64 "
              "num_attention_heads: 2 vocab_size: 48 hidden_dropout: 0.1",
          .llama3 =
              "size: \"llama3-tiny\" num_layers: 1 hidden_size: 16 ffn_hidden_size: 24 "
              "num_attention_heads: 4 num_query_groups: 2 vocab_size: 48",
          .vocabulary = 48,
          .seq_length = 8,
          .batch = 2,
          .curve_steps = 3,
          .same_bits_steps = 1};
}

TrainingSizes FullTraining(bool quick) {
  return {.gpt2 =
              "size: \"gpt2-tiny\" num_layers: 4 hidden_size: 256 ffn_hidden_size: 1024 "
              "num_attention_heads: 4 vocab_size: 1000 hidden_dropout: 0.1 "
              "attention_dropout: 0.1 max_position_embeddings: 128",
          .llama3 =
              "size: \"llama3-tiny\" num_layers: 4 hidden_size: 256 ffn_hidden_size: 688 "
              "num_attention_heads: 4 num_query_groups: 2 vocab_size: 1000 "
              "max_position_embeddings: 128",
          .vocabulary = 1000,
          .seq_length = 128,
          .batch = 8,
          .curve_steps = quick ? 20 : 100,
          .same_bits_steps = 10,
          .threads = 8};
}

absl::Status CheckSizes(const TrainingSizes& sizes, const std::string& folder) {
  TrainConfig config;
  for (const auto& [name, model] : Models(sizes)) {
    TESSERA_ASSIGN_OR_RETURN(config,
                             Config(sizes, folder, model, /*bf16=*/true, sizes.curve_steps));
  }
  const ModelConfig& llama3 = config.model();
  const int64_t head = llama3.hidden_size() / llama3.num_attention_heads();
  if ((head == 64 || head == 128) && llama3.attention_dropout() == 0) return absl::OkStatus();
  return absl::InternalError("Llama-3's attention cannot be computed by warpgroups");
}

absl::StatusOr<std::string> TrainingChecks::Gradients() const {
  std::string found;
  for (const auto& [name, model] : Models(sizes)) {
    for (const bool bf16 : {false, true}) {
      TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, Config(sizes, folder, model, bf16, 1));
      TESSERA_ASSIGN_OR_RETURN(const Run cpu, Train(config, nullptr));
      TESSERA_ASSIGN_OR_RETURN(const Run gpu, Train(config, &device));
      const double loss = LargestDifference(gpu.losses, cpu.losses);
      const double norm = LargestDifference(gpu.grad_norms, cpu.grad_norms);
      const double gradients = LargestMomentDifference(gpu, cpu);
      const std::string text = absl::StrFormat("%s %s: loss %.1e, norm %.1e, gradients %.1e", name,
                                               Name(bf16), loss, norm, gradients);
      // Operands in bf16 have 8 bits, and rounding differs along the way.
      if (loss > (bf16 ? 2e-3 : 1e-5) || norm > (bf16 ? 2e-2 : 5e-5) ||
          gradients > (bf16 ? 6e-2 : 1e-4)) {
        return absl::InternalError("differ from the CPU's by too much: " + text);
      }
      absl::StrAppend(&found, found.empty() ? "" : "; ", text);
    }
  }
  return "relative differences from the CPU: " + found;
}

absl::StatusOr<std::string> TrainingChecks::Curves() const {
  std::string found;
  for (const auto& [name, model] : Models(sizes)) {
    for (const bool bf16 : {false, true}) {
      TESSERA_ASSIGN_OR_RETURN(const TrainConfig config,
                               Config(sizes, folder, model, bf16, sizes.curve_steps));
      TESSERA_ASSIGN_OR_RETURN(const Run cpu, Train(config, nullptr));
      TESSERA_ASSIGN_OR_RETURN(const Run gpu, Train(config, &device));
      const double difference = LargestDifference(gpu.losses, cpu.losses);
      const std::string text =
          absl::StrFormat("%s %s: %.4f to %.4f, apart by %.1e", name, Name(bf16),
                          gpu.losses.front(), gpu.losses.back(), difference);
      // 100 steps on two instruction sets of the CPU are apart by 8e-3 in bf16, by 6e-7 in fp32.
      if (difference > (bf16 ? 2e-2 : 1e-4)) {
        return absl::InternalError("losses differ from the CPU's by too much: " + text);
      }
      // A few steps of small batches may rise.
      if (sizes.curve_steps >= 20 && gpu.losses.back() >= gpu.losses.front()) {
        return absl::InternalError("losses do not fall: " + text);
      }
      absl::StrAppend(&found, found.empty() ? "" : "; ", text);
    }
  }
  return absl::StrCat(sizes.curve_steps, " steps, ", found);
}

absl::StatusOr<std::string> TrainingChecks::Resume() const {
  constexpr int64_t kSaved = 2, kLast = 4;
  for (const bool bf16 : {false, true}) {
    TESSERA_ASSIGN_OR_RETURN(TrainConfig config, Config(sizes, folder, sizes.llama3, bf16, kLast));
    const std::string from_device = absl::StrCat(folder, "/device_", Name(bf16));
    const std::string from_cpu = absl::StrCat(folder, "/cpu_", Name(bf16));
    const std::string back = absl::StrCat(folder, "/back_", Name(bf16));
    config.mutable_checkpoint()->set_save(from_device);
    config.mutable_checkpoint()->set_async_save(true);
    TESSERA_ASSIGN_OR_RETURN(const Run gpu, Train(config, &device, kSaved));
    config.mutable_checkpoint()->set_load(from_device);
    config.mutable_checkpoint()->set_save(from_cpu);
    config.mutable_checkpoint()->set_async_save(false);
    TESSERA_ASSIGN_OR_RETURN(const Run cpu, Train(config, nullptr, kLast));
    if (cpu.first_step != kSaved) return absl::InternalError("the CPU has not resumed");
    const std::vector<double> later(gpu.losses.begin() + kSaved, gpu.losses.end());
    const double difference = LargestDifference(cpu.losses, later);
    if (difference > (bf16 ? 2e-3 : 1e-5)) {
      return absl::InternalError(absl::StrFormat(
          "%s: losses after resuming on the CPU differ by %.1e", Name(bf16), difference));
    }
    config.mutable_checkpoint()->set_load(from_cpu);
    config.mutable_checkpoint()->set_save(back);
    TESSERA_ASSIGN_OR_RETURN(const Run again, Train(config, &device, kLast));
    if (!again.losses.empty()) return absl::InternalError("the device has not resumed");
    TESSERA_ASSIGN_OR_RETURN(const Digests given, ReadDigests(from_cpu));
    TESSERA_ASSIGN_OR_RETURN(const Digests taken, ReadDigests(back));
    if (given != taken) {
      return absl::InternalError(absl::StrCat(
          Name(bf16), ": the state that the device loads is not what the CPU has saved"));
    }
  }
  return "device to CPU and back, fp32 and bf16: the CPU continues with the device's losses, and "
         "the device loads the CPU's bits";
}

absl::StatusOr<std::string> TrainingChecks::SameBits() const {
  const int64_t steps = sizes.same_bits_steps;
  for (const auto& [name, model] : Models(sizes)) {
    for (const bool bf16 : {false, true}) {
      TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, Config(sizes, folder, model, bf16, steps));
      TESSERA_ASSIGN_OR_RETURN(const Run first, Train(config, &device));
      TESSERA_ASSIGN_OR_RETURN(const Run second, Train(config, &device));
      if (first.losses != second.losses || first.grad_norms != second.grad_norms ||
          first.moments != second.moments || first.losses.empty()) {
        return absl::InternalError(
            absl::StrCat(name, " in ", Name(bf16), ": two runs from the same start differ"));
      }
    }
  }
  return absl::StrCat(steps, " steps of GPT-2 and Llama-3, fp32 and bf16: losses, norms and ",
                      "moments are equal");
}

absl::StatusOr<std::string> TrainingChecks::Exact() const {
  const std::unique_ptr<Backend> backend = device.make_exact_backend();
  const FixedResults results = ComputeFixedResults(*backend, /*bf16=*/false);
  TESSERA_RETURN_IF_ERROR(backend->Synchronize());
  if (results != kExactResults) {
    return absl::InternalError(absl::StrFormat(
        "the fixed examples have the digests %016x and %016x, on processors %016x and %016x",
        results.products_hash, results.loops_hash, kExactResults.products_hash,
        kExactResults.loops_hash));
  }
  const int64_t steps = sizes.exact_steps;
  for (const auto& [name, model] : Models(sizes)) {
    TESSERA_ASSIGN_OR_RETURN(TrainConfig config,
                             Config(sizes, folder, model, /*bf16=*/false, steps));
    config.mutable_parallel()->set_numerics(Numerics::EXACT);
    config.mutable_parallel()->set_exact_tp_shards(2);
    TESSERA_ASSIGN_OR_RETURN(const Run cpu, Train(config, nullptr));
    TESSERA_ASSIGN_OR_RETURN(const Run gpu, Train(config, Place(device, *backend)));
    if (cpu.losses.empty() || gpu != cpu) {
      return absl::InternalError(
          absl::StrCat(name, ": ", steps, " steps do not have the bits of ", "processors"));
    }
  }
  return absl::StrCat("fixed examples, and ", steps,
                      " steps of GPT-2 and Llama-3 in fp32: losses, ",
                      "norms and moments have the bits of processors");
}

}  // namespace tessera::testing
