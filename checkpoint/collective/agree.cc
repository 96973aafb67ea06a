#include "checkpoint/collective/agree.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/no_memory.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "checkpoint/collective/rank_message.pb.h"

namespace tessera::ckpt {
namespace {

// Scatter() uses a tree. The subtree of rank r is the ranks [r, r + span): span is the lowest set
// bit of r, limited by the size of the group; for rank 0 all of them. Its children are r + span/2,
// r + span/4, ..., each the head of its half.
//
// A rank receives its subtree's parts as one message: the number of bytes that follow; then the
// length of each part; then the parts.

using Message = std::vector<std::byte>;

struct Subtree {
  int first;
  int end;
};

int SpanOf(int rank, int size) {
  return rank == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : rank & -rank;
}

// Returns the widest subtree first, so that the longest path is started first.
std::vector<Subtree> ChildrenOf(int rank, int size) {
  std::vector<Subtree> children;
  for (int half = SpanOf(rank, size) / 2; half >= 1; half /= 2) {
    if (rank + half < size) children.push_back({rank + half, std::min(rank + 2 * half, size)});
  }
  return children;
}

// Views of the parts of ranks first, first + 1, ...
using Parts = std::vector<std::string_view>;

Message Pack(const Parts& parts, int first, Subtree subtree) {
  uint64_t bytes = 8 * (subtree.end - subtree.first);
  for (int r = subtree.first; r < subtree.end; ++r) bytes += parts[r - first].size();
  Message message(bytes);
  std::byte* length_at = message.data();
  std::byte* at = message.data() + 8 * (subtree.end - subtree.first);
  for (int r = subtree.first; r < subtree.end; ++r) {
    const std::string_view part = parts[r - first];
    const uint64_t length = part.size();
    std::memcpy(length_at, &length, 8);
    length_at += 8;
    if (length > 0) std::memcpy(at, part.data(), length);
    at += length;
  }
  return message;
}

absl::StatusOr<Parts> Unpack(const Message& message, size_t count) {
  const auto bad = [] { return absl::InternalError("a scattered message that cannot be parsed"); };
  if (message.size() < 8 * count) return bad();
  Parts parts;
  size_t at = 8 * count;
  for (size_t i = 0; i < count; ++i) {
    uint64_t length;
    std::memcpy(&length, message.data() + 8 * i, 8);
    if (length > message.size() - at) return bad();
    parts.emplace_back(reinterpret_cast<const char*>(message.data()) + at, length);
    at += length;
  }
  return parts;
}

absl::Status Receive(ProcessGroup& group, int source, Message& message, absl::Duration timeout) {
  uint64_t bytes = 0;
  TESSERA_RETURN_IF_ERROR(
      group.StartReceive(std::as_writable_bytes(std::span(&bytes, 1)), source)->Wait(timeout));
  message.resize(bytes);
  return group.StartReceive(message, source)->Wait(timeout);
}

struct Send {
  uint64_t bytes;
  Message message;
  std::unique_ptr<PendingMessage> size_transfer;
  std::unique_ptr<PendingMessage> transfer;
};

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

// Protobuf makes an empty text of a message above 2 GiB, which would be an empty answer.
std::string ToBytes(const absl::StatusOr<std::string>& result) {
  std::string bytes = ToMessage(result).SerializeAsString();
  if (!bytes.empty() || !result.ok() || result->empty()) return bytes;
  return ToBytes(absl::ResourceExhaustedError(absl::StrCat(
      "a message of ", result->size(), " bytes: ranks can exchange less than 2 GiB at once")));
}

absl::Status ToStatus(const RankMessage& message) {
  absl::Status status(static_cast<absl::StatusCode>(message.code()), message.error());
  for (const auto& [name, lines] : message.details()) status.SetPayload(name, absl::Cord(lines));
  return status;
}

// Ranks with equal errors are named together: a thousand ranks that miss a file yield one message.
struct SharedError {
  absl::Status status;
  std::vector<uint32_t> ranks;
};

// Adds the payloads that all errors have, and the mark of those that lack space.
absl::Status WithPayloads(absl::Status joined, const std::vector<SharedError>& errors) {
  errors[0].status.ForEachPayload([&](absl::string_view name, const absl::Cord&) {
    std::vector<std::string> lines;
    for (const SharedError& error : errors) {
      const absl::optional<absl::Cord> payload = error.status.GetPayload(name);
      if (!payload.has_value()) return;
      const std::string text(*payload);
      for (const absl::string_view line : absl::StrSplit(text, '\n')) {
        for (const uint32_t rank : error.ranks) lines.push_back(absl::StrCat(rank, " ", line));
      }
    }
    joined.SetPayload(name, absl::Cord(absl::StrJoin(lines, "\n")));
  });
  const auto lacks_space = [](const SharedError& error) { return IsNoSpace(error.status); };
  if (!IsNoSpace(joined) && std::ranges::any_of(errors, lacks_space)) MarkNoSpace(joined);
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
    lines.push_back(absl::StrCat(NameRanks(error.ranks), ": ", error.status.message()));
  }
  return WithPayloads(absl::Status(first.code(), absl::StrJoin(lines, "\n")), errors);
}

absl::StatusOr<std::vector<std::string>> PayloadsOf(const std::vector<std::string>& gathered) {
  std::vector<SharedError> errors;
  std::vector<std::string> payloads;
  for (uint32_t rank = 0; rank < gathered.size(); ++rank) {
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
  absl::StatusOr<std::string> combined =
      CatchExceptions("combine the ranks' messages", [&] { return combine(payloads); });
  if (!combined.ok()) return OfRank0(combined.status());
  return combined;
}

// Returns one message per rank: its answer, or the common error.
std::vector<std::string> CombineEachOf(const std::vector<std::string>& gathered,
                                       const CombineEach& combine) {
  const auto answers = [&]() -> absl::StatusOr<std::vector<std::string>> {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> payloads, PayloadsOf(gathered));
    absl::StatusOr<std::vector<std::string>> combined =
        CatchExceptions("combine the ranks' messages", [&] { return combine(payloads); });
    if (!combined.ok()) return OfRank0(combined.status());
    if (combined->size() == gathered.size()) return combined;
    return absl::InternalError(
        absl::StrCat(combined->size(), " answers for ", gathered.size(), " ranks"));
  }();
  if (!answers.ok()) return std::vector<std::string>(gathered.size(), ToBytes(answers.status()));
  std::vector<std::string> messages;
  messages.reserve(gathered.size());
  for (const std::string& answer : *answers) messages.push_back(ToBytes(answer));
  return messages;
}

absl::StatusOr<std::vector<std::string>> GatherAll(ProcessGroup& group,
                                                   const absl::StatusOr<std::string>& mine,
                                                   absl::Duration timeout) {
  TESSERA_RETURN_IF_ERROR(group.abandoned());
  auto gathered = group.Gather(ToBytes(mine), timeout);
  if (!gathered.ok()) return AbandonGroup(group, gathered.status());
  return gathered;
}

absl::StatusOr<std::string> FromMessage(ProcessGroup& group,
                                        const absl::StatusOr<std::string>& reply) {
  if (!reply.ok()) return AbandonGroup(group, reply.status());
  TESSERA_ASSIGN_OR_RETURN(RankMessage message, AnswerFrom<RankMessage>(group, *reply));
  if (message.code() != 0) return ToStatus(message);
  return std::move(*message.mutable_payload());
}

}  // namespace

absl::Status BadMessageFrom(size_t rank) {
  return absl::InternalError(absl::StrCat("rank ", rank, " sent a message that cannot be parsed"));
}

std::string NameRanks(const std::vector<uint32_t>& ranks) {
  const size_t named = std::min<size_t>(ranks.size(), 8);
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(ranks.begin(), ranks.begin() + named, ", "),
      ranks.size() > named ? absl::StrCat(" and ", ranks.size() - named, " more") : "");
}

absl::Status AbandonGroup(ProcessGroup& group, const absl::Status& error) {
  group.Abandon(
      absl::Status(error.code(), absl::StrCat("waiting for the other ranks: ", error.message())));
  return group.abandoned();
}

absl::Status AbandonGroup(ProcessGroup& group, const std::exception& error, const char* action) {
  if (group.size() == 1) return ExceptionStatus(error, action);
  char text[128];
  std::snprintf(text, sizeof(text), "%s (the other ranks wait: the group cannot be used again)",
                action);
  group.Abandon(ExceptionStatus(error, text));
  return group.abandoned();
}

absl::StatusOr<std::string> Scatter(ProcessGroup& group, std::span<const std::string> parts,
                                    absl::Duration timeout) {
  const int rank = group.rank(), size = group.size();
  Message received;
  Parts mine;
  if (rank == 0) {
    if (parts.size() != static_cast<size_t>(size)) {
      return absl::InternalError(
          absl::StrCat(parts.size(), " parts to scatter over ", size, " ranks"));
    }
    mine.assign(parts.begin(), parts.end());
  } else {
    const int span = SpanOf(rank, size);
    TESSERA_RETURN_IF_ERROR(Receive(group, rank - span, received, timeout));
    TESSERA_ASSIGN_OR_RETURN(mine, Unpack(received, std::min(span, size - rank)));
  }
  const std::vector<Subtree> children = ChildrenOf(rank, size);
  std::vector<Send> sends(children.size());
  for (size_t c = 0; c < children.size(); ++c) {
    sends[c].message = Pack(mine, rank, children[c]);
    sends[c].bytes = sends[c].message.size();
    sends[c].size_transfer =
        group.StartSend(std::as_bytes(std::span(&sends[c].bytes, 1)), children[c].first);
    sends[c].transfer = group.StartSend(sends[c].message, children[c].first);
  }
  for (Send& send : sends) {
    TESSERA_RETURN_IF_ERROR(send.size_transfer->Wait(timeout));
    TESSERA_RETURN_IF_ERROR(send.transfer->Wait(timeout));
  }
  return std::string(mine[0]);
}

absl::StatusOr<std::string> Agree(ProcessGroup& group, const absl::StatusOr<std::string>& mine,
                                  const Combine& combine, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                           GatherAll(group, mine, timeout));
  std::string verdict;
  if (group.rank() == 0) verdict = ToBytes(CombineAll(gathered, combine));
  return FromMessage(group, group.Broadcast(verdict, timeout));
}

absl::StatusOr<std::string> AgreeEach(ProcessGroup& group, const absl::StatusOr<std::string>& mine,
                                      const CombineEach& combine, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                           GatherAll(group, mine, timeout));
  std::vector<std::string> messages;
  if (group.rank() == 0) messages = CombineEachOf(gathered, combine);
  return FromMessage(group, Scatter(group, messages, timeout));
}

absl::Status AgreeOnStatus(ProcessGroup& group, const absl::Status& mine, absl::Duration timeout) {
  absl::StatusOr<std::string> result = std::string();
  if (!mine.ok()) result = mine;
  const Combine nothing = [](const std::vector<std::string>&) { return std::string(); };
  return Agree(group, result, nothing, timeout).status();
}

}  // namespace tessera::ckpt
