#include "operations/summary.h"

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"

namespace tessera::ckpt {

uint64_t TensorBytes(const LogicalTensor& tensor) {
  return ElementCount(GlobalShape(tensor)) * ElementSize(FromProto(tensor.dtype()));
}

std::string TopologyText(const TopologyProto& topology) {
  if (topology.data_parallel() == 0) return "-";
  return ToString(FromProto(topology));
}

std::string TimeText(int64_t unix_ms) {
  if (unix_ms == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(unix_ms),
                          absl::UTCTimeZone());
}

std::string DigestText(const Digest& digest) {
  return absl::StrFormat("%016x%016x", digest.hi(), digest.lo());
}

std::string NumberText(double value) { return absl::StrFormat("%.6g", value); }

}  // namespace tessera::ckpt
