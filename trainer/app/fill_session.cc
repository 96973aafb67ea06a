#include "trainer/app/fill_session.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "trainer/app/start.h"
#include "trainer/config/load_content.h"
#include "trainer/state/continue_run.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/load_tensors.h"
#include "trainer/state/saved_settings.h"

namespace tessera {
namespace {

using Notes = std::function<void(const std::string&)>;

// Returns "weights and optimizer", "3 of 52 parameters and their optimizer state", ...
std::string DescribeLoaded(const LoadContent& content, const LoadPolicy& policy,
                           const LoadNotes& loaded) {
  std::string text = policy.with_optimizer ? "weights and optimizer" : "weights";
  if (!content.model) text = policy.with_optimizer ? "optimizer without weights" : "no tensors";
  if (!content.continues() && policy.patterns.empty()) {
    return "weights alone, starting at step 0";
  }
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
absl::Status BeginWithWeights(Session& session, const Notes& notes) {
  const std::string& llmc_file = session.config.checkpoint().llmc_filepath();
  if (llmc_file.empty()) {
    InitializeWeights(session);
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(LoadLlmcFile(session));
  notes(absl::StrCat("weights from ", llmc_file));
  return absl::OkStatus();
}

absl::Status LoadCheckpoint(const SavedRun& saved, Session& session, const Notes& notes) {
  const CheckpointConfig& options = session.config.checkpoint();
  const LoadContent content = LoadContentOf(options);
  const LoadPolicy policy = PolicyOf(options, session.trains);
  TESSERA_RETURN_IF_ERROR(CheckModel(saved, session.config, notes));
  // Tensors that are not loaded are initialised.
  if (!content.model) {
    TESSERA_RETURN_IF_ERROR(BeginWithWeights(session, notes));
  } else if (policy.partial()) {
    InitializeWeights(session);
  }
  if (session.train_data.has_value() && content.sampler) {
    TESSERA_RETURN_IF_ERROR(
        InCheckpoint(saved, CheckSameData(saved.manifest(), session.data_identity())));
  }
  const absl::StatusOr<LoadNotes> loaded =
      LoadTensors(saved, session.state(), policy, session.group());
  TESSERA_RETURN_IF_ERROR(loaded.status());
  if (session.trains) {
    if (policy.with_optimizer) {
      session.trainer->set_updates(session.progress.updates);
    } else if (content.model) {
      session.trainer->ResetOptimizer();
    }
  }
  notes(absl::StrFormat("loaded %s (step %d) in %.2f s: %s", saved.Describe(),
                        saved.manifest().trainer().step(), loaded->report.seconds,
                        DescribeLoaded(content, policy, *loaded)));
  for (const std::string& sentence : loaded->sentences) notes(sentence);
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
  return absl::OkStatus();
}

}  // namespace

absl::Status FillSession(const std::optional<SavedRun>& saved, Session& session,
                         const Notes& notes) {
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

}  // namespace tessera
