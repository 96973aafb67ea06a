#include "checkpoint/collective/agree.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "checkpoint/collective/rank_message.pb.h"
#include "checkpoint/collective/scatter.h"

namespace tessera::ckpt {
namespace {

RankMessage ToMessage(const absl::StatusOr<std::string>& result) {
  RankMessage message;
  message.set_code(static_cast<int32_t>(result.status().code()));
  if (result.ok()) {
    message.set_payload(*result);
  } else {
    message.set_error(std::string(result.status().message()));
    result.status().ForEachPayload([&](absl::string_view name, const absl::Cord& lines) {
      (*message.mutable_details())[std::string(name)] = std::string(lines);
    });
  }
  return message;
}

absl::Status ToStatus(const RankMessage& message) {
  absl::Status status(static_cast<absl::StatusCode>(message.code()), message.error());
  for (const auto& [name, lines] : message.details()) status.SetPayload(name, absl::Cord(lines));
  return status;
}

// Ranks with equal errors are named together: a thousand ranks that miss one file yield one
// message.
struct SharedError {
  absl::Status status;
  std::vector<size_t> ranks;
};

// Adds the payloads that all errors have.
absl::Status WithPayloads(absl::Status joined, const std::vector<SharedError>& errors) {
  errors[0].status.ForEachPayload([&](absl::string_view name, const absl::Cord&) {
    std::vector<std::string> lines;
    for (const SharedError& error : errors) {
      const absl::optional<absl::Cord> payload = error.status.GetPayload(name);
      if (!payload.has_value()) return;
      const std::string text(*payload);
      for (const absl::string_view line : absl::StrSplit(text, '\n')) {
        for (const size_t rank : error.ranks) lines.push_back(absl::StrCat(rank, " ", line));
      }
    }
    joined.SetPayload(name, absl::Cord(absl::StrJoin(lines, "\n")));
  });
  return joined;
}

absl::Status OfRank0(const absl::Status& status) {
  return WithPayloads(absl::Status(status.code(), status.message()), {{status, {0}}});
}

absl::Status JoinErrors(const std::vector<SharedError>& errors, size_t group_size) {
  const absl::Status& first = errors[0].status;
  if (group_size == 1) return OfRank0(first);
  std::vector<std::string> lines;
  for (const SharedError& error : errors) {
    std::string ranks = absl::StrJoin(
        error.ranks.begin(), error.ranks.begin() + std::min<size_t>(error.ranks.size(), 8), ", ");
    if (error.ranks.size() > 8) absl::StrAppend(&ranks, " and ", error.ranks.size() - 8, " more");
    lines.push_back(absl::StrCat(error.ranks.size() == 1 ? "rank " : "ranks ", ranks, ": ",
                                 error.status.message()));
  }
  return WithPayloads(absl::Status(first.code(), absl::StrJoin(lines, "\n")), errors);
}

absl::StatusOr<std::vector<std::string>> PayloadsOf(const std::vector<std::string>& gathered) {
  std::vector<SharedError> errors;
  std::vector<std::string> payloads;
  for (size_t rank = 0; rank < gathered.size(); ++rank) {
    RankMessage message;
    if (!message.ParseFromString(gathered[rank])) {
      message.set_code(static_cast<int32_t>(absl::StatusCode::kInternal));
      message.set_error("a message that cannot be parsed");
    }
    if (message.code() == 0) {
      payloads.push_back(std::move(*message.mutable_payload()));
      continue;
    }
    const absl::Status status = ToStatus(message);
    size_t e = 0;
    while (e < errors.size() && errors[e].status != status) ++e;
    if (e == errors.size()) errors.push_back({status, {}});
    errors[e].ranks.push_back(rank);
  }
  if (!errors.empty()) return JoinErrors(errors, gathered.size());
  return payloads;
}

absl::StatusOr<std::string> CombineAll(const std::vector<std::string>& gathered,
                                       const Combine& combine) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> payloads, PayloadsOf(gathered));
  absl::StatusOr<std::string> combined = combine(payloads);
  if (!combined.ok()) return OfRank0(combined.status());
  return combined;
}

// One message per rank: its answer, or the common error.
std::vector<std::string> CombineEachOf(const std::vector<std::string>& gathered,
                                       const CombineEach& combine) {
  const auto answers = [&]() -> absl::StatusOr<std::vector<std::string>> {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> payloads, PayloadsOf(gathered));
    absl::StatusOr<std::vector<std::string>> combined = combine(payloads);
    if (!combined.ok()) return OfRank0(combined.status());
    if (combined->size() == gathered.size()) return combined;
    return absl::InternalError(
        absl::StrCat(combined->size(), " answers for ", gathered.size(), " ranks"));
  }();
  if (!answers.ok()) {
    return std::vector<std::string>(gathered.size(),
                                    ToMessage(answers.status()).SerializeAsString());
  }
  std::vector<std::string> messages;
  messages.reserve(gathered.size());
  for (const std::string& answer : *answers)
    messages.push_back(ToMessage(answer).SerializeAsString());
  return messages;
}

absl::StatusOr<std::string> FromMessage(const std::string& told) {
  RankMessage message;
  if (!message.ParseFromString(told)) {
    return absl::InternalError("rank 0 sent a message that cannot be parsed");
  }
  if (message.code() != 0) return ToStatus(message);
  return std::move(*message.mutable_payload());
}

}  // namespace

absl::StatusOr<std::string> Agree(ProcessGroup& group, const absl::StatusOr<std::string>& mine,
                                  const Combine& combine, absl::Duration deadline,
                                  bool* everyone_reported) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                           group.Gather(ToMessage(mine).SerializeAsString(), deadline));
  if (everyone_reported != nullptr) *everyone_reported = group.rank() == 0;
  std::string verdict;
  if (group.rank() == 0) verdict = ToMessage(CombineAll(gathered, combine)).SerializeAsString();
  TESSERA_ASSIGN_OR_RETURN(const std::string told, group.Broadcast(verdict, deadline));
  return FromMessage(told);
}

absl::StatusOr<std::string> AgreeEach(ProcessGroup& group, const absl::StatusOr<std::string>& mine,
                                      const CombineEach& combine, absl::Duration deadline) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                           group.Gather(ToMessage(mine).SerializeAsString(), deadline));
  std::vector<std::string> messages;
  if (group.rank() == 0) messages = CombineEachOf(gathered, combine);
  TESSERA_ASSIGN_OR_RETURN(const std::string told, Scatter(group, messages, deadline));
  return FromMessage(told);
}

absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, absl::Duration deadline) {
  absl::StatusOr<std::string> result = std::string();
  if (!mine.ok()) result = mine;
  return Agree(
             group, result,
             [](const std::vector<std::string>&) -> absl::StatusOr<std::string> {
               return std::string();
             },
             deadline)
      .status();
}

}  // namespace tessera::ckpt
