#ifndef TESSERA_STORAGE_WRITTEN_RANGES_H_
#define TESSERA_STORAGE_WRITTEN_RANGES_H_

// Records which bytes of a file have been written.

#include <cstdint>
#include <map>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// The ranges of a WritableFile that its writes have claimed. Each byte belongs to the first write
// that claims it, whether that write has ended or not, and also if it has failed. Memory: one entry
// for each gap between the ranges. As thread-safe as a map.
class WrittenRanges {
 public:
  // Claims a range for a write that is about to begin. FailedPrecondition, naming both ranges and
  // the file (`name`), if some of its bytes belong to another write: nothing is claimed then. An
  // empty range is never refused. Precondition: the end fits into 64 bits.
  absl::Status Claim(std::string_view name, uint64_t offset_bytes, uint64_t size_bytes);

  // Returns the ends of the ranges by their beginnings; no two ranges touch.
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }

  // Returns the length of the file.
  uint64_t end_bytes() const { return ranges_.empty() ? 0 : ranges_.rbegin()->second; }

 private:
  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_WRITTEN_RANGES_H_
