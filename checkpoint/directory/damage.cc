#include "checkpoint/internal/damage.h"

// The payload is text, since absl::Status prints it: a line "4096 8192 model.safetensors" for each
// part. Each agreement puts the rank in front, and an error may pass through two agreements.

#include <cstddef>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tessera::ckpt {
namespace {

constexpr char kDamagedParts[] = "tessera.ckpt.damaged";
constexpr size_t kMostParts = 8;

}  // namespace

bool MayBeDamage(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status);
}

absl::Status WithDamagedParts(absl::Status status, std::vector<DamagedPart> parts) {
  if (!MayBeDamage(status) || status.GetPayload(kDamagedParts).has_value()) return status;
  if (parts.empty()) parts.emplace_back();
  if (parts.size() > kMostParts) parts.resize(kMostParts);
  const auto line = [](std::string* text, const DamagedPart& part) {
    absl::StrAppend(text, part.begin_bytes, " ", part.end_bytes, " ", part.file);
  };
  status.SetPayload(kDamagedParts, absl::Cord(absl::StrJoin(parts, "\n", line)));
  return status;
}

std::optional<std::vector<DamagedPart>> FindDamagedParts(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kDamagedParts);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  std::vector<DamagedPart> parts;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() < 3) return std::nullopt;
    const size_t at = words.size() - 3;  // names of data files have no spaces
    DamagedPart part;
    if (!absl::SimpleAtoi(words[at], &part.begin_bytes) ||
        !absl::SimpleAtoi(words[at + 1], &part.end_bytes) ||
        (at > 0 && !absl::SimpleAtoi(words[at - 1], &part.rank))) {
      return std::nullopt;
    }
    part.file = words[at + 2];
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace tessera::ckpt
