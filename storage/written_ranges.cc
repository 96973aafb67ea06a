#include "storage/written_ranges.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status WrittenRanges::Claim(std::string_view name, uint64_t offset_bytes,
                                  uint64_t size_bytes) {
  if (size_bytes == 0) return absl::OkStatus();
  uint64_t begin = offset_bytes, end = offset_bytes + size_bytes;
  const auto after = ranges_.lower_bound(end);  // the first range that begins at or behind the end
  if (after != ranges_.begin()) {
    const auto before = std::prev(after);
    if (before->second > begin) {
      return absl::FailedPreconditionError(absl::StrCat(
          "WriteAt ", std::string(name), ": bytes [", begin, ", ", end, ") overlap with bytes [",
          before->first, ", ", before->second, "), which another write has written"));
    }
    if (before->second == begin) {
      begin = before->first;
      ranges_.erase(before);
    }
  }
  if (after != ranges_.end() && after->first == end) {
    end = after->second;
    ranges_.erase(after);
  }
  ranges_.emplace(begin, end);
  return absl::OkStatus();
}

}  // namespace tessera
