#include "trainer/app/session_files.h"

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "trainer/app/start.h"
#include "trainer/app/step_agreement.h"
#include "trainer/state/describe_saved.h"

namespace tessera {
namespace {

// Larger token files without checksums are not read before the first step: this much takes some
// seconds.
constexpr int64_t kMaxBytesToChecksum = int64_t{8} << 30;

// Opens token files. Collective. `setting` names the origin of `pattern`.
absl::StatusOr<DataSource> OpenData(const char* setting, const std::string& pattern,
                                    const Session& session, const NoteSink& at_once,
                                    const NoteSink& notes) {
  const TrainConfig& config = session.config;
  const RankGroup group = session.group();
  DataSource source;
  TESSERA_ASSIGN_OR_RETURN(source.dataset, OpenTokens(setting, pattern, config));
  source.dataset->NoteUnread(notes);
  // Checksums that rank 0 stores beside shared files are found there by the others.
  if (group.ranks.rank() != 0) {
    TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast("", group.timeout).status());
  }
  TESSERA_RETURN_IF_ERROR(source.dataset->AddChecksums(kMaxBytesToChecksum, at_once));
  if (group.ranks.rank() == 0) {
    TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast("", group.timeout).status());
  }
  TESSERA_RETURN_IF_ERROR(CheckSameFiles(setting, source.dataset->fingerprint(), group));
  const uint64_t seed = session.progress.data_seed;
  if (session.trains && config.checkpoint().save_on_exception()) {
    source.loader = std::make_unique<ErrorKeepingLoader>(source.dataset.get(), seed);
  } else {
    source.loader = std::make_unique<BatchLoader>(source.dataset.get(), seed);
  }
  return source;
}

}  // namespace

absl::Status OpenFiles(Session& session, bool from_own, const NoteSink& at_once,
                       const NoteSink& notes) {
  const TrainConfig& config = session.config;
  if (session.trains) {
    TESSERA_RETURN_IF_ERROR(
        CheckLaterSteps(config, session.progress.step, from_own, session.group()));
    TESSERA_ASSIGN_OR_RETURN(
        session.train_data,
        OpenData("train_data_path", config.data().train_data_path(), session, at_once, notes));
  }
  if (!config.data().valid_data_path().empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        session.valid_data,
        OpenData("valid_data_path", config.data().valid_data_path(), session, at_once, notes));
    const int64_t step = session.progress.step, steps = config.training().train_iters();
    const int64_t interval = config.training().eval_interval();
    if (session.trains && interval > 0 && step / interval == steps / interval &&
        !(session.owes_evaluation && step % interval == 0)) {
      notes(absl::StrCat("nothing is evaluated: eval_interval=", interval,
                         step + 1 == steps
                             ? " does not divide step "
                             : absl::StrCat(" divides no step from ", step + 1, " to "),
                         steps));
    }
  }
  if (!config.data().tokenizer_model().empty()) {
    TESSERA_ASSIGN_OR_RETURN(session.tokenizer, OpenTokenizer(config));
  }
  return absl::OkStatus();
}

DataIdentity Session::data_identity() const {
  DataIdentity identity;
  if (train_data.has_value()) {
    identity = {.fingerprint = train_data->dataset->fingerprint(),
                .sequence_length = train_data->dataset->sequence_length(),
                .samples_per_epoch = train_data->dataset->num_samples()};
  }
  if (valid_data.has_value()) {
    const TrainingConfig& training = config.training();
    const int64_t samples =
        EvaluatedSamples(training.eval_iters() * training.global_batch_size(),
                         training.global_batch_size(), valid_data->dataset->num_samples());
    identity.validation = absl::StrCat(absl::Hex(valid_data->dataset->fingerprint().sampled), ", ",
                                       samples, " of ", training.seq_length());
  }
  return identity;
}

}  // namespace tessera
