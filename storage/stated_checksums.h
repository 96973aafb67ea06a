#ifndef TESSERA_STORAGE_STATED_CHECKSUMS_H_
#define TESSERA_STORAGE_STATED_CHECKSUMS_H_

#include <cstdint>
#include <string>

namespace tessera {

// Receives checksums that a file states of its own parts, as zip archives do, from the code that
// parses the file. A file that has such a receiver compares the parts with what is read of them.
// Thread-safe.
class StatedChecksums {
 public:
  virtual ~StatedChecksums() = default;

  // A part of a file with its CRC-32 as zlib computes it.
  struct Part {
    std::string name;  // for messages
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;
    uint32_t crc32 = 0;
  };
  virtual void Add(Part part) = 0;
  // Reports that the file could have stated checksums, but its writer left them out.
  virtual void AddUnchecked() = 0;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_STATED_CHECKSUMS_H_
