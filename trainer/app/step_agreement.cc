#include "trainer/app/step_agreement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"
#include "comm/communicator.h"
#include "glog/logging.h"
#include "google/protobuf/util/message_differencer.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 5> kGroups = {"tp", "dp", "pp", "tied", "world"};
// Shares and seconds are sent as integers, so that one sum carries everything.
constexpr double kShareUnits = 1e9;
constexpr std::array<double TimeSplit::*, 4> kTimeFields = {
    &TimeSplit::compute, &TimeSplit::communication, &TimeSplit::waiting, &TimeSplit::saving};

// Summed over ranks.
struct Counts {
  enum {
    kWaitShare,
    kHostMemory,
    kGpuMemory,
    kTime,
    kTimeEnd = kTime + static_cast<int>(kTimeFields.size()) - 1,
    kTraffic
  };
  std::array<int64_t, kTraffic + kGroups.size()* kCommOpCount> values = {};

  int64_t& Traffic(size_t group, int op) { return values[kTraffic + group * kCommOpCount + op]; }
};

size_t GroupIndex(std::string_view name) {
  for (size_t i = 0; i < kGroups.size(); ++i) {
    if (kGroups[i] == name) return i;
  }
  LOG(FATAL) << "no group of ranks is called " << name;
}

std::vector<WireBytes> WireOf(Counts& counts) {
  std::vector<WireBytes> wire;
  for (size_t group = 0; group < kGroups.size(); ++group) {
    for (int op = 0; op < kCommOpCount; ++op) {
      const int64_t bytes = counts.Traffic(group, op);
      if (bytes == 0) continue;
      wire.push_back({.axis = std::string(kGroups[group]),
                      .operation = std::string(CommOpName(static_cast<CommOp>(op))),
                      .bytes = bytes});
    }
  }
  return wire;
}

// Returns the settings that all ranks must share: whether there is data, but not its path.
TrainConfig Shared(TrainConfig config) {
  config.mutable_training()->clear_threads();
  DataConfig& data = *config.mutable_data();
  if (!data.train_data_path().empty()) data.set_train_data_path("somewhere");
  if (!data.valid_data_path().empty()) data.set_valid_data_path("somewhere");
  config.mutable_output()->clear_run_dir();
  return config;
}

// Returns "modified: training.seed: 1234 -> 5; added: ..."
std::string Differences(const TrainConfig& of_rank_0, const TrainConfig& here) {
  std::string lines;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&lines);
  differencer.Compare(of_rank_0, here);
  const std::string sentence = absl::StrReplaceAll(
      lines, {{"modified: ", ""}, {"added: ", "only here "}, {"deleted: ", "not here "}});
  return absl::StrReplaceAll(absl::StripSuffix(sentence, "\n"), {{"\n", "; "}});
}

// Returns "ranks 1, 2 differ from rank 0: instruction set avx512, there avx2; rank 3 differs ...";
// empty where all are equal. `of_ranks`: serialized.
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

absl::StatusOr<StepAgreement> AgreeOnStep(Mesh& mesh, std::span<int64_t> manager_counts,
                                          double pipeline_wait_share, const TimeSplit& time,
                                          const UsedMemory& memory) {
  StepAgreement agreement{.memory = memory, .time = time};
  if (mesh.world() == nullptr || mesh.world()->size() == 1) return agreement;
  Counts counts;
  counts.values[Counts::kWaitShare] = std::llround(pipeline_wait_share * kShareUnits);
  counts.values[Counts::kHostMemory] = memory.host;
  counts.values[Counts::kGpuMemory] = memory.gpu;
  for (size_t i = 0; i < kTimeFields.size(); ++i) {
    counts.values[Counts::kTime + i] = std::llround(time.*kTimeFields[i] * kShareUnits);
  }
  for (const WireTraffic& traffic : mesh.TakeTraffic()) {
    counts.Traffic(GroupIndex(traffic.group), static_cast<int>(traffic.op)) += traffic.bytes_sent;
  }
  std::vector<int64_t> all(counts.values.begin(), counts.values.end());
  all.insert(all.end(), manager_counts.begin(), manager_counts.end());
  TESSERA_RETURN_IF_ERROR(mesh.world()->AllReduce(std::span<int64_t>(all), ReduceOp::kSum,
                                                  {.what = "signals and counters of a step"}));
  std::copy_n(all.begin(), counts.values.size(), counts.values.begin());
  std::copy_n(all.end() - static_cast<int64_t>(manager_counts.size()), manager_counts.size(),
              manager_counts.begin());
  agreement.memory = {.host = counts.values[Counts::kHostMemory],
                      .gpu = counts.values[Counts::kGpuMemory]};
  if (mesh.pipeline() != nullptr) {
    agreement.pipeline_wait_share =
        static_cast<double>(counts.values[Counts::kWaitShare]) / kShareUnits / mesh.world()->size();
  }
  for (size_t i = 0; i < kTimeFields.size(); ++i) {
    agreement.time.*kTimeFields[i] =
        static_cast<double>(counts.values[Counts::kTime + i]) / kShareUnits / mesh.world()->size();
  }
  agreement.wire = WireOf(counts);
  return agreement;
}

absl::Status CheckSameSettings(const TrainConfig& config, const RankGroup& group) {
  const TrainConfig mine = Shared(config);
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes,
                           group.ranks.Broadcast(mine.SerializeAsString(), group.timeout));
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
                            group.timeout));
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
                               const RankGroup& group, const NoteSink& notes) {
  const bool exact = config.parallel().numerics() == Numerics::EXACT;
  const ComputeDevice::Value device = config.training().device();
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> of_ranks,
      group.ranks.Gather(ToProto(fingerprint).SerializeAsString(), group.timeout));
  if (group.ranks.rank() == 0) {
    TESSERA_ASSIGN_OR_RETURN(const std::string differences, NumericsByRank(fingerprint, of_ranks));
    if (!differences.empty() && exact) {
      return absl::InvalidArgumentError(
          absl::StrCat("numerics: EXACT needs ranks that compute the same bits, but ", differences,
                       device == ComputeDevice::CUDA
                           ? "; one of the GPUs is faulty, or has another build"
                           : "; TESSERA_CPU holds all ranks to instructions that each has",
                       ", --numerics=FAST does without"));
    }
    if (!differences.empty()) {
      notes(absl::StrCat("not all ranks compute the same bits: ", differences));
    }
  }
  return group.ranks.Broadcast("", group.timeout).status();
}

}  // namespace tessera
