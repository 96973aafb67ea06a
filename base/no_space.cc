#include "base/no_space.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr char kNoSpace[] = "tessera.no_space";
constexpr char kFileSize[] = "file size";
constexpr char kRoomComes[] = "tessera.room_comes";

}  // namespace

absl::Status NoSpaceError(std::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(View(message));
  MarkNoSpace(status);
  return status;
}

void MarkNoSpace(absl::Status& status) { status.SetPayload(kNoSpace, absl::Cord("space")); }

absl::Status FileTooLargeError(std::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(View(message));
  status.SetPayload(kNoSpace, absl::Cord(kFileSize));
  return status;
}

bool MayBeFreed(const absl::Status& status) {
  const auto lacks = status.GetPayload(kNoSpace);
  return lacks.has_value() && !absl::StrContains(std::string(*lacks), kFileSize);
}

void MarkRoomComes(absl::Status& status) { status.SetPayload(kRoomComes, absl::Cord("room")); }

bool RoomComes(const absl::Status& status) { return status.GetPayload(kRoomComes).has_value(); }

bool IsNoSpace(const absl::Status& status) { return status.GetPayload(kNoSpace).has_value(); }

}  // namespace tessera
