#include "tests/support/training.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/manifest.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/random/philox.h"
#include "trainer/config/config.h"
#include "trainer/data/token_file.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/state_chunks.h"

namespace tessera::testing {
namespace {

constexpr char kRest[] = R"pb(
  training { threads: 1 }
  optimizer { lr: 3e-3 lr_warmup_iters: 3 weight_decay: 0.1 clip_grad: 0.5 }
)pb";

// Records in a log which samples are read.
class LoggingLoader final : public BatchLoader {
 public:
  LoggingLoader(const TokenDataset* dataset, uint64_t seed, const Coordinate& rank, SampleLog& log)
      : BatchLoader(dataset, seed), length_(dataset->sequence_length()), rank_(rank), log_(log) {}

  absl::Status FillBatch(int64_t consumed_samples, int64_t first, int64_t count,
                         std::span<int32_t> ids, std::span<int32_t> targets) const override {
    TESSERA_RETURN_IF_ERROR(BatchLoader::FillBatch(consumed_samples, first, count, ids, targets));
    const auto sample = [this](std::span<int32_t> all, int64_t i) {
      const std::span<int32_t> one = all.subspan(i * length_, length_);
      return std::vector<int32_t>(one.begin(), one.end());
    };
    for (int64_t i = 0; i < count; ++i) {
      log_.Add({rank_, consumed_samples + first + i, sample(ids, i), sample(targets, i)});
    }
    return absl::OkStatus();
  }

 private:
  const int64_t length_;
  const Coordinate rank_;
  SampleLog& log_;
};

bool Saves(const TrainConfig& config, int64_t step) {
  return !config.checkpoint().save().empty() && step % config.checkpoint().save_interval() == 0;
}

int64_t EvaluatedSamples(const TrainConfig& config) {
  return std::min<int64_t>(config.training().global_batch_size(), 16);
}

// The seed of a resumed run's random numbers: the saved one, not its own.
absl::StatusOr<uint64_t> Seed(const TrainConfig& config, const std::optional<SavedRun>& saved) {
  if (!saved.has_value()) return static_cast<uint64_t>(config.training().seed());
  TESSERA_ASSIGN_OR_RETURN(const Progress progress, ReadProgress(saved->manifest()));
  return progress.seed;
}

absl::Status TrainRank(const TrainConfig& config, Communicator& world, SampleLog* log,
                       TrainedRun& run, StateCollector& collector) {
  const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&world);
  TESSERA_ASSIGN_OR_RETURN(const std::optional<SavedRun> saved,
                           FindSavedRun(config, {.ranks = *group}, [](const std::string&) {}));
  TESSERA_ASSIGN_OR_RETURN(const uint64_t seed, Seed(config, saved));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> rank,
                           TrainingRank::Create(config, seed, &world, log));
  if (saved.has_value()) {
    TESSERA_RETURN_IF_ERROR(rank->Load(*saved).status());
  } else {
    rank->Initialize();
  }
  const bool first = world.rank() == 0;
  if (first) run.first_step = rank->progress().step;
  while (rank->progress().step < config.training().train_iters()) {
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, rank->Step());
    if (first) run.losses.push_back(result.loss);
    if (first) run.grad_norms.push_back(result.grad_norm);
    if (Saves(config, rank->progress().step)) TESSERA_RETURN_IF_ERROR(rank->Save());
  }
  TESSERA_RETURN_IF_ERROR(rank->FinishSaves().status());
  TESSERA_ASSIGN_OR_RETURN(const EvaluationResult evaluation,
                           rank->trainer().Evaluate(rank->data(), EvaluatedSamples(config)));
  if (first) run.evaluation_loss = evaluation.loss;
  if (first) run.progress = rank->progress();
  return collector.Add(rank->trainer().chunks());
}

bool Same(double x, double y) { return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y); }

// The range of steps [first, end) that both runs have taken.
std::pair<int64_t, int64_t> CommonSteps(const TrainedRun& a, const TrainedRun& b) {
  const auto end = [](const TrainedRun& run) {
    return run.first_step + static_cast<int64_t>(run.losses.size());
  };
  return {std::max(a.first_step, b.first_step), std::min(end(a), end(b))};
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

absl::StatusOr<TrainConfig> MakeConfig(const RunSettings& settings) {
  TESSERA_ASSIGN_OR_RETURN(
      TrainConfig config,
      ParseConfig(absl::StrCat("model {", settings.model, "}", kRest), "the test's"));
  TrainingConfig& training = *config.mutable_training();
  training.set_bf16(settings.bf16);
  training.set_micro_batch_size(settings.micro_batch_size);
  training.set_global_batch_size(settings.global_batch_size);
  training.set_seq_length(settings.seq_length);
  training.set_train_iters(settings.steps);
  training.set_seed(settings.seed);
  config.mutable_optimizer()->set_lr_decay_iters(settings.decay_steps);
  ParallelConfig& parallel = *config.mutable_parallel();
  parallel.set_topology(settings.topology);
  parallel.set_ddp_bucket_size(settings.bucket_elements);
  if (settings.exact_shards > 0) {
    parallel.set_numerics(Numerics::EXACT);
    parallel.set_exact_tp_shards(settings.exact_shards);
  }
  config.mutable_data()->set_train_data_path(settings.tokens);
  return ResolveConfig(config);
}

void SampleLog::Add(Read read) {
  const MutexLock lock(&mutex_);
  reads_.push_back(std::move(read));
}

std::vector<SampleLog::Read> SampleLog::Take() {
  const MutexLock lock(&mutex_);
  return std::exchange(reads_, {});
}

absl::StatusOr<std::unique_ptr<TrainingRank>> TrainingRank::Create(const TrainConfig& config,
                                                                   uint64_t seed,
                                                                   Communicator* world,
                                                                   SampleLog* log,
                                                                   const RankDevice& device) {
  std::unique_ptr<TrainingRank> rank(new TrainingRank);
  rank->config_ = config;
  rank->device_ = device;
  TESSERA_ASSIGN_OR_RETURN(rank->mesh_, Mesh::Create(ConfigTopology(config), world, device.world));
  rank->group_ = MakeProcessGroup(world);
  if (device.backend == nullptr) {
    rank->cpu_ = MakeCpuBackend(static_cast<int>(config.training().threads()),
                                config.parallel().numerics() == Numerics::EXACT);
  }
  Backend& backend = device.backend == nullptr ? *rank->cpu_ : *device.backend;
  TESSERA_ASSIGN_OR_RETURN(rank->dataset_, TokenDataset::Open(config.data().train_data_path(),
                                                              config.training().seq_length(),
                                                              config.model().vocab_size()));
  rank->loader_ = log == nullptr ? std::make_unique<BatchLoader>(rank->dataset_.get(), seed)
                                 : std::make_unique<LoggingLoader>(rank->dataset_.get(), seed,
                                                                   rank->mesh_->coordinate(), *log);
  rank->progress_.seed = rank->progress_.data_seed = seed;
  TESSERA_ASSIGN_OR_RETURN(rank->trainer_,
                           Trainer::Create(config, {.seed = seed}, *rank->mesh_, backend));
  if (device.compute != nullptr) {
    std::vector<TensorView> buffers;
    for (const StateChunk& chunk : rank->state()) {
      for (const TensorView& buffer : StateBuffers(chunk)) buffers.push_back(buffer);
    }
    TESSERA_ASSIGN_OR_RETURN(rank->mirror_,
                             DeviceMirror::Create(*device.compute, buffers,
                                                  {.piece_bytes = device.piece_bytes,
                                                   .bytes_per_second = device.bytes_per_second}));
  }
  TESSERA_RETURN_IF_ERROR(rank->OpenSaver(world));
  return rank;
}

void TrainingRank::Initialize() {
  trainer_->InitializeWeights(progress_.seed);
  trainer_->ResetOptimizer();
}

absl::StatusOr<LoadNotes> TrainingRank::Load(const SavedRun& saved) {
  TESSERA_RETURN_IF_ERROR(CheckSameModel(saved.manifest(), config_.model()));
  TESSERA_RETURN_IF_ERROR(CheckSameData(saved.manifest(), data_identity()));
  TESSERA_ASSIGN_OR_RETURN(LoadNotes notes, LoadTensors(saved, state(), LoadPolicy(), group()));
  TESSERA_ASSIGN_OR_RETURN(progress_, ReadProgress(saved.manifest()));
  trainer_->set_updates(progress_.updates);
  return notes;
}

absl::StatusOr<StepResult> TrainingRank::Step() {
  TESSERA_ASSIGN_OR_RETURN(
      const StepResult result,
      trainer_->Step(*loader_,
                     {.step = progress_.step, .consumed_samples = progress_.consumed_samples}));
  ++progress_.step;
  progress_.updates = trainer_->updates();
  progress_.consumed_samples += config_.training().global_batch_size();
  progress_.last_loss = result.loss;
  progress_.last_learning_rate = result.learning_rate;
  progress_.best_training_loss = std::min(progress_.best_training_loss, result.loss);
  return result;
}

absl::Status TrainingRank::Save() {
  return saver_->Save(DescribeRun(config_, config_.model(), progress_, data_identity(), {}),
                      ckpt::SaveKind::kPermanent);
}

bool TrainingRank::PollSaves() {
  if (saver_ == nullptr) return false;
  for (ckpt::SaveOutcome& outcome : saver_->Poll()) outcomes_.push_back(std::move(outcome));
  return saver_->save_in_flight();
}

absl::StatusOr<std::vector<ckpt::SaveReport>> TrainingRank::FinishSaves() {
  std::vector<ckpt::SaveReport> reports;
  if (saver_ == nullptr) return reports;
  for (ckpt::SaveOutcome& outcome : saver_->Finish()) outcomes_.push_back(std::move(outcome));
  for (const ckpt::SaveOutcome& outcome : std::exchange(outcomes_, {})) {
    TESSERA_RETURN_IF_ERROR(outcome.report.status());
    reports.push_back(*outcome.report);
  }
  return reports;
}

absl::Status TrainingRank::OpenSaver(Communicator* world) {
  if (config_.checkpoint().save().empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(saver_, RunSaver::Open(config_, world));
  TESSERA_RETURN_IF_ERROR(saver_->Begin(state()));
  if (!config_.checkpoint().async_save()) return absl::OkStatus();
  trainer_->set_before_overwrite(
      [saver = saver_.get()](const TensorView& memory) { saver->BeforeOverwrite(memory); },
      [saver = saver_.get()] { return saver->reads_state(); });
  return absl::OkStatus();
}

std::vector<StateChunk> TrainingRank::state() const {
  std::vector<StateChunk> chunks;
  for (const TrainedChunk& chunk : trainer_->chunks()) {
    chunks.push_back({.parameters = chunk.parameters,
                      .optimizer = chunk.optimizer,
                      .mirror = mirror_.get(),
                      .backend = device_.backend});
  }
  return chunks;
}

DataIdentity TrainingRank::data_identity() const {
  return {.fingerprint = dataset_->fingerprint(),
          .sequence_length = dataset_->sequence_length(),
          .samples_per_epoch = dataset_->num_samples()};
}

absl::StatusOr<TrainedRun> TrainOnThreads(const TrainConfig& resolved_config, SampleLog* log) {
  TrainedRun run;
  StateCollector collector;
  ThreadWorld world(ConfigTopology(resolved_config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run(
      [&](Communicator& rank) { return TrainRank(resolved_config, rank, log, run, collector); }));
  TESSERA_RETURN_IF_ERROR(collector.CheckComplete());
  run.state = collector.Take();
  return run;
}

absl::StatusOr<Digests> ReadDigests(const std::string& folder, std::optional<int64_t> step) {
  TESSERA_ASSIGN_OR_RETURN(const auto checkpoints, ckpt::CheckpointFolder::Open(folder));
  TESSERA_ASSIGN_OR_RETURN(const auto checkpoint,
                           step.has_value() ? checkpoints.At(*step) : checkpoints.Latest());
  Digests digests;
  for (const ckpt::LogicalTensor& tensor : checkpoint.manifest().tensors()) {
    if (!tensor.alias_of().empty()) continue;
    digests[tensor.name()] = {tensor.digest().lo(), tensor.digest().hi()};
  }
  if (digests.empty()) return absl::NotFoundError("no tensors in " + folder);
  return digests;
}

std::string FirstLossDifference(const TrainedRun& a, const TrainedRun& b) {
  const auto [first, end] = CommonSteps(a, b);
  if (first >= end) return "no step in common";
  for (int64_t step = first; step < end; ++step) {
    const int64_t i = step - a.first_step, j = step - b.first_step;
    if (!Same(a.losses[i], b.losses[j])) {
      return absl::StrCat("loss of step ", step + 1, ": ", a.losses[i], " and ", b.losses[j]);
    }
    if (!Same(a.grad_norms[i], b.grad_norms[j])) {
      return absl::StrCat("gradient norm of step ", step + 1, ": ", a.grad_norms[i], " and ",
                          b.grad_norms[j]);
    }
  }
  return "";
}

std::string FirstDifference(const TrainedRun& a, const TrainedRun& b) {
  if (std::string losses = FirstLossDifference(a, b); !losses.empty()) return losses;
  if (std::string progress = FirstProgressDifference(a.progress, b.progress); !progress.empty())
    return progress;
  if (!Same(a.evaluation_loss, b.evaluation_loss)) {
    return absl::StrCat("evaluation: ", a.evaluation_loss, " and ", b.evaluation_loss);
  }
  return FirstStateDifference(a.state, b.state);
}

double LargestLossDifference(const TrainedRun& a, const TrainedRun& b) {
  const auto [first, end] = CommonSteps(a, b);
  double largest = 0;
  for (int64_t step = first; step < end; ++step) {
    const double expected = a.losses[step - a.first_step];
    largest =
        std::max(largest, std::abs(expected - b.losses[step - b.first_step]) / std::abs(expected));
  }
  return largest;
}

std::string FirstProgressDifference(const Progress& a, const Progress& b) {
  const auto differ = [](const char* name, auto x, auto y) {
    return absl::StrCat(name, ": ", x, " and ", y);
  };
  if (a.step != b.step) return differ("step", a.step, b.step);
  if (a.updates != b.updates) return differ("updates", a.updates, b.updates);
  if (a.consumed_samples != b.consumed_samples) {
    return differ("consumed_samples", a.consumed_samples, b.consumed_samples);
  }
  if (!Same(a.last_loss, b.last_loss)) return differ("last_loss", a.last_loss, b.last_loss);
  if (!Same(a.last_learning_rate, b.last_learning_rate)) {
    return differ("last_learning_rate", a.last_learning_rate, b.last_learning_rate);
  }
  if (!Same(a.best_loss, b.best_loss)) return differ("best_loss", a.best_loss, b.best_loss);
  if (!Same(a.best_training_loss, b.best_training_loss)) {
    return differ("best_training_loss", a.best_training_loss, b.best_training_loss);
  }
  if (a.seed != b.seed) return differ("seed", a.seed, b.seed);
  if (a.data_seed != b.data_seed) return differ("data_seed", a.data_seed, b.data_seed);
  return "";
}

}  // namespace tessera::testing
