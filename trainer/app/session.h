#ifndef TESSERA_TRAINER_APP_SESSION_H_
#define TESSERA_TRAINER_APP_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/program.h"
#include "base/steady_time.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "compute/device/compute_devices.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "compute/parallel/mesh.h"
#include "storage/lock/folder_lock.h"
#include "tokenizer/tokenizer.h"
#include "trainer/app/rank_device.h"
#include "trainer/config/config.pb.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/dataset.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/run_events.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/device_mirror.h"
#include "trainer/state/foreign_weights.h"
#include "trainer/state/run_saver.h"
#include "trainer/state/run_state.h"
#include "trainer/state/saved_run.h"
#include "trainer/state/state_chunks.h"
#include "trainer/step/trainer.h"

namespace tessera {

// Open token files, and the order in which they are read.
struct DataSource {
  std::unique_ptr<TokenDataset> dataset;
  std::unique_ptr<BatchLoader> loader;
};

// The complete state of one rank of a run at `progress`, built from the config, then filled from a
// checkpoint, from an llm.c file, or with initial weights.
struct Session {
  TrainConfig config;                  // resolved, with the settings by which this start loads
  CheckpointConfig given_checkpoint;   // as the user gave it
  absl::Duration began = SteadyNow();  // when the process did; RunRank() knows it
  std::shared_ptr<RankDevice> device;
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<ckpt::ProcessGroup> ranks;  // all of the mesh
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<DeviceMirror> mirror;  // of the state on a GPU; null without loads and saves
  bool trains = false;                   // there are steps left
  std::optional<DataSource> train_data;  // if there are steps left
  std::optional<DataSource> valid_data;
  std::unique_ptr<Tokenizer> tokenizer;  // null without tokenizer_model
  Progress progress;
  // Rank 0's lock of run_dir. Null until rank 0 writes there, and if `save` is the same folder.
  std::unique_ptr<FolderLock> run_folder;
  // Rank 0's record of the run; null if it has none, and until the run begins.
  std::unique_ptr<MetricsWriter> metrics;
  // Rank 0's record of the run's checkpoints (saves.jsonl). Null where `metrics` is null.
  std::unique_ptr<MetricsWriter> saves;
  // The record in `saves` of the checkpoint from which the run was resumed; nullopt without a
  // ledger.
  std::optional<SaveRecord> loaded;
  // Rank 0's record of the run's events. Null where `metrics` is null.
  std::unique_ptr<RunEvents> events;
  // The saver. A save in flight uses the members before it.
  std::unique_ptr<RunSaver> saver;
  int64_t hf_step = -1;             // of the last weights in Hugging Face's format; -1: none
  bool resumed = false;             // the progress came from a checkpoint
  std::string resumed_from;         // its name; empty otherwise
  bool resumed_own = false;         // from `save`, or from a replica of what is saved there
  bool resumed_in_memory = false;   // from a replica
  std::string saved_topology;       // under which that checkpoint was saved; empty if unknown
  bool resumed_healthy = true;      // its state is good, as far as is known
  bool owes_evaluation = false;     // that checkpoint was saved before its step was evaluated
  std::vector<SkippedRun> skipped;  // newer checkpoints than that one; empty but on rank 0
  bool diverged = false;            // training has, which its error says

  Backend& backend() const { return device->backend(); }
  // Returns the fingerprint of this rank's numerics, the same on all ranks in EXACT numerics.
  const NumericsFingerprint& numerics() const { return device->numerics(); }
  bool first_rank() const { return mesh->rank() == 0; }
  DataIdentity data_identity() const;
  // Returns the trainer's state in the form that checkpoints use.
  std::vector<StateChunk> state() const;
  RankGroup group() const;
};

// Returns the record of a checkpoint with this manifest and progress.
SaveRecord RecordOf(const ckpt::Manifest& manifest, const Progress& progress);

// Builds a session. `world` (null for one process) must have as many ranks as the config's
// topology; it and `devices`, from which each rank takes a GPU with device=cuda, outlive the
// session. Every rank of the world calls BuildSession(), and an error on one rank alone reaches the
// others when it leaves. `notes` receives sentences about the origin of weights and state. Errors
// name the wrong setting or file. Creates the folder `save` if it is missing and locks it, so that
// a run that could not save ends before it trains. Quarantines damaged checkpoints: if one turns
// out to be damaged while it is being loaded, everything is built again from the next one.
absl::StatusOr<std::unique_ptr<Session>> BuildSession(const TrainConfig& resolved_config,
                                                      Communicator* world, ComputeDevices& devices,
                                                      const NoteSink& notes);

// Checks that the files of export_llmc, export_hf_interval and last_save_in_hf can be written,
// since the run may write them only after weeks. For rank 0. The error is one sentence with the
// name of the setting.
absl::Status CheckExport(const Session& session);

// Writes the session's weights. Every rank calls it; rank 0 writes. File or folder appear complete
// or not at all. A rank needs only some MiB in addition to its part of the model.
// FailedPrecondition, on every rank, if export_dtype cannot hold a finite weight.
absl::Status ExportWeights(const Session& session, const ForeignWeights& weights);

// Returns the export of export_llmc, at the end of a run.
ForeignWeights LlmcExport(const Session& session);
// Returns the exports that are due at the present step by their intervals.
std::vector<ForeignWeights> DueExports(const Session& session);
// Returns those of them that are not there, where the run was resumed at this step from the whole
// of its own checkpoint: the process that saved it may have died before it exported. An export that
// ends the process would end that of every start: one that an earlier start has begun, and not
// ended, is left out, and reported to `notes` on every rank. Collective.
absl::StatusOr<std::vector<ForeignWeights>> OwedExports(const Session& session,
                                                        const NoteSink& notes);
// Returns the export of export_hf_interval, or of last_save_in_hf, at the present step: the folder
// "hf-00000100" in `save`.
ForeignWeights HuggingFaceExportOfStep(const Session& session);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_SESSION_H_
