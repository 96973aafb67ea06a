#include "checkpoint/manager/save_schedule.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/no_space.h"
#include "base/status_macros.h"
#include "checkpoint/collective/agree.h"

namespace tessera::ckpt {
namespace {

bool Divides(int64_t interval, int64_t step) { return interval > 0 && step % interval == 0; }

// The indices of StepFacts::counts: numbers of ranks, or numbers that rank 0 alone contributes.
enum Count {
  kInterrupts,
  kTerminations,
  kProgramEnds,
  kUnhealthy,
  kStopFileSaves,
  kStopFileEnds,
  kElapsedMicroseconds,  // rank 0's, as are the next ones
  kSaveInFlight,
  kTrouble,
  kCountsUsed
};
static_assert(kCountsUsed == StepFacts::kCounts);

}  // namespace

StopFileAsks StopRequests::AfterStep(int64_t step, const StopRequest& request) {
  if (request.step == 0 || request.version == handled_version_) return StopFileAsks::kNothing;
  // The smallest integer has no opposite.
  const int64_t at = std::abs(std::max(request.step, -std::numeric_limits<int64_t>::max()));
  const bool is_stale = request.version == 1 && at <= resumed_step_;
  if (!is_stale && step < at) return StopFileAsks::kNothing;
  handled_version_ = request.version;
  if (is_stale) return StopFileAsks::kNothing;
  return request.step > 0 ? StopFileAsks::kSaveAndEnd : StopFileAsks::kSave;
}

StepFacts Encode(const KnownFacts& of_rank, bool is_rank_0) {
  StepFacts facts;
  facts.counts[kInterrupts] = of_rank.stop_signal == SIGINT;
  facts.counts[kTerminations] = of_rank.stop_signal != 0 && of_rank.stop_signal != SIGINT;
  facts.counts[kProgramEnds] = of_rank.program_ends;
  facts.counts[kUnhealthy] = !of_rank.healthy;
  facts.counts[kStopFileSaves] = of_rank.stop_file == StopFileAsks::kSave;
  facts.counts[kStopFileEnds] = of_rank.stop_file == StopFileAsks::kSaveAndEnd;
  if (!is_rank_0) return facts;
  facts.counts[kElapsedMicroseconds] = absl::ToInt64Microseconds(of_rank.elapsed);
  facts.counts[kSaveInFlight] = of_rank.save_in_flight;
  facts.counts[kTrouble] = static_cast<int64_t>(of_rank.trouble);
  return facts;
}

// Ranks are of one program on one kind of machine, so that numbers are sent as they are in memory.
absl::StatusOr<StepFacts> AddOverRanks(ProcessGroup& group, const StepFacts& mine,
                                       absl::Duration timeout) {
  const auto encode = [](const StepFacts& facts) {
    return std::string(reinterpret_cast<const char*>(facts.counts.data()), sizeof(facts.counts));
  };
  const auto add = [&](const std::string& bytes, StepFacts& sum) {
    StepFacts one;
    if (bytes.size() != sizeof(one.counts)) {
      return absl::InternalError(
          "another rank's facts about a step have another size: is it another build?");
    }
    std::memcpy(one.counts.data(), bytes.data(), bytes.size());
    sum += one;
    return absl::OkStatus();
  };
  const auto add_all = [&](const std::vector<std::string>& all) -> absl::StatusOr<std::string> {
    StepFacts sum;
    for (const std::string& bytes : all) TESSERA_RETURN_IF_ERROR(add(bytes, sum));
    return encode(sum);
  };
  if (group.size() == 1) return mine;
  TESSERA_ASSIGN_OR_RETURN(const std::string all, Agree(group, encode(mine), add_all, timeout));
  StepFacts sum;
  TESSERA_RETURN_IF_ERROR(add(all, sum));
  return sum;
}

KnownFacts Decode(int64_t step, const StepFacts& sum) {
  return {.step = step,
          .stop_signal = sum.counts[kInterrupts] > 0     ? SIGINT
                         : sum.counts[kTerminations] > 0 ? SIGTERM
                                                         : 0,
          .program_ends = sum.counts[kProgramEnds] > 0,
          .healthy = sum.counts[kUnhealthy] == 0,
          .stop_file = sum.counts[kStopFileEnds] > 0    ? StopFileAsks::kSaveAndEnd
                       : sum.counts[kStopFileSaves] > 0 ? StopFileAsks::kSave
                                                        : StopFileAsks::kNothing,
          .elapsed = absl::Microseconds(sum.counts[kElapsedMicroseconds]),
          .save_in_flight = sum.counts[kSaveInFlight] > 0,
          .trouble = static_cast<SaveTrouble>(sum.counts[kTrouble])};
}

EndReason SaveSchedule::End(const KnownFacts& facts) const {
  if (options_.last_step > 0 && facts.step >= options_.last_step) return EndReason::kLastStep;
  if (facts.stop_signal != 0) return EndReason::kSignal;
  if (facts.program_ends) return EndReason::kProgram;
  if (facts.stop_file == StopFileAsks::kSaveAndEnd) return EndReason::kStopFile;
  if (facts.elapsed >= options_.exit_after) return EndReason::kExitDuration;
  if (Divides(options_.exit_interval_steps, facts.step)) return EndReason::kExitInterval;
  return EndReason::kNone;
}

void SaveSchedule::NoteDue(const KnownFacts& facts) {
  const bool by_clock = options_.interval > absl::ZeroDuration() &&
                        facts.elapsed - last_permanent_ >= options_.interval;
  if (Divides(options_.interval_steps, facts.step) || by_clock ||
      (options_.continuous && !facts.save_in_flight)) {
    due_ = SaveKind::kPermanent;
  } else if (Divides(options_.rolling_interval_steps, facts.step)) {
    due_ = std::max(due_, SaveKind::kRolling);
  }
}

JobDecision SaveSchedule::AfterStep(const KnownFacts& facts) {
  JobDecision decision{
      {.end = End(facts), .stop_signal = facts.stop_signal, .program_ends = facts.program_ends}};
  const bool ends = decision.end != EndReason::kNone;
  const bool is_taken = facts.trouble == SaveTrouble::kFolderTaken;
  if (!options_.saves) {
    if (is_taken) decision.trouble = facts.trouble;
    return decision;
  }
  if (!ends || is_taken || facts.trouble == SaveTrouble::kLaterSteps) {
    decision.trouble = facts.trouble;
  }
  NoteDue(facts);
  const bool asked = decision.end == EndReason::kSignal     ? options_.saves_at_signals
                     : decision.end == EndReason::kLastStep ? options_.saves_last_step
                                                            : ends;
  if (asked || facts.stop_file != StopFileAsks::kNothing) {
    decision.save = SaveKind::kPermanent;
  } else if (facts.healthy) {
    decision.save = due_;
  }
  decision.saves_unhealthy = decision.save != SaveKind::kNone && !facts.healthy;
  if (decision.save != SaveKind::kNone) due_ = SaveKind::kNone;
  if (decision.save == SaveKind::kPermanent) last_permanent_ = facts.elapsed;
  return decision;
}

void FailedSaves::Add(const absl::Status& outcome, absl::Duration elapsed) {
  if (absl::IsCancelled(outcome)) return;
  last_ = outcome;
  in_a_row_ = outcome.ok() ? 0 : in_a_row_ + 1;
  if (outcome.ok()) last_checkpoint_ = elapsed;
}

SaveTrouble FailedSaves::Judge(absl::Duration elapsed) const {
  if (IsNoSpace(last_) && !RoomComes(last_)) return SaveTrouble::kNoRoom;
  if (options_.max_failed_saves > 0 && in_a_row_ >= options_.max_failed_saves) {
    return SaveTrouble::kFailures;
  }
  if (elapsed - last_checkpoint_ >= options_.max_without_checkpoint) return SaveTrouble::kTooLong;
  return SaveTrouble::kNone;
}

}  // namespace tessera::ckpt
