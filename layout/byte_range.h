#ifndef TESSERA_LAYOUT_BYTE_RANGE_H_
#define TESSERA_LAYOUT_BYTE_RANGE_H_

#include <cstdint>

namespace tessera {

// Bytes [begin, end) of a file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

}  // namespace tessera

#endif  // TESSERA_LAYOUT_BYTE_RANGE_H_
