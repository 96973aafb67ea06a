#include "trainer/step/replay_check.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "comm/communicator.h"

namespace tessera {
namespace {

constexpr int64_t kNoEvent = std::numeric_limits<int64_t>::max();
constexpr CallOptions kCall = {.what = "digests of a repeated micro-batch"};

// Returns every rank's `mine`, in order of the ranks; without a group, this rank's alone.
absl::StatusOr<std::vector<int64_t>> GatherAll(const std::vector<int64_t>& mine,
                                               Communicator* group) {
  if (group == nullptr) return mine;
  std::vector<int64_t> all(mine.size() * group->size());
  TESSERA_RETURN_IF_ERROR(group->AllGather(ConstBuffer(mine), all, {}, kCall));
  return all;
}

std::string HostOfThisRank() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

// One pass by every replica: what this rank has seen of it, and the summaries of all ranks.
struct Round {
  int shift = 0;
  std::vector<PassTrace::Event> events;
  std::vector<int64_t> summaries;  // by rank
};

struct Finding {
  int original = 0, repeater = 0;  // replicas
  ReplayVerdict verdict;
};

// Compares each replica's pass with its repetition by another. After a difference, a second
// repetition and a third replica decide which of the two is wrong.
class Check {
 public:
  Check(const ReplayTurn& turn, const Mesh& mesh, const ReplayPass& pass)
      : turn_(turn), mesh_(mesh), pass_(pass) {}

  absl::StatusOr<std::string> Run(const PassTrace& used, const std::vector<int64_t>& numbers) {
    TESSERA_ASSIGN_OR_RETURN(Round first, Gathered(0, used));
    TESSERA_ASSIGN_OR_RETURN(Round second, Repeat(turn_.shift));
    std::vector<Finding> findings;
    for (int original = 0; original < replicas(); ++original) {
      const int repeater = RepeaterOf(original, turn_.shift);
      if (ResultOf(first, original) == ResultOf(second, repeater)) continue;
      findings.push_back({.original = original, .repeater = repeater, .verdict = {}});
    }
    if (findings.empty()) return std::string();
    TESSERA_RETURN_IF_ERROR(Judge(first, second, findings));
    return Describe(first, second, findings, numbers);
  }

 private:
  int replicas() const { return mesh_.topology().data; }
  int RepeaterOf(int original, int shift) const {
    return (original - shift + replicas()) % replicas();
  }
  int RankOf(int replica, int position) const {
    const int tensor = mesh_.topology().tensor;
    return mesh_.topology().RankOf(
        {.tensor = position % tensor, .data = replica, .pipeline = position / tensor});
  }
  int positions() const { return mesh_.topology().tensor * mesh_.topology().pipeline; }

  absl::StatusOr<Round> Gathered(int shift, const PassTrace& trace) const {
    Round round = {.shift = shift, .events = trace.events(), .summaries = {}};
    TESSERA_ASSIGN_OR_RETURN(round.summaries, GatherAll({trace.Summary()}, mesh_.world()));
    return round;
  }
  absl::StatusOr<Round> Repeat(int shift) const {
    TESSERA_ASSIGN_OR_RETURN(const PassTrace trace, pass_(shift));
    return Gathered(shift, trace);
  }
  // Returns a replica's results of a round, of all of its ranks.
  std::vector<int64_t> ResultOf(const Round& round, int replica) const {
    std::vector<int64_t> result;
    for (int position = 0; position < positions(); ++position) {
      result.push_back(round.summaries[RankOf(replica, position)]);
    }
    return result;
  }

  absl::Status Judge(const Round& first, const Round& second,
                     std::vector<Finding>& findings) const {
    TESSERA_ASSIGN_OR_RETURN(const Round original_again, Repeat(0));
    TESSERA_ASSIGN_OR_RETURN(const Round repeated_again, Repeat(turn_.shift));
    std::optional<Round> third;
    if (turn_.shift != 0 && replicas() > 2) {
      TESSERA_ASSIGN_OR_RETURN(third, Repeat(turn_.shift == 1 ? 2 : 1));
    }
    for (Finding& finding : findings) {
      Repetitions results = {.original = ResultOf(first, finding.original),
                             .repeated = ResultOf(second, finding.repeater),
                             .original_again = ResultOf(original_again, finding.original),
                             .repeated_again = ResultOf(repeated_again, finding.repeater),
                             .third = {}};
      if (third.has_value()) {
        results.third = ResultOf(*third, RepeaterOf(finding.original, third->shift));
      }
      finding.verdict = turn_.shift == 0 ? JudgeOwnRepetitions(results) : JudgeRepetitions(results);
    }
    if (turn_.shift == 0) return absl::OkStatus();
    std::vector<bool> varies;
    for (int replica = 0; replica < replicas(); ++replica) {
      varies.push_back(ResultOf(first, replica) != ResultOf(original_again, replica) ||
                       ResultOf(second, replica) != ResultOf(repeated_again, replica));
    }
    DecideByOthers(std::move(varies), findings);
    return absl::OkStatus();
  }

  // Decides a finding that blames both replicas, if another finding has proven one of them wrong.
  // `wrong[r]`: replica r does not repeat its own result.
  static void DecideByOthers(std::vector<bool> wrong, std::vector<Finding>& findings) {
    const auto undecided = [](const Finding& finding) {
      return finding.verdict.original_is_wrong && finding.verdict.repeater_is_wrong;
    };
    for (const Finding& finding : findings) {
      if (undecided(finding)) continue;
      wrong[finding.verdict.original_is_wrong ? finding.original : finding.repeater] = true;
    }
    for (Finding& finding : findings) {
      if (!undecided(finding) || wrong[finding.original] == wrong[finding.repeater]) continue;
      finding.verdict = {.original_is_wrong = wrong[finding.original],
                         .repeater_is_wrong = wrong[finding.repeater],
                         .why = "as with another micro-batch"};
    }
  }

  // Returns the event of this rank's position that differs first between the original and its
  // repetition, by finding; the number of events if none does.
  absl::StatusOr<std::vector<size_t>> FirstDifferences(const Round& first, const Round& second,
                                                       const std::vector<Finding>& findings) const {
    std::vector<int64_t> used, repeated;
    for (const PassTrace::Event& event : first.events) used.push_back(event.digest);
    for (const PassTrace::Event& event : second.events) repeated.push_back(event.digest);
    const size_t events = used.size();
    TESSERA_ASSIGN_OR_RETURN(used, GatherAll(used, mesh_.host().data));
    TESSERA_ASSIGN_OR_RETURN(repeated, GatherAll(repeated, mesh_.host().data));
    std::vector<size_t> differences;
    for (const Finding& finding : findings) {
      const auto original = used.begin() + finding.original * events;
      const auto repetition = repeated.begin() + finding.repeater * events;
      differences.push_back(std::mismatch(original, original + events, repetition).first -
                            original);
    }
    return differences;
  }

  // Returns "rank 3 (node-7)", or "rank 2 (node-7) or rank 3 (node-7)", on all ranks.
  absl::StatusOr<std::string> Names(int replica, const std::vector<int>& positions) const {
    std::vector<std::string> names;
    for (const int position : positions) {
      const int rank = RankOf(replica, position);
      TESSERA_ASSIGN_OR_RETURN(const std::string host, FromRank(rank, HostOfThisRank()));
      names.push_back(absl::StrCat("rank ", rank, " (", host, ")"));
    }
    return absl::StrJoin(names, " or ");
  }
  absl::StatusOr<std::string> FromRank(int rank, const std::string& text) const {
    if (mesh_.world() == nullptr) return text;
    return mesh_.world()->BroadcastBytes(text, rank, kCall);
  }

  absl::StatusOr<std::string> Describe(const Round& first, const Round& second,
                                       const std::vector<Finding>& findings,
                                       const std::vector<int64_t>& numbers) const {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<size_t> differences,
                             FirstDifferences(first, second, findings));
    std::vector<int64_t> orders;
    for (const size_t i : differences) {
      orders.push_back(i < first.events.size() ? first.events[i].order : kNoEvent);
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> all, GatherAll(orders, mesh_.world()));
    std::vector<std::string> texts;
    for (size_t i = 0; i < findings.size(); ++i) {
      // A position's ranks have all seen the same.
      std::vector<int> earliest;
      int64_t order = kNoEvent;
      for (int position = 0; position < positions(); ++position) {
        const int64_t here = all[RankOf(0, position) * findings.size() + i];
        if (here > order || here == kNoEvent) continue;
        if (here < order) earliest.clear();
        order = here;
        earliest.push_back(position);
      }
      const size_t mine = differences[i];
      TESSERA_ASSIGN_OR_RETURN(const std::string what,
                               FromRank(RankOf(0, earliest.front()),
                                        mine < first.events.size() ? first.events[mine].what : ""));
      TESSERA_ASSIGN_OR_RETURN(std::string text, Describe(findings[i], numbers, earliest, what));
      texts.push_back(std::move(text));
    }
    return absl::StrJoin(texts, "; ");
  }

  absl::StatusOr<std::string> Describe(const Finding& finding, const std::vector<int64_t>& numbers,
                                       const std::vector<int>& earliest,
                                       const std::string& what) const {
    TESSERA_ASSIGN_OR_RETURN(const std::string original, Names(finding.original, earliest));
    TESSERA_ASSIGN_OR_RETURN(const std::string repeater, Names(finding.repeater, earliest));
    const ReplayVerdict& verdict = finding.verdict;
    std::vector<std::string> wrong;
    if (verdict.original_is_wrong) wrong.push_back(original);
    if (verdict.repeater_is_wrong && repeater != original) wrong.push_back(repeater);
    return absl::StrCat("micro-batch ", numbers[finding.original], ", computed by ", original,
                        " and again by ", repeater, ", differs in ", what,
                        ": silent corruption. At fault: ", absl::StrJoin(wrong, " or "), " (",
                        verdict.why, ")");
  }

  const ReplayTurn turn_;
  const Mesh& mesh_;
  const ReplayPass& pass_;
};

}  // namespace

std::optional<ReplayTurn> ReplayTurnAfter(int64_t completed_steps, int64_t interval, int replicas,
                                          int64_t micro_batches) {
  if (interval == 0 || completed_steps % interval != 0) return std::nullopt;
  const int64_t check = completed_steps / interval - 1;
  const int64_t pairs = std::max(replicas - 1, 1);
  return ReplayTurn{.shift = replicas > 1 ? static_cast<int>(1 + check % pairs) : 0,
                    .micro_batch = check / pairs % micro_batches};
}

ReplayVerdict JudgeRepetitions(const Repetitions& results) {
  const bool original_varies = results.original_again != results.original;
  const bool repeater_varies = results.repeated_again != results.repeated;
  ReplayVerdict verdict = {.original_is_wrong = original_varies,
                           .repeater_is_wrong = repeater_varies,
                           .why = "the results of both vary"};
  if (original_varies != repeater_varies) {
    const bool once = original_varies ? results.original_again == results.repeated
                                      : results.repeated_again == results.original;
    verdict.why = once ? "once: its second result equals the other's" : "its results vary";
    return verdict;
  }
  if (original_varies) return verdict;
  if (!results.third.empty() && results.third == results.repeated) {
    verdict.original_is_wrong = true;
    verdict.why = "again and again: a third replica agrees with the other";
  } else if (!results.third.empty() && results.third == results.original) {
    verdict.repeater_is_wrong = true;
    verdict.why = "again and again: a third replica agrees with the other";
  } else {
    verdict.original_is_wrong = verdict.repeater_is_wrong = true;
    verdict.why = results.third.empty()
                      ? "each repeats its own result, and there is no third replica to decide"
                      : "each repeats its own result, and a third replica has another";
  }
  return verdict;
}

ReplayVerdict JudgeOwnRepetitions(const Repetitions& results) {
  const bool once =
      results.original_again == results.repeated_again &&
      (results.original_again == results.original || results.original_again == results.repeated);
  return {.original_is_wrong = true,
          .repeater_is_wrong = true,
          .why = once ? "once: of four results, three are equal" : "its results vary"};
}

absl::StatusOr<std::string> CheckReplay(const ReplayTurn& turn, const PassTrace& used,
                                        const std::vector<int64_t>& global_micro_batch,
                                        const Mesh& mesh, const ReplayPass& pass) {
  return Check(turn, mesh, pass).Run(used, global_micro_batch);
}

}  // namespace tessera
