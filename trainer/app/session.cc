#include "trainer/app/session.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/base/status_macros.h"
#include "models/factory.h"
#include "models/llmc.h"
#include "models/model_config.h"
#include "trainer/kernels/cpu/cpu_backend.h"

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

// Where the run goes on: what the checkpoint says, as far as the flags let it.
absl::StatusOr<Progress> StartingPoint(const TrainConfig& config,
                                       const std::optional<SavedRun>& saved) {
  const uint64_t seed = static_cast<uint64_t>(config.training().seed());
  Progress progress;
  if (saved.has_value() && !config.checkpoint().finetune()) {
    TESSERA_ASSIGN_OR_RETURN(progress, ReadProgress(saved->manifest));
    if (config.checkpoint().no_load_optim()) progress.updates = 0;
    if (!config.checkpoint().no_load_rng() && saved->manifest.trainer().has_rng()) {
      TESSERA_RETURN_IF_ERROR(CheckSameRandomNumbers(saved->manifest));
      return progress;
    }
  }
  progress.seed = seed;
  return progress;
}

absl::Status LoadCheckpoint(const SavedRun& saved, Session& session, const Notes& notes) {
  const CheckpointConfig& options = session.config.checkpoint();
  TESSERA_RETURN_IF_ERROR(CheckSameModel(saved.manifest, session.config.model()));
  const bool with_optimizer =
      session.optimizer != nullptr && !options.no_load_optim() && !options.finetune();
  if (session.train_data.has_value() && !options.finetune()) {
    TESSERA_RETURN_IF_ERROR(CheckSameData(saved.manifest, session.data_identity()));
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
  return absl::OkStatus();
}

// Master weights take the file's full precision; what is computed with is rounded from them.
absl::Status ImportWeights(const std::string& llmc_file, Session& session) {
  const ParameterSet& parameters = session.model->parameters();
  if (session.optimizer == nullptr || !session.optimizer->has_master()) {
    return ImportLlmc(llmc_file, session.config.model(), parameters, parameters.values());
  }
  const TensorView master = session.optimizer->master();
  TESSERA_RETURN_IF_ERROR(ImportLlmc(llmc_file, session.config.model(), parameters, master));
  session.backend->Copy(master, parameters.values());
  return absl::OkStatus();
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
                                                           session->progress.seed));
  }
  if (!config.data().valid_data_path().empty()) {
    TESSERA_ASSIGN_OR_RETURN(session->valid_data, OpenData(config.data().valid_data_path(), config,
                                                           session->progress.seed));
  }
  if (!config.data().tokenizer_model().empty()) {
    TESSERA_ASSIGN_OR_RETURN(session->tokenizer, OpenTokenizer(config));
  }

  session->backend = MakeCpuBackend(ThreadCount(config));
  const ModelOptions options{.compute_dtype = config.training().bf16() ? DType::kBF16 : DType::kF32,
                             .with_gradients = trains,
                             .seed = session->progress.seed};
  TESSERA_ASSIGN_OR_RETURN(session->model, MakeModel(config.model(), options, *session->backend));
  const ParameterSet& parameters = session->model->parameters();
  if (trains) {
    session->optimizer = std::make_unique<AdamW>(
        *session->backend, config.optimizer(), FlatParameters(parameters), 0,
        parameters.flat_elements(), parameters.values(), parameters.grads());
  }
  TESSERA_RETURN_IF_ERROR(FillWeights(saved, *session, notes));
  return session;
}

}  // namespace tessera
