#include "checkpoint/base/utf8.h"

#include <cstddef>
#include <cstdint>

namespace tessera::ckpt {

bool IsValidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<uint8_t>(text[at]);
    if (lead < 0x80) {
      ++at;
      continue;
    }
    size_t tail;
    uint32_t code_point, smallest;
    if ((lead & 0xE0) == 0xC0) {
      tail = 1, code_point = lead & 0x1F, smallest = 0x80;
    } else if ((lead & 0xF0) == 0xE0) {
      tail = 2, code_point = lead & 0x0F, smallest = 0x800;
    } else if ((lead & 0xF8) == 0xF0) {
      tail = 3, code_point = lead & 0x07, smallest = 0x10000;
    } else {
      return false;
    }
    if (text.size() - at <= tail) return false;
    for (size_t i = 1; i <= tail; ++i) {
      const auto byte = static_cast<uint8_t>(text[at + i]);
      if ((byte & 0xC0) != 0x80) return false;
      code_point = code_point << 6 | (byte & 0x3F);
    }
    if (code_point < smallest || code_point > 0x10FFFF) return false;
    if (code_point >= 0xD800 && code_point <= 0xDFFF) return false;
    at += tail + 1;
  }
  return true;
}

}  // namespace tessera::ckpt
