#include "trainer/step/trainer.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "compute/parallel/gradient_norm.h"
#include "compute/parallel/micro_batches.h"
#include "compute/parallel/pipeline.h"
#include "compute/parallel/replicas.h"
#include "compute/parallel/tensor_parallel.h"
#include "glog/logging.h"
#include "tensor/memory.h"
#include "trainer/optim/schedule.h"
#include "trainer/step/loss_sum.h"
#include "trainer/step/model_chunk.h"
#include "trainer/step/model_stage.h"
#include "trainer/step/pass_trace.h"
#include "trainer/step/replay_check.h"
#include "trainer/step/sampler.h"

namespace tessera {
namespace {

int Shards(const TrainConfig& config, const Topology& topology) {
  const bool exact = config.parallel().numerics() == Numerics::EXACT;
  return VirtualShards(topology, exact ? static_cast<int>(config.parallel().exact_tp_shards()) : 0);
}

MicroBatchSplit TrainingSplit(const TrainConfig& config, const Topology& topology) {
  return {.zero_stage = topology.zero_stage,
          .data_ranks = topology.data,
          .micro_batches =
              config.training().global_batch_size() / config.training().micro_batch_size()};
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(const TrainConfig& config, const Options& options, Mesh& mesh, Backend& backend)
      : config_(config),
        options_(options),
        mesh_(mesh),
        backend_(backend),
        tensor_parallel_(mesh.tensor(), Shards(config, mesh.topology()),
                         mesh.topology().sequence_parallel),
        split_(TrainingSplit(config, mesh.topology())) {}

  absl::Status Build() {
    for (int chunk = 0; chunk < mesh_.topology().virtual_pipeline; ++chunk) {
      TESSERA_ASSIGN_OR_RETURN(
          ModelChunk built,
          ModelChunk::Create(config_, options_.seed, mesh_, tensor_parallel_, chunk, backend_));
      chunks_.push_back(std::move(built));
    }
    TESSERA_RETURN_IF_ERROR(MakePipeline());
    sampler_.emplace(config_.model(), tensor_parallel_.shards(), mesh_, backend_, chunks_,
                     *pipeline_);
    if (!options_.trains) return absl::OkStatus();
    std::vector<GradientPart> parts;
    for (int chunk = 0; chunk < static_cast<int>(chunks_.size()); ++chunk) {
      TESSERA_RETURN_IF_ERROR(
          chunks_[chunk].PrepareTraining(split_.local(), pipeline_->slots(chunk)));
      chunks_[chunk].AppendGradientParts(&parts);
    }
    TESSERA_ASSIGN_OR_RETURN(norm_, GradientNorm::Create(backend_, std::move(parts),
                                                         {.data = mesh_.host().data,
                                                          .tensor = mesh_.host().tensor,
                                                          .pipeline = mesh_.host().pipeline}));
    return CompareNumerics();
  }

  absl::StatusOr<StepResult> Step(const BatchLoader& data, const StepPosition& position);
  absl::StatusOr<EvaluationResult> Evaluate(const BatchLoader& data, int64_t samples,
                                            const StopEvaluation& stop);

  void set_before_overwrite(BeforeOverwrite before, std::function<bool()> needed) {
    before_overwrite_ = std::move(before);
    overwrite_is_watched_ = std::move(needed);
  }
  void set_before_update(std::function<absl::Status()> check) { before_update_ = std::move(check); }
  std::vector<ModelChunk>& chunks() { return chunks_; }
  Sampler& sampler() { return *sampler_; }
  const TrainConfig& config() const { return config_; }
  // Returns the additional memory for repeating a micro-batch.
  int64_t replay_bytes() const;

 private:
  absl::Status MakePipeline() {
    const TrainingConfig& training = config_.training();
    TESSERA_ASSIGN_OR_RETURN(
        pipeline_, Pipeline::Create(mesh_.pipeline(),
                                    {.chunks = mesh_.topology().virtual_pipeline,
                                     .micro_batches = split_.local(),
                                     .rows = chunks_.front().model().BoundaryRows(
                                         training.micro_batch_size(), training.seq_length()),
                                     .columns = config_.model().hidden_size(),
                                     .dtype = chunks_.front().parameters().values().view().dtype(),
                                     .device = backend_.device()}));
    return absl::OkStatus();
  }

  // Finds out whether the replicas compute the same bits.
  absl::Status CompareNumerics();
  int64_t GlobalTokens() const {
    return config_.training().global_batch_size() * config_.training().seq_length();
  }
  TrainingStage::Step StageOf(const BatchLoader& data, const StepPosition& position) const;
  std::optional<ReplayTurn> ReplayTurnOf(const StepPosition& position) const;
  // Compares replicas. `step`: of the pass that has been traced.
  absl::Status CheckReplay(const ReplayTurn& turn, const TrainingStage::Step& step);
  absl::StatusOr<bool> Update(double grad_norm, double learning_rate);
  // Compares weights after a step.
  absl::Status CompareReplicas(int64_t completed_steps);
  OnDivergence DivergenceAt(int64_t completed_steps);

  const TrainConfig config_;
  const Options options_;
  Mesh& mesh_;
  Backend& backend_;
  const TensorParallel tensor_parallel_;
  const MicroBatchSplit split_;
  std::vector<ModelChunk> chunks_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<GradientNorm> norm_;
  std::function<absl::Status()> before_update_;  // null: no check
  BeforeOverwrite before_overwrite_;
  std::function<bool()> overwrite_is_watched_;  // null: always
  std::optional<Sampler> sampler_;
  bool warned_of_divergence_ = false;
  bool replicas_compute_alike_ = true;
};

absl::StatusOr<StepResult> Trainer::Impl::Step(const BatchLoader& data,
                                               const StepPosition& position) {
  CHECK(options_.trains);
  sampler_->Forget();
  const int64_t tokens = GlobalTokens();
  PassTrace trace(mesh_, backend_);
  TrainingStage::Step step = StageOf(data, position);
  const std::optional<ReplayTurn> turn = ReplayTurnOf(position);
  if (turn.has_value()) {
    step.trace = &trace;
    step.traced = turn->micro_batch;
  }
  TrainingStage stage(chunks_, step);
  TESSERA_ASSIGN_OR_RETURN(const PipelineRun run, pipeline_->Train(stage));
  {
    const TraceSpan span("operation", "gradient reduction");
    for (ModelChunk& chunk : chunks_) TESSERA_RETURN_IF_ERROR(chunk.reducer().Finish());
  }
  const absl::Status replayed = turn.has_value() ? CheckReplay(*turn, step) : absl::OkStatus();
  // What could not be read makes a repetition differ, too; a difference is known to every rank.
  if (before_update_ != nullptr && (replayed.ok() || absl::IsDataLoss(replayed))) {
    TESSERA_RETURN_IF_ERROR(before_update_());
  }
  TESSERA_RETURN_IF_ERROR(replayed);
  StepResult result;
  result.pipeline_wait_share = run.waiting_share();
  {
    const TraceSpan span("operation", "gradient norm");
    TESSERA_ASSIGN_OR_RETURN(result.grad_norm, norm_->Compute(DivergenceAt(position.step + 1)));
  }
  result.learning_rate = LearningRate(config_.optimizer(), position.step);
  TESSERA_ASSIGN_OR_RETURN(result.updated, Update(result.grad_norm, result.learning_rate));
  // The norm has waited for all micro-batches.
  TESSERA_ASSIGN_OR_RETURN(const double loss_sum,
                           SumLosses(stage.Losses(), TrainingOwners(split_), mesh_));
  result.loss = loss_sum / static_cast<double>(tokens);
  TESSERA_RETURN_IF_ERROR(CompareReplicas(position.step + 1));
  TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
  return result;
}

absl::Status Trainer::Impl::CompareNumerics() {
  const ParallelConfig& parallel = config_.parallel();
  Communicator* const group = mesh_.host().data;
  if (parallel.replay_check_interval() == 0 || group == nullptr ||
      parallel.numerics() == Numerics::EXACT) {
    return absl::OkStatus();
  }
  const FixedResults results = ComputeFixedResults(backend_);
  const std::vector<int64_t> mine = {static_cast<int64_t>(results.products_hash),
                                     static_cast<int64_t>(results.loops_hash)};
  std::vector<int64_t> all(mine.size() * group->size());
  TESSERA_RETURN_IF_ERROR(
      group->AllGather(ConstBuffer(mine), all, {}, {.what = "results of fixed examples"}));
  int64_t differ = 0;
  for (size_t i = 0; i < all.size(); ++i) differ |= all[i] ^ mine[i % mine.size()];
  // The ranks of a replica do the same, and so do all replicas.
  if (mesh_.world() != nullptr) {
    differ = differ != 0 ? 1 : 0;
    TESSERA_RETURN_IF_ERROR(mesh_.world()->AllReduce(std::span(&differ, 1), ReduceOp::kMax,
                                                     {.what = "results of fixed examples"}));
  }
  replicas_compute_alike_ = differ == 0;
  return absl::OkStatus();
}

TrainingStage::Step Trainer::Impl::StageOf(const BatchLoader& data,
                                           const StepPosition& position) const {
  return {.data = &data,
          .step = position.step,
          .consumed_samples = position.consumed_samples,
          .split = split_,
          .data_rank = mesh_.coordinate().data,
          .micro_batch_size = config_.training().micro_batch_size(),
          .loss_scale = 1.0 / static_cast<double>(GlobalTokens())};
}

std::optional<ReplayTurn> Trainer::Impl::ReplayTurnOf(const StepPosition& position) const {
  return ReplayTurnAfter(position.step + 1, config_.parallel().replay_check_interval(),
                         replicas_compute_alike_ ? split_.data_ranks : 1,
                         chunks_.front().reducer().accumulates() ? 1 : split_.local());
}

absl::Status Trainer::Impl::CheckReplay(const ReplayTurn& turn, const TrainingStage::Step& step) {
  // Where an operation has failed, its error is returned, not the difference that it leaves.
  TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
  std::vector<int64_t> numbers;
  for (int rank = 0; rank < split_.data_ranks; ++rank) {
    numbers.push_back(GlobalMicroBatch(split_, rank, turn.micro_batch));
  }
  const auto pass = [&](int shift) -> absl::StatusOr<PassTrace> {
    PassTrace trace(mesh_, backend_);
    TrainingStage::Step again = step;
    again.data_rank = (step.data_rank + shift) % split_.data_ranks;
    again.trace = &trace;
    again.replays = true;
    TrainingStage stage(chunks_, again);
    TESSERA_RETURN_IF_ERROR(pipeline_->TrainOne(stage).status());
    TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
    return trace;
  };
  TESSERA_ASSIGN_OR_RETURN(const std::string message,
                           tessera::CheckReplay(turn, *step.trace, numbers, mesh_, pass));
  if (message.empty()) return absl::OkStatus();
  const std::string found = absl::StrCat("step ", step.step + 1, ": ", message);
  if (config_.parallel().replica_divergence() == ReplicaDivergence::STOP) {
    // What is wrong for longer is in the checkpoints since then, too.
    const int64_t before = step.step + 1 - config_.parallel().replay_check_interval();
    return absl::DataLossError(absl::StrCat(
        found,
        ". Nothing of this step was applied: replace that machine, and the same command resumes "
        "from the newest checkpoint (--ckpt-step: from an earlier one; ",
        before > 0 ? absl::StrCat("the check before was at step ", before)
                   : "this check is the first",
        "), or continue with --replica-divergence=warn"));
  }
  if (mesh_.rank() == 0) LOG(ERROR) << found << ". Training continues (--replica-divergence=warn)";
  return absl::OkStatus();
}

int64_t Trainer::Impl::replay_bytes() const {
  int64_t bytes = 0;
  if (!options_.trains || config_.parallel().replay_check_interval() == 0) return bytes;
  for (const ModelChunk& chunk : chunks_) {
    bytes = std::max(bytes, ScratchGradients::MaxBytes(chunk.parameters()));
  }
  return bytes;
}

OnDivergence Trainer::Impl::DivergenceAt(int64_t completed_steps) {
  return [this, completed_steps](const std::string& message, bool is_reporter) -> absl::Status {
    const std::string found = absl::StrCat("step ", completed_steps, ": ", message);
    if (config_.parallel().replica_divergence() == ReplicaDivergence::STOP) {
      return absl::DataLossError(absl::StrCat(
          found,
          ". Replicas have diverged: a processor, its memory or the network is at fault, or "
          "ranks compute differently; resume from an earlier checkpoint, or continue with "
          "--replica-divergence=warn"));
    }
    if (is_reporter && !warned_of_divergence_) {
      LOG(ERROR) << found << ". Replicas have diverged; training continues "
                 << "(--replica-divergence=warn), without further warnings";
    }
    warned_of_divergence_ = true;
    return absl::OkStatus();
  };
}

absl::Status Trainer::Impl::CompareReplicas(int64_t completed_steps) {
  const int64_t interval = config_.parallel().check_weight_hash_across_dp_replicas_interval();
  if (interval == 0 || completed_steps % interval != 0) return absl::OkStatus();
  const TraceSpan span("operation", "comparison of replicas");
  // An operation that has failed on one rank is not a divergence.
  TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
  std::vector<ReplicatedTensor> all, unsharded, tied;
  for (const ModelChunk& chunk : chunks_) {
    for (const Parameter* parameter : chunk.parameters().parameters()) {
      const ReplicatedTensor tensor = {parameter->key, parameter->value};
      all.push_back(tensor);
      if (parameter->shard < 0) unsharded.push_back(tensor);
      if (!parameter->tied_name.empty()) tied.push_back(tensor);
    }
  }
  const OnDivergence on_divergence = DivergenceAt(completed_steps);
  const HostGroups& groups = mesh_.host();
  TESSERA_RETURN_IF_ERROR(CheckReplicas("weight", all, backend_, groups.data, on_divergence));
  TESSERA_RETURN_IF_ERROR(
      CheckReplicas("weight", unsharded, backend_, groups.tensor, on_divergence));
  return CheckReplicas("weight", tied, backend_, groups.tied, on_divergence);
}

// The norm is the same on every rank, and so is every decision based on it.
absl::StatusOr<bool> Trainer::Impl::Update(double grad_norm, double learning_rate) {
  const double scale = ClipCoefficient(grad_norm, config_.optimizer().clip_grad());
  bool updated = true;
  const TraceSpan span("operation", "optimizer");
  const bool watched = overwrite_is_watched_ == nullptr || overwrite_is_watched_();
  const BeforeOverwrite before = watched ? before_overwrite_ : nullptr;
  for (ModelChunk& chunk : chunks_) {
    updated = chunk.optimizer().Step(learning_rate, grad_norm, scale, before);
    if (!updated) continue;
    const TraceSpan gather("operation", "gathering of weights");
    TESSERA_RETURN_IF_ERROR(chunk.reducer().GatherValues(chunk.parameters().values(), before));
  }
  return updated;
}

// In an evaluation that may be stopped, a round has so many micro-batches for each pipeline stage:
// filling the pipeline anew then costs at most an eighth.
constexpr int64_t kEvaluatedPerStage = 8;

absl::StatusOr<EvaluationResult> Trainer::Impl::Evaluate(const BatchLoader& data, int64_t samples,
                                                         const StopEvaluation& stop) {
  const int64_t sequence = config_.training().seq_length();
  samples =
      EvaluatedSamples(samples, config_.training().global_batch_size(), data.order().num_samples());
  // The size also divides fewer samples, so that none of them is left out.
  const int64_t batch = std::gcd(config_.training().micro_batch_size(), samples);
  const int64_t micro_batches = samples / batch;
  const MicroBatchesByRank owners = EvaluationOwners(micro_batches, mesh_.topology().data);
  const std::vector<int64_t>& mine = owners[mesh_.coordinate().data];
  std::vector<double> losses;
  std::optional<EvaluationStage> stage;
  if (!mine.empty()) {
    AllocationScope allocations;
    stage.emplace(chunks_, data, EvaluationStage::BatchShape{batch, sequence}, mine);
    TESSERA_RETURN_IF_ERROR(allocations.End());
  }
  const auto most = static_cast<int64_t>(owners.front().size());
  const int64_t least = mesh_.topology().pipeline * kEvaluatedPerStage;
  const int64_t round = stop == nullptr ? most : std::max(split_.local(), least);
  for (int64_t begin = 0; begin < most; begin += round) {
    if (begin > 0) {
      TESSERA_ASSIGN_OR_RETURN(const bool stops, stop());
      if (stops) return EvaluationResult{.stopped = true};
    }
    const int64_t count = std::min(round, static_cast<int64_t>(mine.size()) - begin);
    if (count <= 0) continue;
    stage->set_first(begin);
    TESSERA_ASSIGN_OR_RETURN(
        const PipelineRun run,
        pipeline_->Forward(*stage, count, chunks_.front().model().BoundaryRows(batch, sequence)));
    losses.insert(losses.end(), run.losses.begin(), run.losses.end());
  }
  TESSERA_ASSIGN_OR_RETURN(const double loss_sum, SumLosses(losses, owners, mesh_));
  TESSERA_RETURN_IF_ERROR(backend_.Synchronize());
  const int64_t tokens = micro_batches * batch * sequence;
  return EvaluationResult{loss_sum / static_cast<double>(tokens), tokens};
}

int64_t EvaluatedSamples(int64_t wanted, int64_t global_batch, int64_t there) {
  const int64_t samples = std::min(wanted, there);
  return samples < global_batch ? samples : samples - samples % global_batch;
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  for (ModelChunk& chunk : impl_->chunks()) {
    chunks_.push_back({&chunk.parameters(), chunk.has_optimizer() ? &chunk.optimizer() : nullptr});
  }
}

Trainer::~Trainer() = default;

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainConfig& config,
                                                         const Options& options, Mesh& mesh,
                                                         Backend& backend) {
  auto impl = std::make_unique<Impl>(config, options, mesh, backend);
  TESSERA_RETURN_IF_ERROR(impl->Build());
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

void Trainer::InitializeWeights(uint64_t seed) {
  for (ModelChunk& chunk : impl_->chunks()) {
    ParameterSet& parameters = chunk.parameters();
    if (chunk.backend().device().type == DeviceType::kCpu) {
      parameters.Initialize(seed);
      continue;
    }
    const TensorView values = parameters.values();
    const Tensor initial(values.dtype(), values.shape());
    parameters.InitializeInto(seed, initial);
    chunk.backend().Upload(initial.view().data(), values);
  }
}

void Trainer::ResetOptimizer() {
  for (const TrainedChunk& chunk : chunks_) {
    if (chunk.optimizer != nullptr) chunk.optimizer->Reset();
  }
}

void Trainer::set_updates(int64_t updates) {
  for (const TrainedChunk& chunk : chunks_) chunk.optimizer->set_updates(updates);
}

int64_t Trainer::updates() const { return chunks_.front().optimizer->updates(); }

int64_t Trainer::skipped_in_a_row() const { return chunks_.front().optimizer->skipped_in_a_row(); }

absl::StatusOr<StepResult> Trainer::Step(const BatchLoader& data, const StepPosition& position) {
  return impl_->Step(data, position);
}

void Trainer::set_before_update(std::function<absl::Status()> check) {
  impl_->set_before_update(std::move(check));
}

void Trainer::set_before_overwrite(BeforeOverwrite before, std::function<bool()> needed) {
  impl_->set_before_overwrite(std::move(before), std::move(needed));
}

absl::StatusOr<EvaluationResult> Trainer::Evaluate(const BatchLoader& data, int64_t samples,
                                                   const StopEvaluation& stop) {
  return impl_->Evaluate(data, samples, stop);
}

absl::StatusOr<float> Trainer::LogProbability(std::span<const float> logits, int32_t token) {
  return impl_->sampler().LogProbability(logits, token);
}

absl::StatusOr<std::vector<float>> Trainer::NextLogits(std::span<const int32_t> context) {
  return impl_->sampler().NextLogits(context);
}

double Trainer::FlopsPerToken() const {
  return impl_->chunks().front().model().FlopsPerToken(impl_->config().training().seq_length());
}

int64_t Trainer::EvaluationBytes() const {
  const TrainingConfig& training = impl_->config().training();
  int64_t bytes = 0;
  for (const ModelChunk& chunk : impl_->chunks()) {
    bytes += chunk.model().ActivationBytes(training.micro_batch_size(), training.seq_length(),
                                           ActivationUse::kForwardOnly);
  }
  return bytes;
}

Trainer::Memory Trainer::memory() const {
  Memory sum;
  for (const ModelChunk& chunk : impl_->chunks()) {
    sum.weights += chunk.parameters().values().view().bytes();
    sum.activations += chunk.activation_bytes();
    if (!chunk.has_optimizer()) continue;
    sum.gradients += chunk.reducer().memory_bytes();
    sum.optimizer += chunk.optimizer().state_bytes();
  }
  sum.gradients += impl_->replay_bytes();
  return sum;
}

}  // namespace tessera
