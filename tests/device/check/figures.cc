#include "tests/device/check/figures.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/include/checkpoint.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "tests/support/command.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"

namespace tessera::testing {
namespace {

constexpr int kWarmUpSteps = 2;
// While a save is in flight; more than it can take.
constexpr int kMaxStepsOfASave = 2000;

// Ids of token files are 16 bits here.
constexpr int64_t kMostVocabulary = int64_t{1} << 16;

std::string Gpt2Text(const TimedModel& model) {
  return absl::StrFormat(
      "size: \"gpt2-124m\" num_layers: %d hidden_size: %d ffn_hidden_size: %d "
      "num_attention_heads: %d vocab_size: %d",
      model.layers, model.hidden, 4 * model.hidden, model.heads, model.vocabulary);
}

using AfterStep = std::function<void(const StepResult&)>;

absl::StatusOr<double> TimedStep(const TimedModel& model, TrainingRank& rank,
                                 const AfterStep& after_step) {
  const auto now = [&] { return model.now ? model.now() : absl::ToDoubleSeconds(SteadyNow()); };
  const double start = now();
  TESSERA_ASSIGN_OR_RETURN(const StepResult result, rank.Step());
  const double seconds = now() - start;
  after_step(result);
  return seconds;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

absl::Status MeasureSave(const TimedModel& model, TrainingRank& rank, const AfterStep& after_step,
                         TrainingFigures* figures) {
  const absl::Duration start = SteadyNow();
  TESSERA_RETURN_IF_ERROR(rank.Save());
  figures->blocked_seconds = SecondsSince(start);
  figures->lost_seconds = figures->blocked_seconds;
  for (int step = 0; step < kMaxStepsOfASave && rank.PollSaves(); ++step) {
    TESSERA_ASSIGN_OR_RETURN(const double seconds, TimedStep(model, rank, after_step));
    figures->lost_seconds += seconds - figures->seconds_per_step;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ckpt::SaveReport> reports, rank.FinishSaves());
  for (const ckpt::SaveReport& report : reports) {
    figures->saved_bytes += static_cast<int64_t>(report.bytes_written);
  }
  return absl::OkStatus();
}

absl::Status MeasureRank(const TimedModel& model, const TrainConfig& config, TrainingDevice* device,
                         Communicator& world, const AfterStep& after_step,
                         TrainingFigures* figures) {
  RankDevice rank_device;
  if (device != nullptr) {
    rank_device = {.backend = device->backend.get(),
                   .compute = model.saves ? device->compute.get() : nullptr,
                   .piece_bytes = int64_t{16} << 20};
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> rank,
                           TrainingRank::Create(config, /*seed=*/1, &world, nullptr, rank_device));
  rank->Initialize();
  std::vector<double> seconds;
  for (int64_t step = 0; step < kWarmUpSteps + model.steps; ++step) {
    TESSERA_ASSIGN_OR_RETURN(const double one, TimedStep(model, *rank, after_step));
    if (step >= kWarmUpSteps) seconds.push_back(one);
  }
  const double tokens =
      static_cast<double>(config.training().global_batch_size() * config.training().seq_length());
  figures->seconds_per_step = Median(seconds);
  figures->tokens_per_second = tokens / figures->seconds_per_step;
  figures->flops_per_second = figures->tokens_per_second * rank->trainer().FlopsPerToken();
  return model.saves ? MeasureSave(model, *rank, after_step, figures) : absl::OkStatus();
}

}  // namespace

std::vector<TimedModel> FullModels() {
  return {{.name = "GPT-2 124M",
           .check = "gpt2_124m",
           .layers = 12,
           .hidden = 768,
           .heads = 12,
           .vocabulary = 50257,
           .seq_length = 1024,
           .micro_batch = 64,
           .accumulation = 2,
           .steps = 10,
           .llmc_tokens_per_second = 463000,
           .saves = true},
          {.name = "GPT-2 1558M",
           .check = "gpt2_1558m",
           .layers = 48,
           .hidden = 1600,
           .heads = 25,
           .vocabulary = 50257,
           .seq_length = 1024,
           .micro_batch = 16,
           .accumulation = 2,
           .steps = 5,
           .llmc_tokens_per_second = 47000}};
}

TimedModel SmallModel() {
  return {.name = "a tiny GPT-2",
          .check = "tiny",
          .layers = 1,
          .hidden = 32,
          .heads = 2,
          .vocabulary = 50,
          .seq_length = 16,
          .micro_batch = 2,
          .accumulation = 2,
          .steps = 3,
          .llmc_tokens_per_second = 100,
          .saves = true};
}

absl::StatusOr<TimedModel> ModelOfConfig(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const TrainConfig given, LoadConfig(path));
  TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, ResolveConfig(given));
  if (ConfigTopology(config).tensor > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor_model_parallel_size=", ConfigTopology(config).tensor,
                     ": one GPU cannot run the products of one of several tensor ranks"));
  }
  const bool exact = config.parallel().numerics() == Numerics::EXACT;
  if (exact || config.training().exact_products()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", exact ? "numerics=exact" : "exact_products",
                     ": its products have one algorithm, and a run refuses a table"));
  }
  return TimedModel{.name = path,
                    .vocabulary = config.model().vocab_size(),
                    .seq_length = config.training().seq_length(),
                    .micro_batch = config.training().micro_batch_size(),
                    .accumulation = 2,
                    .steps = 1,
                    .bf16 = config.training().bf16(),
                    .recompute_activations = config.training().recompute_activations(),
                    .text = config.model().ShortDebugString()};
}

absl::StatusOr<TrainingFigures> MeasureTraining(const TimedModel& model, TrainingDevice* device,
                                                const std::filesystem::path& folder,
                                                const AfterStep& after_step) {
  const std::string tokens = folder / "timed_tokens.bin";
  TESSERA_RETURN_IF_ERROR(
      WriteTokens(tokens, std::min(model.vocabulary, kMostVocabulary), 100 * model.seq_length));
  TESSERA_ASSIGN_OR_RETURN(TrainConfig config,
                           MakeConfig({.model = model.text.empty() ? Gpt2Text(model) : model.text,
                                       .tokens = tokens,
                                       .bf16 = model.bf16,
                                       .micro_batch_size = model.micro_batch,
                                       .global_batch_size = model.micro_batch * model.accumulation,
                                       .seq_length = model.seq_length,
                                       .bucket_elements = 40'000'000}));
  config.mutable_training()->set_recompute_activations(model.recompute_activations);
  if (model.saves) {
    const std::filesystem::path saves = folder / "timed_save";
    std::filesystem::remove_all(saves);  // of another model
    config.mutable_checkpoint()->set_save(saves);
    config.mutable_checkpoint()->set_async_save(true);
  }
  TrainingFigures figures;
  ThreadWorld world(1);
  TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& rank) -> absl::Status {
    if (device != nullptr) TESSERA_RETURN_IF_ERROR(device->context->runtime().Select());
    return MeasureRank(model, config, device, rank, after_step, &figures);
  }));
  return figures;
}

absl::StatusOr<double> MeasurePytorch(const TimedModel& model, const std::string& python,
                                      const std::filesystem::path& script,
                                      const std::string& device,
                                      const std::filesystem::path& folder,
                                      const Deadline& deadline) {
  if (python.empty()) return absl::UnavailableError("PyTorch: no python3");
  const auto flag = [](const char* name, int64_t value) {
    return absl::StrCat("--", name, "=", value);
  };
  const std::vector<std::string> command = {python,
                                            script,
                                            "--device=" + device,
                                            flag("layers", model.layers),
                                            flag("hidden", model.hidden),
                                            flag("heads", model.heads),
                                            flag("vocabulary", model.vocabulary),
                                            flag("seq_length", model.seq_length),
                                            flag("micro_batch", model.micro_batch),
                                            flag("accumulation", model.accumulation),
                                            flag("steps", model.steps)};
  const std::optional<Result> result = RunWithin(deadline, command, folder);
  if (!result.has_value()) return absl::DeadlineExceededError(deadline.LeftOut().detail);
  double rate = 0;
  if (result->exit_code == 0 && absl::SimpleAtod(result->out, &rate)) return rate;
  // The last line of an error says what it was.
  return absl::UnavailableError("PyTorch: " +
                                LastLine(result->err.empty() ? "no output" : result->err));
}

CheckOutcome OutcomeOf(const TimedModel& model, const TrainingFigures& figures,
                       double product_rate) {
  const double rate = figures.tokens_per_second;
  const double share = figures.flops_per_second / product_rate;
  CheckOutcome outcome = {CheckOutcome::kPassed,
                          absl::StrFormat("%s, bf16: %.0f tokens/s, %.2f of the rate of products",
                                          model.name, rate, share),
                          {{"tokens_per_second", rate},
                           {"share_of_products", share},
                           {"seconds_per_step", figures.seconds_per_step}}};
  if (model.llmc_tokens_per_second > 0) {
    absl::StrAppendFormat(&outcome.detail,
                          "\nllm.c has published %.0f tokens/s a GPU on H100s: %.2f times that",
                          model.llmc_tokens_per_second, rate / model.llmc_tokens_per_second);
  }
  if (model.saves) {
    absl::StrAppendFormat(&outcome.detail, "\na save of %.2f GB: %.3f s blocked, %.3f s lost",
                          static_cast<double>(figures.saved_bytes) / 1e9, figures.blocked_seconds,
                          figures.lost_seconds);
    outcome.figures.insert({{"saved_bytes", static_cast<double>(figures.saved_bytes)},
                            {"blocked_seconds", figures.blocked_seconds},
                            {"lost_seconds", figures.lost_seconds}});
  }
  return outcome;
}

}  // namespace tessera::testing
