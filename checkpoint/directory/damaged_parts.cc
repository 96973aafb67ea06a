#include "checkpoint/directory/damaged_parts.h"

#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "checkpoint/directory/damaged_parts.pb.h"

namespace tessera::ckpt {
namespace {

constexpr char kDamagedParts[] = "tessera.ckpt.DamagedParts";

}  // namespace

bool MayBeDamage(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status);
}

absl::Status WithDamagedParts(absl::Status status, const std::vector<DamagedPart>& parts) {
  if (!MayBeDamage(status) || status.GetPayload(kDamagedParts).has_value()) return status;
  DamagedPartsMessage message;
  for (const DamagedPart& part : parts) {
    DamagedPartsMessage::Part& added = *message.add_parts();
    added.set_file(part.file);
    added.set_begin_bytes(part.begin_bytes);
    added.set_end_bytes(part.end_bytes);
  }
  status.SetPayload(kDamagedParts, absl::Cord(message.SerializeAsString()));
  return status;
}

std::optional<std::vector<DamagedPart>> FindDamagedParts(const absl::Status& status) {
  const absl::optional<absl::Cord> bytes = status.GetPayload(kDamagedParts);
  DamagedPartsMessage message;
  if (!bytes.has_value() || !message.ParseFromString(std::string(*bytes))) return std::nullopt;
  std::vector<DamagedPart> parts;
  for (const DamagedPartsMessage::Part& part : message.parts()) {
    parts.push_back({part.file(), part.begin_bytes(), part.end_bytes()});
  }
  return parts;
}

}  // namespace tessera::ckpt
