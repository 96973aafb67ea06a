#include "trainer/app/same_run.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"
#include "google/protobuf/util/message_differencer.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

// All ranks must agree on whether there is data, but not on its path.
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

// "ranks 1, 2 differ from rank 0: instruction set avx512, there avx2; rank 3 differs ..."; empty
// where all are equal. `of_ranks`: serialized.
absl::StatusOr<std::string> NumericsByRank(const NumericsFingerprint& of_rank_0,
                                           const std::vector<std::string>& of_ranks) {
  std::map<std::string, std::vector<std::string>> ranks_by_difference;
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    ckpt::NumericsState state;
    if (!state.ParseFromString(of_ranks[rank])) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, "'s numerics do not parse: is it another build?"));
    }
    const std::vector<std::string> differences =
        NumericsDifferences(of_rank_0, FromProto(state), "there");
    if (differences.empty()) continue;
    ranks_by_difference[absl::StrJoin(differences, ", ")].push_back(absl::StrCat(rank));
  }
  std::vector<std::string> sentences;
  for (const auto& [difference, ranks] : ranks_by_difference) {
    sentences.push_back(absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", JoinFirst(ranks, ", "),
                                     ranks.size() == 1 ? " differs" : " differ",
                                     " from rank 0: ", difference));
  }
  return JoinFirst(sentences, "; ");
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

absl::Status CheckSameFiles(std::string_view setting, const DataFingerprint& fingerprint,
                            const RankGroup& group) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string bytes,
      group.ranks.Broadcast(absl::StrCat(fingerprint.sampled, " ", fingerprint.complete),
                            group.deadline));
  DataFingerprint of_rank_0;
  const std::vector<std::string> words = absl::StrSplit(bytes, ' ');
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &of_rank_0.sampled) ||
      !absl::SimpleAtoi(words[1], &of_rank_0.complete)) {
    return absl::InternalError("rank 0's fingerprint does not parse: is it another build?");
  }
  if (MayBeSameData(of_rank_0, fingerprint)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(setting), ": the files hold other tokens here than for rank 0"));
}

absl::Status CheckSameNumerics(const NumericsFingerprint& fingerprint, const TrainConfig& config,
                               const RankGroup& group,
                               const std::function<void(const std::string&)>& notes) {
  const bool exact = config.parallel().numerics() == Numerics::EXACT;
  const ComputeDevice::Value device = config.training().device();
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> of_ranks,
      group.ranks.Gather(ToProto(fingerprint).SerializeAsString(), group.deadline));
  if (group.ranks.rank() == 0) {
    TESSERA_ASSIGN_OR_RETURN(const std::string differences, NumericsByRank(fingerprint, of_ranks));
    if (!differences.empty() && exact) {
      return absl::InvalidArgumentError(
          absl::StrCat("numerics: EXACT needs ranks that compute the same bits, but ", differences,
                       device == ComputeDevice::CUDA
                           ? "; EXACT needs GPUs of one type and one version of cuBLASLt"
                           : "; TESSERA_CPU holds all ranks to instructions that each has",
                       ", --numerics=FAST does without"));
    }
    if (!differences.empty()) {
      notes(absl::StrCat("not all ranks compute the same bits: ", differences));
    }
  }
  return group.ranks.Broadcast("", group.deadline).status();
}

}  // namespace tessera
