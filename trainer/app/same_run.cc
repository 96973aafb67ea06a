#include "trainer/app/same_run.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "checkpoint/base/status_macros.h"
#include "google/protobuf/util/message_differencer.h"

namespace tessera {
namespace {

// Whether there is data is everybody's business, its place is not.
TrainConfig Shared(TrainConfig config) {
  config.mutable_training()->clear_threads();
  DataConfig& data = *config.mutable_data();
  if (!data.train_data_path().empty()) data.set_train_data_path("somewhere");
  if (!data.valid_data_path().empty()) data.set_valid_data_path("somewhere");
  config.mutable_output()->clear_run_dir();
  return config;
}

// "modified: training.seed: 1234 -> 5; added: ..."
std::string Differences(const TrainConfig& of_rank_0, const TrainConfig& here) {
  std::string lines;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&lines);
  differencer.Compare(of_rank_0, here);
  const std::string sentence = absl::StrReplaceAll(
      lines, {{"modified: ", ""}, {"added: ", "only here "}, {"deleted: ", "not here "}});
  return absl::StrReplaceAll(absl::StripSuffix(sentence, "\n"), {{"\n", "; "}});
}

}  // namespace

absl::Status CheckSameSettings(const TrainConfig& config, const RankGroup& group) {
  const TrainConfig mine = Shared(config);
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes,
                           group.ranks.Broadcast(mine.SerializeAsString(), group.deadline));
  TrainConfig of_rank_0;
  if (!of_rank_0.ParseFromString(bytes)) {
    return absl::InternalError("rank 0's settings do not parse: is it another build?");
  }
  const std::string differences = Differences(of_rank_0, mine);
  if (differences.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("this process was started with other settings than rank 0: ", differences));
}

absl::Status CheckSameFiles(std::string_view setting, uint64_t fingerprint,
                            const RankGroup& group) {
  TESSERA_ASSIGN_OR_RETURN(const std::string of_rank_0,
                           group.ranks.Broadcast(absl::StrCat(fingerprint), group.deadline));
  if (of_rank_0 == absl::StrCat(fingerprint)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(setting), ": the files hold other tokens here than for rank 0"));
}

}  // namespace tessera
