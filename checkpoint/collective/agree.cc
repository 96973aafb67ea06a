#include "checkpoint/collective/agree.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
  }
  return message;
}

absl::Status ToStatus(const RankMessage& message) {
  return absl::Status(static_cast<absl::StatusCode>(message.code()), message.error());
}

// Ranks with equal errors are named together: a thousand ranks that miss one file yield one
// message.
struct SharedError {
  absl::StatusCode code;
  std::string text;
  std::vector<size_t> ranks;
};

absl::Status JoinErrors(const std::vector<SharedError>& errors, size_t group_size) {
  if (group_size == 1) return absl::Status(errors[0].code, errors[0].text);
  std::vector<std::string> lines;
  for (const SharedError& error : errors) {
    std::string ranks = absl::StrJoin(
        error.ranks.begin(), error.ranks.begin() + std::min<size_t>(error.ranks.size(), 8), ", ");
    if (error.ranks.size() > 8) absl::StrAppend(&ranks, " and ", error.ranks.size() - 8, " more");
    lines.push_back(
        absl::StrCat(error.ranks.size() == 1 ? "rank " : "ranks ", ranks, ": ", error.text));
  }
  return absl::Status(errors[0].code, absl::StrJoin(lines, "\n"));
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
    const absl::StatusCode code = static_cast<absl::StatusCode>(message.code());
    size_t e = 0;
    while (e < errors.size() && (errors[e].code != code || errors[e].text != message.error())) ++e;
    if (e == errors.size()) errors.push_back({code, message.error(), {}});
    errors[e].ranks.push_back(rank);
  }
  if (!errors.empty()) return JoinErrors(errors, gathered.size());
  return payloads;
}

absl::StatusOr<std::string> CombineAll(const std::vector<std::string>& gathered,
                                       const Combine& combine) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> payloads, PayloadsOf(gathered));
  return combine(payloads);
}

// One message per rank: its answer, or the common error.
std::vector<std::string> CombineEachOf(const std::vector<std::string>& gathered,
                                       const CombineEach& combine) {
  const auto answers = [&]() -> absl::StatusOr<std::vector<std::string>> {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> payloads, PayloadsOf(gathered));
    TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> combined, combine(payloads));
    if (combined.size() == gathered.size()) return combined;
    return absl::InternalError(
        absl::StrCat(combined.size(), " answers for ", gathered.size(), " ranks"));
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
