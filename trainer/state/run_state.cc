#include "trainer/state/run_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/version.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "compute/parallel/micro_batches.h"
#include "google/protobuf/text_format.h"
#include "layout/topology.h"
#include "models/model_config.h"
#include "trainer/config/config.h"
#include "trainer/state/ledger.h"
#include "trainer/state/saved_settings.h"

namespace tessera {
namespace {

constexpr char kPhilox[] = "philox4x32-10";
constexpr char kUpdates[] = "optimizer_updates";
constexpr char kEarlierUpdates[] = "earlier_updates";
constexpr char kBestTrainingLoss[] = "best_training_loss";
constexpr char kMicroBatch[] = "micro_batch_size";
constexpr char kLedger[] = "ledger";
constexpr char kPartialResumes[] = "partial_resumes";
// Later steps add to a saved position, which must not overflow.
constexpr int64_t kMaxSamples = int64_t{1} << 62;

// Returns whether micro-batches of a saved size have units of so many samples.
bool HasUnit(const std::string& micro_batch_size, int64_t unit) {
  int64_t size = 0;
  return absl::SimpleAtoi(micro_batch_size, &size) && size > 0 && CanonicalUnit(size) == unit;
}

// Returns whether settings on which fingerprints depend differ: fingerprints of one place do, too.
bool HasOtherArithmetic(const ckpt::Manifest& manifest, const TrainConfig& config) {
  return std::ranges::any_of(ChangedSettings(manifest, config, /*seed=*/0),
                             [](const ChangedSetting& change) {
                               return change.name == "bf16" || change.name == "numerics";
                             });
}

}  // namespace

ckpt::Manifest DescribeRun(const TrainConfig& config, const ModelConfig& model,
                           const Progress& progress, const DataIdentity& data,
                           const NumericsFingerprint& numerics) {
  ckpt::Manifest manifest;
  manifest.mutable_producer()->set_program("tessera train");
  manifest.mutable_producer()->set_version(kVersion);
  manifest.mutable_producer()->set_created_unix_ms(absl::ToUnixMillis(absl::Now()));
  *manifest.mutable_topology() = ckpt::ToProto(ConfigTopology(config));

  ckpt::TrainerState& state = *manifest.mutable_trainer();
  state.set_step(progress.step);
  state.set_best_loss(progress.best_loss);
  state.set_last_loss(progress.last_loss);
  (*state.mutable_extra())[kUpdates] = absl::StrCat(progress.updates);
  if (progress.earlier_updates > 0) {
    (*state.mutable_extra())[kEarlierUpdates] = absl::StrCat(progress.earlier_updates);
  }
  if (!std::isinf(progress.best_training_loss)) {
    (*state.mutable_extra())[kBestTrainingLoss] =
        absl::StrFormat("%.17g", progress.best_training_loss);
  }
  (*state.mutable_extra())[kMicroBatch] = absl::StrCat(config.training().micro_batch_size());
  if (!progress.ledger.empty()) (*state.mutable_extra())[kLedger] = progress.ledger;
  if (!progress.partial_resumes.empty()) {
    (*state.mutable_extra())[kPartialResumes] = progress.partial_resumes;
  }
  const std::string& evaluated =
      data.validation.empty() ? progress.best_loss_data : data.validation;
  if (!evaluated.empty()) (*state.mutable_extra())[ckpt::kValidationData] = evaluated;
  SaveSettings(config, progress.seed, state);
  *state.mutable_numerics() = ToProto(numerics);
  ckpt::DataState& position = *state.mutable_data();
  position.set_consumed_samples(progress.consumed_samples);
  if (data.samples_per_epoch > 0) {
    position.set_epoch(progress.consumed_samples / data.samples_per_epoch);
  }
  position.set_fingerprint(data.fingerprint.sampled);
  position.set_complete_fingerprint(data.fingerprint.complete);
  position.set_sequence_length(data.sequence_length);
  position.set_shuffle_seed(progress.data_seed);
  position.set_samples_per_epoch(data.samples_per_epoch);
  ckpt::ScheduleState& schedule = *state.mutable_schedule();
  schedule.set_name(
      absl::AsciiStrToLower(LrDecayStyle::Value_Name(config.optimizer().lr_decay_style())));
  schedule.set_learning_rate(progress.last_learning_rate);
  schedule.set_warmup_steps(config.optimizer().lr_warmup_iters());
  schedule.set_decay_steps(config.optimizer().lr_decay_iters());
  if (!config.checkpoint().no_save_rng()) {
    state.mutable_rng()->set_algorithm(kPhilox);
    state.mutable_rng()->set_seed(progress.seed);
  }

  *manifest.mutable_model() = ToProto(model);
  return manifest;
}

ckpt::ModelProto ToProto(const ModelConfig& model) {
  ckpt::ModelProto described;
  described.set_architecture(ArchitectureName(model));
  google::protobuf::TextFormat::PrintToString(model, described.mutable_text());
  return described;
}

ckpt::NumericsState ToProto(const NumericsFingerprint& numerics) {
  ckpt::NumericsState state;
  state.set_instruction_set(numerics.instruction_set);
  state.set_library(numerics.library);
  state.set_products_hash(numerics.products_hash);
  state.set_loops_hash(numerics.loops_hash);
  return state;
}

NumericsFingerprint FromProto(const ckpt::NumericsState& state) {
  return {.instruction_set = state.instruction_set(),
          .library = state.library(),
          .products_hash = state.products_hash(),
          .loops_hash = state.loops_hash()};
}

absl::StatusOr<Progress> ReadProgress(const ckpt::Manifest& manifest) {
  const ckpt::TrainerState& state = manifest.trainer();
  Progress progress;
  progress.step = state.step();
  progress.updates = state.step();
  progress.consumed_samples = state.data().consumed_samples();
  progress.last_loss = state.last_loss();
  progress.last_learning_rate = state.schedule().learning_rate();
  // 0: the program that saved it knows none.
  progress.best_loss =
      state.best_loss() != 0 ? state.best_loss() : std::numeric_limits<double>::infinity();
  progress.seed = state.rng().seed();
  progress.data_seed = state.data().shuffle_seed();
  for (const auto& [name, number] : {std::pair(kUpdates, &progress.updates),
                                     std::pair(kEarlierUpdates, &progress.earlier_updates)}) {
    const auto entry = state.extra().find(name);
    if (entry != state.extra().end() && !absl::SimpleAtoi(entry->second, number)) {
      return absl::DataLossError(
          absl::StrCat("manifest: trainer.extra.", name, " is not a number: ", entry->second));
    }
  }
  const auto best = state.extra().find(kBestTrainingLoss);
  if (best != state.extra().end() &&
      (!absl::SimpleAtod(best->second, &progress.best_training_loss) ||
       std::isnan(progress.best_training_loss))) {
    return absl::DataLossError(
        absl::StrCat("manifest: trainer.extra.best_training_loss is no loss: ", best->second));
  }
  if (const auto data = state.extra().find(ckpt::kValidationData); data != state.extra().end()) {
    progress.best_loss_data = data->second;
  }
  if (const auto resumes = state.extra().find(kPartialResumes); resumes != state.extra().end()) {
    progress.partial_resumes = resumes->second;
  }
  if (const auto ledger = state.extra().find(kLedger); ledger != state.extra().end()) {
    progress.ledger = ledger->second;
    if (!IsLedgerDigest(progress.ledger)) {
      return absl::DataLossError("manifest: trainer.extra.ledger is not a digest");
    }
  }
  if (progress.step < 0 || progress.consumed_samples < 0 ||
      progress.consumed_samples > kMaxSamples || progress.updates < 0 ||
      progress.earlier_updates < 0 || progress.earlier_updates > progress.updates ||
      progress.updates - progress.earlier_updates > progress.step ||
      std::isnan(progress.best_loss)) {
    return absl::DataLossError(absl::StrCat(
        "manifest: impossible trainer state: step ", progress.step, ", updates ", progress.updates,
        ", consumed_samples ", progress.consumed_samples, ", best_loss ", progress.best_loss));
  }
  return progress;
}

std::string SavedTopology(const ckpt::Manifest& manifest) {
  return manifest.has_topology() ? ToString(ckpt::FromProto(manifest.topology())) : "";
}

std::vector<std::string> DescribeChanges(const ckpt::Manifest& manifest, const TrainConfig& config,
                                         const NumericsFingerprint& numerics) {
  std::vector<std::string> sentences;
  const auto& extra = manifest.trainer().extra();
  if (!extra.contains(kNumerics)) return sentences;  // saved by another program
  if (const auto micro_batch = extra.find(kMicroBatch);
      config.parallel().numerics() == Numerics::EXACT && micro_batch != extra.end() &&
      !HasUnit(micro_batch->second, CanonicalUnit(config.training().micro_batch_size()))) {
    sentences.push_back(absl::StrCat("saved with micro_batch_size ", micro_batch->second,
                                     ", going on with ", config.training().micro_batch_size(),
                                     ": the bits of later losses differ from the saved run's"));
  }
  if (const NumericsFingerprint before = FromProto(manifest.trainer().numerics());
      manifest.trainer().has_numerics() && before != numerics &&
      !HasOtherArithmetic(manifest, config)) {
    sentences.push_back(
        absl::StrCat(config.parallel().numerics() == Numerics::EXACT ? "WARNING: " : "",
                     "saved where numbers are computed otherwise (",
                     absl::StrJoin(NumericsDifferences(before, numerics, "here"), "; "),
                     "): the bits of later losses differ from the saved run's"));
  }
  if (const absl::Status same = CheckSameTopology(manifest, config); !same.ok()) {
    sentences.emplace_back(same.message());
  }
  return sentences;
}

// Older checkpoints do not record sequence parallelism, which splits no weights: it counts as off.
absl::Status CheckSameTopology(const ckpt::Manifest& manifest, const TrainConfig& config) {
  if (!manifest.has_topology()) return absl::OkStatus();
  Topology before = ckpt::FromProto(manifest.topology());
  const Topology now = ConfigTopology(config);
  if (before == now) return absl::OkStatus();
  const std::string was = ToString(before);
  before.sequence_parallel = now.sequence_parallel;
  return absl::FailedPreconditionError(
      absl::StrCat(before == now ? "changed" : "resharded", " from ", was, " to ", ToString(now)));
}

absl::Status CheckSameRandomNumbers(const ckpt::Manifest& manifest) {
  const ckpt::TrainerState& state = manifest.trainer();
  if (!state.has_rng() || state.rng().algorithm() == kPhilox) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint's random numbers are of \"", state.rng().algorithm(),
                   "\", ours of \"", kPhilox, "\"; --no-load-rng starts with fresh ones"));
}

absl::Status CheckSameModel(const ckpt::Manifest& manifest, const ModelConfig& model) {
  ModelConfig saved;
  bool has_unknown = false;
  if (!ParseSettings(manifest.model().text(), &saved, &has_unknown) || !saved.has_num_layers()) {
    return absl::OkStatus();
  }
  std::vector<std::string> differences;
  if (has_unknown) differences.emplace_back("it has settings that this version does not know");
  for (const FieldDifference& field : ModelDifferences(saved, model)) {
    differences.push_back(
        absl::StrCat(field.name, ": saved ", field.found, ", wanted ", field.wanted));
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint is of another model: ", absl::StrJoin(differences, "; ")));
}

bool KnowsItsData(const ckpt::Manifest& manifest) {
  const ckpt::DataState& saved = manifest.trainer().data();
  return saved.fingerprint() != 0 || saved.complete_fingerprint() != 0;
}

absl::Status CheckSameData(const ckpt::Manifest& manifest, const DataIdentity& data) {
  const ckpt::DataState& saved = manifest.trainer().data();
  std::vector<std::string> differences;
  const DataFingerprint before{.sampled = saved.fingerprint(),
                               .complete = saved.complete_fingerprint()};
  if (KnowsItsData(manifest) && !MayBeSameData(before, data.fingerprint)) {
    const bool complete = before.complete != 0 && data.fingerprint.complete != 0;
    differences.push_back(absl::StrCat(
        "token files: saved fingerprint ", absl::Hex(complete ? before.complete : before.sampled),
        ", found ", absl::Hex(complete ? data.fingerprint.complete : data.fingerprint.sampled)));
  }
  if (saved.sequence_length() != 0 && saved.sequence_length() != data.sequence_length) {
    differences.push_back(absl::StrCat("seq_length: saved ", saved.sequence_length(), ", wanted ",
                                       data.sequence_length));
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint's data position (", saved.consumed_samples(),
                   " samples) does not fit the data: ", absl::StrJoin(differences, "; "),
                   "; --load-content=model,optimizer,scheduler,rng begins with the new data, "
                   "--finetune takes the weights alone and starts at step 0"));
}

}  // namespace tessera
