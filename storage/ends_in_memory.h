#ifndef TESSERA_STORAGE_ENDS_IN_MEMORY_H_
#define TESSERA_STORAGE_ENDS_IN_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "storage/storage.h"

namespace tessera {

// A file, of which the beginning and the end of a part are in memory: for a part with many small
// records around something large, as archives are. Thread-safe.
class EndsInMemory final : public ReadableFile {
 public:
  static constexpr uint64_t kBytes = 4096;  // of each end

  // Reads the ends. Precondition: the part lies in the file, which must outlive this one. Errors:
  // those of reading.
  static absl::StatusOr<EndsInMemory> Create(const ReadableFile& file, uint64_t offset_bytes,
                                             uint64_t size_bytes) {
    EndsInMemory ends(file);
    const uint64_t first = size_bytes <= 2 * kBytes ? size_bytes : kBytes;
    const uint64_t last = std::min(size_bytes - first, kBytes);
    for (const auto& [offset, bytes] :
         {std::pair(offset_bytes, first), std::pair(offset_bytes + size_bytes - last, last)}) {
      std::vector<std::byte>& end = ends.bytes_[offset];
      end.resize(bytes);
      TESSERA_RETURN_IF_ERROR(file.ReadAt(offset, end));
    }
    return ends;
  }

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    const auto after = bytes_.upper_bound(offset_bytes);
    if (after == bytes_.begin()) return file_.ReadAt(offset_bytes, out);
    const auto& [begin, bytes] = *std::prev(after);
    const uint64_t at = offset_bytes - begin;
    if (at > bytes.size() || out.size() > bytes.size() - at) return file_.ReadAt(offset_bytes, out);
    std::ranges::copy(std::span(bytes).subspan(at, out.size()), out.begin());
    return absl::OkStatus();
  }
  uint64_t size_bytes() const override { return file_.size_bytes(); }
  StatedChecksums* stated_checksums() const override { return file_.stated_checksums(); }

 private:
  explicit EndsInMemory(const ReadableFile& file) : file_(file) {}

  const ReadableFile& file_;
  std::map<uint64_t, std::vector<std::byte>> bytes_;  // by their offset
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_ENDS_IN_MEMORY_H_
