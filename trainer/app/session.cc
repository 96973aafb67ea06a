#include "trainer/app/session.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "compute/device/training_device.h"
#include "layout/topology.h"
#include "tensor/device_runtime.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"
#include "trainer/app/host_share.h"
#include "trainer/app/memory_reserve.h"
#include "trainer/app/session_files.h"
#include "trainer/app/start.h"
#include "trainer/app/step_agreement.h"
#include "trainer/config/config.h"
#include "trainer/config/load_content.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/ledger.h"
#include "trainer/state/load_tensors.h"
#include "trainer/state/run_replicas.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/saved_settings.h"

namespace tessera {
namespace {

// What the hooks of a RunSaver need. It is filled in once the session has been built, which is
// after the hooks were made.
struct Saving {
  Session* session = nullptr;
  int64_t spare_memory = 0;
};

// The copies of saves use only memory that neither training nor another rank will need. The records
// of the steps that led to a checkpoint are durable before it is, unless they cannot be written,
// which ends the run after a save (TrainLoop).
RunSaverHooks HooksOf(const std::shared_ptr<Saving>& saving, const NoteSink& notes) {
  return {.available_memory_bytes =
              [saving] {
                return static_cast<uint64_t>(std::min(saving->spare_memory, AvailableHostMemory()));
              },
          .before_commit =
              [saving] {
                TESSERA_RETURN_IF_ERROR(CheckMemory("save"));
                MetricsWriter* const metrics = saving->session->metrics.get();
                if (metrics != nullptr) metrics->Sync().IgnoreError();
                return absl::OkStatus();
              },
          .notes = notes};
}

// Asynchronous saves read the state during training: an update waits for the memory that it
// overwrites.
absl::Status BeginSaves(RunSaver& saver, const std::optional<SavedRun>& saved,
                        const std::shared_ptr<RunReplicas>& replicas, const NoteSink& notes,
                        Session& session) {
  const CheckpointConfig& checkpoint = session.config.checkpoint();
  if (session.trains && !Saves(session.config) && checkpoint.enable_save_ckpt() &&
      !checkpoint.save().empty()) {
    notes("no checkpoint is saved: --save-interval=0 without another setting that says when");
  }
  if (!session.trains || !Saves(session.config)) return absl::OkStatus();
  const int64_t rolling = checkpoint.non_persistent_save_interval();
  if (const int64_t every = checkpoint.save_interval();
      rolling > 0 && every > 0 && rolling % every == 0) {
    notes(absl::StrCat("no rolling checkpoint is saved: save_interval=", every,
                       " divides non_persistent_save_interval=", rolling));
  }
  TESSERA_RETURN_IF_ERROR(
      saver.Begin(session.state(), {.loaded = saved.has_value() ? &saved->manifest() : nullptr,
                                    .replicas = replicas,
                                    .optimizer = &session.config.optimizer()}));
  if (replicas != nullptr) {
    TESSERA_RETURN_IF_ERROR(saver.BeginReplicas(
        saved.has_value() && saved->in_memory,
        [&manager = saver.manager()] { return manager.CheckFolder(); }, notes));
  }
  if (checkpoint.async_save() || replicas != nullptr) {
    session.trainer->set_before_overwrite(
        [&saver](const TensorView& memory) { saver.BeforeOverwrite(memory); },
        [&saver] { return saver.reads_state(); });
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankDevice>> OpenDevice(const TrainConfig& config,
                                                       const HostShare& host, Communicator* world,
                                                       ComputeDevices& devices,
                                                       const NoteSink& notes) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<RankDevice> device,
                           RankDevice::Open(config, host, world, devices, notes));
  if (TrainingDevice* const gpu = device->gpu(); gpu != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const DeviceRuntime::MemoryInfo memory,
                             gpu->context->runtime().Memory());
    notes(absl::StrCat("GPU ", gpu->device.index, ": ", gpu->type, ", ",
                       HumanBytes(memory.free_bytes), " of ", HumanBytes(memory.total_bytes),
                       " free, ", gpu->products));
  }
  return device;
}

// Memory in which the state of a GPU is staged, where it will be loaded or saved. Collective.
// Returns each rank's part of the host memory that is left.
absl::StatusOr<int64_t> OpenMirror(Session& session, bool loads, const HostShare& host) {
  std::vector<TensorView> buffers;
  if (loads || (session.trains && Saves(session.config))) {
    for (const StateChunk& chunk : session.state()) {
      for (const TensorView& buffer : StateBuffers(chunk)) buffers.push_back(buffer);
    }
  }
  int64_t staged = 0;
  for (const TensorView& buffer : buffers) staged += buffer.bytes();
  TESSERA_ASSIGN_OR_RETURN(const int64_t spare,
                           SpareBesideStaging(staged, AvailableHostMemory(), host));
  if (buffers.empty()) return spare;
  const double gigabytes = session.config.checkpoint().async_save_copy_gb_per_second();
  TESSERA_ASSIGN_OR_RETURN(session.mirror,
                           DeviceMirror::Create(*session.device->gpu()->compute, buffers,
                                                {.bytes_per_second = gigabytes * 1e9}));
  return spare;
}

// Builds the model and its state, without contents. Returns this rank's part of the host memory
// that training leaves.
absl::StatusOr<int64_t> BuildModel(Session& session, bool loads, const HostShare& host) {
  const TrainConfig& config = session.config;
  TrainingDevice* const gpu = session.device->gpu();
  TESSERA_RETURN_IF_ERROR(gpu == nullptr
                              ? CheckModelFits(config, session.trains, AvailableHostMemory(), host)
                              : CheckModelFitsGpu(config, session.trains, *gpu));
  TESSERA_ASSIGN_OR_RETURN(
      session.trainer,
      Trainer::Create(config, {.trains = session.trains, .seed = session.progress.seed},
                      *session.mesh, session.backend()));
  if (gpu != nullptr) return OpenMirror(session, loads, host);
  return SpareMemory(session.trainer->memory(), AvailableHostMemory(), host);
}

// NCCL's communicators are destroyed by all ranks together, or else after an abort: a rank that
// fails alone would wait for the others.
void AbortDevices(RankDevice& device, Communicator* world, const absl::Status& status) {
  if (device.world() != nullptr) world->Abort(status);
}

// Returns "weights and optimizer", "3 of 52 parameters and their optimizer state", ...
std::string DescribeLoaded(const LoadContent& content, const LoadPolicy& policy,
                           const LoadNotes& loaded) {
  std::string text = policy.with_optimizer ? "weights and optimizer" : "weights";
  if (!content.model) text = policy.with_optimizer ? "optimizer without weights" : "no tensors";
  if (!content.continues() && policy.patterns.empty()) return "weights alone, starting at step 0";
  if (!policy.patterns.empty() && content.has_tensors()) {
    text = absl::StrCat(loaded.matching_parameters, " of ", loaded.saved_parameters, " parameters",
                        policy.with_optimizer ? " and their optimizer state" : "");
  }
  if (!content.scheduler) absl::StrAppend(&text, ", starting at step 0");
  if (content.scheduler != content.sampler) {
    absl::StrAppend(&text, content.sampler ? ", continuing in the data"
                                           : ", reading the data from the beginning");
  }
  return text;
}

// Loads the weights alone. Master weights take the file's full precision.
absl::Status LoadLlmcFile(Session& session) {
  TESSERA_ASSIGN_OR_RETURN(const SavedRun saved, FindLlmcFile(session.config, session.group()));
  if (session.trains) session.trainer->ResetOptimizer();
  return LoadTensors(saved, session.state(),
                     {.with_optimizer = false, .with_masters = session.trains}, session.group())
      .status();
}

void InitializeWeights(Session& session) {
  session.trainer->InitializeWeights(session.progress.seed);
  if (session.trains) session.trainer->ResetOptimizer();
}

// Begins with weights that no checkpoint provides, and an optimizer that has made no update.
absl::Status BeginWithWeights(Session& session, const NoteSink& notes) {
  const std::string& llmc_file = session.config.checkpoint().llmc_filepath();
  if (llmc_file.empty()) {
    InitializeWeights(session);
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(LoadLlmcFile(session));
  notes(absl::StrCat("weights from ", llmc_file));
  return absl::OkStatus();
}

// Says what was loaded, and in what the session differs from the saved run.
void NoteLoaded(const SavedRun& saved, const LoadContent& content, const LoadPolicy& policy,
                const LoadNotes& loaded, const Session& session, const NoteSink& notes) {
  notes(absl::StrFormat(
      "loaded %s (step %d) in %.2f s: %s", saved.Describe(), saved.manifest().trainer().step(),
      absl::ToDoubleSeconds(loaded.report.duration), DescribeLoaded(content, policy, loaded)));
  for (const std::string& sentence : loaded.sentences) notes(sentence);
  if (session.first_rank() && ResumesInPart(saved, session.given_checkpoint)) {
    notes(
        "WARNING: a restart of this command leaves the same parts out again: give these flags "
        "once");
  }
  if (session.first_rank() && session.resumed && session.progress.ledger.empty()) {
    notes(absl::StrCat("the ledger begins a new chain after step ", session.progress.step,
                       ": what was loaded does not continue one"));
  }
  if (content.sampler && !KnowsItsData(saved.manifest())) {
    notes(absl::StrCat("continuing after ", session.progress.consumed_samples,
                       " samples of this run's own order of the data: the checkpoint does not tell "
                       "which data it has read"));
  }
  for (const std::string& sentence :
       DescribeChanges(saved.manifest(), session.config, session.numerics())) {
    notes(sentence);
  }
  const std::string settings = DescribeChangedSettings(
      saved.manifest(), session.config, session.progress.seed, session.progress.step);
  if (!settings.empty() && session.first_rank()) notes(settings);
  if (session.progress.seed != static_cast<uint64_t>(session.config.training().seed())) {
    notes(absl::StrCat("seed ", session.progress.seed, " is the saved run's; --no-load-rng takes ",
                       session.config.training().seed(), " instead"));
  }
}

absl::Status LoadCheckpoint(const SavedRun& saved, Session& session, const NoteSink& notes) {
  const CheckpointConfig& options = session.config.checkpoint();
  const LoadContent content = LoadContentOf(options);
  LoadPolicy policy = PolicyOf(options, session.trains);
  const bool begins_optimizer = session.trains && content.model && !policy.with_optimizer;
  TESSERA_RETURN_IF_ERROR(CheckModel(saved, session.config, notes));
  // Tensors that are not loaded are initialised.
  if (!content.model) {
    TESSERA_RETURN_IF_ERROR(BeginWithWeights(session, notes));
  } else if (policy.partial()) {
    InitializeWeights(session);
  }
  if (begins_optimizer) {
    session.trainer->ResetOptimizer();
    policy.with_masters = true;  // in the full precision of what was saved
  }
  if (session.train_data.has_value() && content.sampler) {
    TESSERA_RETURN_IF_ERROR(
        InCheckpoint(saved, CheckSameData(saved.manifest(), session.data_identity())));
  }
  TESSERA_ASSIGN_OR_RETURN(const LoadNotes loaded,
                           LoadTensors(saved, session.state(), policy, session.group()));
  if (session.trains && policy.with_optimizer) {
    session.trainer->set_updates(session.progress.updates);
  }
  if (content.scheduler && loaded.lacks_tensors) {
    AddPartialResume("tensors that were not saved", session.progress);
  }
  NoteLoaded(saved, content, policy, loaded, session, notes);
  return absl::OkStatus();
}

// Gives a session that stands at the progress of `saved` its weights and optimizer state: those of
// the checkpoint, or of an llm.c file, or initial ones; notes say which. Collective.
absl::Status FillSession(const std::optional<SavedRun>& saved, Session& session,
                         const NoteSink& notes) {
  const CheckpointConfig& options = session.config.checkpoint();
  const std::string& llmc_file = options.llmc_filepath();
  const bool own = saved.has_value() && saved->is_own;
  const std::string& folder = own ? options.save() : options.load();
  const bool foreign = saved.has_value() && !saved->foreign_format.empty();
  if (session.first_rank() && !folder.empty() && !options.has_ckpt_step() && !foreign) {
    const int64_t step = saved.has_value() ? saved->manifest().trainer().step() : -1;
    TESSERA_ASSIGN_OR_RETURN(const std::string skipped, DescribeSkipped(folder, step, options));
    if (!skipped.empty()) notes(skipped);
  }
  if (saved.has_value()) {
    if (!llmc_file.empty() && session.first_rank() && LoadContentOf(options).model) {
      notes(absl::StrCat("llmc_filepath=", llmc_file, " is not read: there is a checkpoint"));
    }
    return LoadCheckpoint(*saved, session, notes);
  }
  return BeginWithWeights(session, notes);
}

// What a rank opens once, whichever checkpoint its session is built from.
struct RunParts {
  const HostShare host;
  Communicator* const world;
  const NoteSink notes;
  const std::shared_ptr<RankDevice> device;
  const std::shared_ptr<Saving> saving = std::make_shared<Saving>();
  std::unique_ptr<RunSaver> saver;
  std::shared_ptr<RunReplicas> replicas;  // null without replicate_to_peers
};

// Losses of other validation data say nothing about those to come.
void ForgetOtherEvaluations(const ckpt::Manifest& manifest, const NoteSink& notes,
                            Session& session) {
  const auto saved = manifest.trainer().extra().find(ckpt::kValidationData);
  const std::string mine = session.data_identity().validation;
  if (saved == manifest.trainer().extra().end() || mine.empty() || saved->second == mine) return;
  session.progress.best_loss = std::numeric_limits<double>::infinity();
  notes(
      "evaluations are of other validation data than the saved run's: losses are not compared "
      "with its own");
}

// Continues the session from `saved`. An error of damage is the same on every rank.
absl::Status Continue(const std::optional<SavedRun>& saved, const RunParts& run,
                      const NoteSink& notes, Session* session) {
  const TrainConfig& config = session->config;
  TESSERA_ASSIGN_OR_RETURN(
      session->mesh, Mesh::Create(ConfigTopology(config), run.world, session->device->world()));
  TESSERA_ASSIGN_OR_RETURN(session->progress, StartingPoint(saved, &session->config));
  session->resumed = saved.has_value() && LoadContentOf(config.checkpoint()).scheduler;
  if (session->resumed) {
    session->resumed_from = saved->Describe();
    session->resumed_own = saved->is_own;
    session->resumed_in_memory = saved->in_memory;
    session->saved_topology = SavedTopology(saved->manifest());
    const ckpt::TrainerState& state = saved->manifest().trainer();
    session->owes_evaluation = state.has_health() && !state.health().has_validation_loss();
  }
  if (session->resumed && !session->progress.ledger.empty()) {
    session->loaded = RecordOf(saved->manifest(), session->progress);
  }
  session->resumed_healthy = !session->resumed || ckpt::IsHealthy(saved->manifest());
  session->trains = session->progress.step < config.training().train_iters();
  const bool from_own = saved.has_value() && saved->is_own;
  TESSERA_RETURN_IF_ERROR(OpenFiles(*session, from_own, run.notes, notes));
  if (session->resumed) ForgetOtherEvaluations(saved->manifest(), notes, *session);

  const bool loads = saved.has_value() || !config.checkpoint().llmc_filepath().empty();
  run.saving->session = session;
  TESSERA_ASSIGN_OR_RETURN(run.saving->spare_memory, BuildModel(*session, loads, run.host));
  TESSERA_RETURN_IF_ERROR(FillSession(saved, *session, notes));
  TESSERA_RETURN_IF_ERROR(BeginSaves(*run.saver, saved, run.replicas, notes, *session));
  if (!session->trains || !Saves(config)) session->mirror = nullptr;
  return absl::OkStatus();
}

// Builds a session from the latest checkpoint that can be loaded, or afresh.
absl::StatusOr<std::unique_ptr<Session>> BuildOn(RunParts run, const TrainConfig& config,
                                                 const RankGroup& group) {
  TESSERA_RETURN_IF_ERROR(CheckSameNumerics(run.device->numerics(), config, group, run.notes));
  TESSERA_RETURN_IF_ERROR(CheckFoldersApart(config));
  TESSERA_ASSIGN_OR_RETURN(run.saver,
                           RunSaver::Open(config, run.world, HooksOf(run.saving, run.notes)));
  TESSERA_ASSIGN_OR_RETURN(run.replicas, RunReplicas::Open(config, run.world, group));
  std::optional<SavedRun> replica;
  if (run.replicas != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(replica, run.replicas->Find(run.notes));
  }
  std::unique_ptr<Session> session;
  std::vector<std::string> notes;  // of the last attempt, said once it is known to be the last
  const auto say = [&] {
    for (const std::string& note : notes) run.notes(note);
  };
  const auto build = [&](std::optional<SavedRun> saved) {
    session = std::make_unique<Session>();
    session->config = config;
    session->given_checkpoint = config.checkpoint();
    session->ranks = MakeProcessGroup(run.world);
    session->device = run.device;
    const auto hold = [&notes](const std::string& note) { notes.push_back(note); };
    absl::Status built = Continue(saved, run, hold, session.get());
    if (built.ok()) return built;
    // All ranks return from damage together, perhaps to another checkpoint.
    const bool is_last = !ckpt::FindDamagedParts(built).has_value();
    if (is_last) say();
    if (is_last) AbortDevices(*run.device, run.world, built);
    notes.clear();
    session = nullptr;
    return built;
  };
  absl::StatusOr<std::vector<SkippedRun>> skipped =
      LoadSavedRun(config, group, run.saver->manager(), run.notes, build, std::move(replica));
  say();
  TESSERA_RETURN_IF_ERROR(skipped.status());
  session->skipped = *std::move(skipped);
  session->saver = std::move(run.saver);
  // A run that has nothing left to train needs no restart.
  if (run.replicas != nullptr && !session->trains) {
    TESSERA_RETURN_IF_ERROR(run.replicas->replicas().Remove());
  }
  return session;
}

}  // namespace

SaveRecord RecordOf(const ckpt::Manifest& manifest, const Progress& progress) {
  const std::string state = StateDigest(manifest);
  return {.step = progress.step,
          .ledger = progress.ledger,
          .state = state,
          .save = SaveDigest(progress.step, progress.ledger, state)};
}

std::vector<StateChunk> Session::state() const {
  std::vector<StateChunk> chunks;
  for (const TrainedChunk& chunk : trainer->chunks()) {
    chunks.push_back({.parameters = chunk.parameters,
                      .optimizer = chunk.optimizer,
                      .mirror = mirror.get(),
                      .backend = device->gpu() == nullptr ? nullptr : &backend()});
  }
  return chunks;
}

RankGroup Session::group() const { return GroupOf(*ranks, config); }

absl::StatusOr<std::unique_ptr<Session>> BuildSession(const TrainConfig& config,
                                                      Communicator* world, ComputeDevices& devices,
                                                      const NoteSink& notes) {
  const std::unique_ptr<ckpt::ProcessGroup> ranks = MakeProcessGroup(world);
  const RankGroup group = GroupOf(*ranks, config);
  TESSERA_RETURN_IF_ERROR(CheckSameSettings(config, group));
  TESSERA_ASSIGN_OR_RETURN(const HostShare host, HostShare::Find(world));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<RankDevice> device,
                           OpenDevice(config, host, world, devices, notes));
  absl::StatusOr<std::unique_ptr<Session>> session =
      BuildOn({.host = host, .world = world, .notes = notes, .device = device}, config, group);
  if (!session.ok()) AbortDevices(*device, world, session.status());
  return session;
}

}  // namespace tessera
