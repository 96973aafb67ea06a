#include "checkpoint/collective/scatter.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

// The subtree of rank r is the ranks [r, r + span): span is the lowest set bit of r, limited by the
// size of the group; for rank 0 all of them. Its children are r + span/2, r + span/4, ..., each the
// head of its half.
//
// A rank receives its subtree's parts as one message: the number of bytes that follow; then the
// length of each part; then the parts.

namespace tessera::ckpt {
namespace {

using Message = std::vector<std::byte>;

struct Subtree {
  int first;
  int end;
};

int SpanOf(int rank, int size) {
  return rank == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : rank & -rank;
}

// Widest first: the longest path is started first.
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

absl::Status Receive(ProcessGroup& group, int source, Message& message, absl::Duration deadline) {
  uint64_t bytes = 0;
  TESSERA_RETURN_IF_ERROR(
      group.StartReceive(std::as_writable_bytes(std::span(&bytes, 1)), source)->Wait(deadline));
  message.resize(bytes);
  return group.StartReceive(message, source)->Wait(deadline);
}

struct Send {
  uint64_t bytes;
  Message message;
  std::unique_ptr<PendingMessage> size_transfer;
  std::unique_ptr<PendingMessage> transfer;
};

}  // namespace

absl::StatusOr<std::string> Scatter(ProcessGroup& group, std::span<const std::string> parts,
                                    absl::Duration deadline) {
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
    TESSERA_RETURN_IF_ERROR(Receive(group, rank - span, received, deadline));
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
    TESSERA_RETURN_IF_ERROR(send.size_transfer->Wait(deadline));
    TESSERA_RETURN_IF_ERROR(send.transfer->Wait(deadline));
  }
  return std::string(mine[0]);
}

}  // namespace tessera::ckpt
