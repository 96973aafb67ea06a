#include "base/no_space.h"

#include "absl/strings/cord.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr char kNoSpace[] = "tessera.no_space";

}  // namespace

absl::Status NoSpaceError(std::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(View(message));
  MarkNoSpace(status);
  return status;
}

void MarkNoSpace(absl::Status& status) { status.SetPayload(kNoSpace, absl::Cord("space")); }

bool IsNoSpace(const absl::Status& status) { return status.GetPayload(kNoSpace).has_value(); }

}  // namespace tessera
