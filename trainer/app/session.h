#ifndef TESSERA_TRAINER_APP_SESSION_H_
#define TESSERA_TRAINER_APP_SESSION_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/model.h"
#include "trainer/config/config.pb.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/dataset.h"
#include "trainer/data/tokenizer.h"
#include "trainer/kernels/backend.h"
#include "trainer/optim/adamw.h"
#include "trainer/state/checkpoints.h"
#include "trainer/state/folder_lock.h"
#include "trainer/state/run_state.h"

namespace tessera {

// Token files, opened, and the order in which they are read.
struct DataSource {
  std::unique_ptr<TokenDataset> dataset;
  std::unique_ptr<BatchLoader> loader;
};

// Everything that a run works with, ready at `progress`: built from the config, then filled from a
// checkpoint, from an llm.c file, or with initial weights.
struct Session {
  TrainConfig config;  // resolved
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<AdamW> optimizer;          // null when there is nothing to train
  std::unique_ptr<Activations> activations;  // of a training micro-batch; likewise
  std::optional<DataSource> train_data;      // likewise
  std::optional<DataSource> valid_data;
  std::unique_ptr<Tokenizer> tokenizer;  // null without tokenizer_model
  Progress progress;
  std::unique_ptr<FolderLock> save_folder;  // null when nothing is saved
  bool resumed = false;                     // a checkpoint gave the progress

  DataIdentity data_identity() const;
};

// Builds a session. `notes` is told, in sentences, where weights and state came from. Errors name
// the setting or file that is wrong. Writes nothing; only creates the folder `save` where it is
// missing, so that a run that could not save ends before it trains.
absl::StatusOr<std::unique_ptr<Session>> BuildSession(
    const TrainConfig& resolved_config, const std::function<void(const std::string&)>& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_SESSION_H_
