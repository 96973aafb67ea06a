#include "trainer/app/session.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/base/units.h"
#include "models/factory.h"
#include "models/llmc.h"
#include "models/model_config.h"
#include "trainer/kernels/cpu/cpu_backend.h"
#include "trainer/tensor/memory.h"

namespace tessera {
namespace {

using Notes = std::function<void(const std::string&)>;

int ThreadCount(const TrainConfig& config) {
  if (config.training().threads() > 0) return static_cast<int>(config.training().threads());
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

absl::StatusOr<DataSource> OpenData(const std::string& pattern, const TrainConfig& config,
                                    uint64_t seed) {
  DataSource source;
  TESSERA_ASSIGN_OR_RETURN(
      source.dataset,
      TokenDataset::Open(pattern, config.training().seq_length(), config.model().vocab_size()));
  source.loader = std::make_unique<BatchLoader>(source.dataset.get(), seed);
  return source;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const TrainConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                           LoadTokenizer(config.data().tokenizer_model()));
  if (tokenizer->vocab_size() != config.model().vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer_model: ", config.data().tokenizer_model(), " has ", tokenizer->vocab_size(),
        " tokens, the model's vocab_size is ", config.model().vocab_size()));
  }
  return tokenizer;
}

std::vector<FlatParameter> FlatParameters(const ParameterSet& parameters) {
  std::vector<FlatParameter> flat;
  for (const Parameter* parameter : parameters.parameters()) {
    flat.push_back({.flat_offset = parameter->flat_offset,
                    .elements = ElementCount(parameter->shape),
                    .weight_decay = parameter->weight_decay});
  }
  return flat;
}

// Names the checkpoint that an error is about.
absl::Status In(const SavedRun& saved, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(saved.Describe(), ": ", status.message()));
}

// Where the run goes on: what the checkpoint says, as far as the flags let it.
absl::StatusOr<Progress> StartingPoint(const TrainConfig& config,
                                       const std::optional<SavedRun>& saved) {
  const uint64_t seed = static_cast<uint64_t>(config.training().seed());
  Progress progress;
  if (saved.has_value() && !config.checkpoint().finetune()) {
    const absl::StatusOr<Progress> saved_progress = ReadProgress(saved->manifest);
    TESSERA_RETURN_IF_ERROR(In(*saved, saved_progress.status()));
    progress = *saved_progress;
    if (config.checkpoint().no_load_optim()) progress.updates = 0;
    if (!config.checkpoint().no_load_rng() && saved->manifest.trainer().has_rng()) {
      TESSERA_RETURN_IF_ERROR(In(*saved, CheckSameRandomNumbers(saved->manifest)));
      return progress;
    }
  }
  progress.seed = seed;
  // An epoch under way goes on in the order that it began with.
  if (progress.consumed_samples == 0) progress.data_seed = seed;
  return progress;
}

absl::Status LoadCheckpoint(const SavedRun& saved, Session& session, const Notes& notes) {
  const CheckpointConfig& options = session.config.checkpoint();
  TESSERA_RETURN_IF_ERROR(In(saved, CheckSameModel(saved.manifest, session.config.model())));
  const bool with_optimizer =
      session.optimizer != nullptr && !options.no_load_optim() && !options.finetune();
  if (session.train_data.has_value() && !options.finetune()) {
    TESSERA_RETURN_IF_ERROR(In(saved, CheckSameData(saved.manifest, session.data_identity())));
  }
  TESSERA_ASSIGN_OR_RETURN(const LoadNotes loaded,
                           LoadTensors(saved, session.model->parameters(),
                                       with_optimizer ? session.optimizer.get() : nullptr));
  if (session.optimizer != nullptr) {
    if (with_optimizer) {
      session.optimizer->set_updates(session.progress.updates);
    } else {
      session.optimizer->ResetMaster();
    }
  }
  notes(absl::StrFormat("loaded %s (step %d) in %.2f s: %s", saved.Describe(),
                        saved.manifest.trainer().step(), loaded.report.seconds,
                        options.finetune() ? "weights alone, starting at step 0"
                        : with_optimizer   ? "weights and optimizer"
                                           : "weights"));
  for (const std::string& sentence : loaded.sentences) notes(sentence);
  if (session.progress.seed != static_cast<uint64_t>(session.config.training().seed())) {
    notes(absl::StrCat("seed ", session.progress.seed, " is the saved run's; --no-load-rng takes ",
                       session.config.training().seed(), " instead"));
  }
  return absl::OkStatus();
}

// Master weights take the file's full precision; what is computed with is rounded from them.
absl::Status ImportWeights(const std::string& llmc_file, Session& session) {
  const ParameterSet& parameters = session.model->parameters();
  if (session.optimizer == nullptr || !session.optimizer->has_master()) {
    return ImportLlmc(llmc_file, session.config.model(), parameters, parameters.values());
  }
  const Tensor master(DType::kF32, {parameters.flat_elements()});
  TESSERA_RETURN_IF_ERROR(ImportLlmc(llmc_file, session.config.model(), parameters, master));
  session.backend->Copy(master, parameters.values());
  session.optimizer->SetMaster(master);
  return absl::OkStatus();
}

// Whether the machine has room for the weights and what belongs to them, before anything of that size
// is made.
absl::Status CheckModelFits(const TrainConfig& config, bool trains) {
  const bool bf16 = config.training().bf16();
  const int64_t weight_bytes = bf16 ? 2 : 4;
  const int64_t training_bytes = bf16 ? 4 + 12 : 4 + 8;  // gradient; master weight and moments
  const int64_t weights = ParameterCount(config.model());
  const int64_t needed = weights * (weight_bytes + (trains ? training_bytes : 0));
  const int64_t available = AvailableHostMemory();
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "a model of %d weights needs %s of memory %s, of which %s are available", weights,
      ckpt::HumanBytes(static_cast<uint64_t>(needed)), trains ? "to train" : "",
      ckpt::HumanBytes(static_cast<uint64_t>(available))));
}

// Whether the machine has room for all that has been allocated and, so far, hardly touched.
absl::Status CheckMemory(const Session& session) {
  const int64_t needed = TensorMemory().live_bytes, available = AvailableHostMemory();
  if (needed <= available) return absl::OkStatus();
  const ParameterSet& parameters = session.model->parameters();
  const auto text = [](int64_t bytes) { return ckpt::HumanBytes(static_cast<uint64_t>(bytes)); };
  return absl::ResourceExhaustedError(absl::StrCat(
      "the run needs ", text(needed), " of memory, of which ", text(available),
      " are available: weights ", text(parameters.values().view().bytes()), ", gradients ",
      text(parameters.grads().view().bytes()), ", optimizer ",
      text(session.optimizer == nullptr ? 0 : session.optimizer->state_bytes()), ", activations ",
      text(session.activations == nullptr ? 0 : session.activations->bytes()),
      "; activations shrink with --micro-batch-size, --seq-length and --recompute-activations"));
}

absl::Status FillWeights(const std::optional<SavedRun>& saved, Session& session,
                         const Notes& notes) {
  const std::string& llmc_file = session.config.checkpoint().llmc_filepath();
  if (saved.has_value()) return LoadCheckpoint(*saved, session, notes);
  if (!session.config.checkpoint().load().empty()) {
    notes(
        absl::StrCat("no checkpoint in ", session.config.checkpoint().load(), ": starting afresh"));
  }
  ParameterSet& parameters = session.model->parameters();
  if (llmc_file.empty()) {
    parameters.Initialize(session.progress.seed);
  } else {
    TESSERA_RETURN_IF_ERROR(ImportWeights(llmc_file, session));
    notes(absl::StrCat("weights from ", llmc_file));
    return absl::OkStatus();
  }
  if (session.optimizer != nullptr) session.optimizer->ResetMaster();
  return absl::OkStatus();
}

}  // namespace

DataIdentity Session::data_identity() const {
  if (!train_data.has_value()) return {};
  return {.fingerprint = train_data->dataset->fingerprint(),
          .sequence_length = train_data->dataset->sequence_length(),
          .samples_per_epoch = train_data->dataset->num_samples()};
}

absl::StatusOr<std::unique_ptr<Session>> BuildSession(const TrainConfig& resolved_config,
                                                      const Notes& notes) {
  auto session = std::make_unique<Session>();
  session->config = resolved_config;
  const TrainConfig& config = session->config;
  TESSERA_ASSIGN_OR_RETURN(const std::optional<SavedRun> saved, FindSavedRun(config.checkpoint()));
  TESSERA_ASSIGN_OR_RETURN(session->progress, StartingPoint(config, saved));
  session->resumed = saved.has_value() && !config.checkpoint().finetune();
  const bool trains = session->progress.step < config.training().train_iters();
  if (trains) {
    TESSERA_ASSIGN_OR_RETURN(session->save_folder,
                             ReserveSaveFolder(config.checkpoint(), session->progress.step));
  }

  if (trains) {
    TESSERA_ASSIGN_OR_RETURN(session->train_data, OpenData(config.data().train_data_path(), config,
                                                           session->progress.data_seed));
  }
  if (!config.data().valid_data_path().empty()) {
    TESSERA_ASSIGN_OR_RETURN(session->valid_data, OpenData(config.data().valid_data_path(), config,
                                                           session->progress.data_seed));
  }
  if (!config.data().tokenizer_model().empty()) {
    TESSERA_ASSIGN_OR_RETURN(session->tokenizer, OpenTokenizer(config));
  }

  if (config.training().bf16() && !CpuHasBf16Products()) {
    return absl::InvalidArgumentError("bf16: this processor has no bf16 products (AVX-512)");
  }
  TESSERA_RETURN_IF_ERROR(CheckModelFits(config, trains));
  session->backend = MakeCpuBackend(ThreadCount(config));
  const ModelOptions options{.compute_dtype = config.training().bf16() ? DType::kBF16 : DType::kF32,
                             .with_gradients = trains,
                             .seed = session->progress.seed};
  TESSERA_ASSIGN_OR_RETURN(session->model, MakeModel(config.model(), options, *session->backend));
  const ParameterSet& parameters = session->model->parameters();
  if (trains) {
    session->optimizer = std::make_unique<AdamW>(
        *session->backend, config.optimizer(), FlatParameters(parameters),
        std::vector<OwnedRange>{
            {0, parameters.flat_elements(), parameters.values(), parameters.grads()}},
        parameters.values().view().dtype());
    session->activations = session->model->NewActivations(
        config.training().micro_batch_size(), config.training().seq_length(),
        config.training().recompute_activations() ? ActivationUse::kTrainingRecompute
                                                  : ActivationUse::kTraining);
  }
  TESSERA_RETURN_IF_ERROR(CheckMemory(*session));
  TESSERA_RETURN_IF_ERROR(FillWeights(saved, *session, notes));
  return session;
}

}  // namespace tessera
