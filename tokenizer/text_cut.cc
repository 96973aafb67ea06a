#include "tokenizer/text_cut.h"

namespace tessera {

size_t LastCut(std::string_view text) {
  if (text.empty()) return 0;
  const size_t line_end = text.rfind('\n');
  if (line_end != text.npos) return line_end + 1;
  size_t end = text.size();
  for (int back = 0; back < 3 && end > 1 && (text[end - 1] & 0xC0) == 0x80; ++back) --end;
  // `end` is at a lead byte, or past a whole character: a lead byte stays with the bytes that
  // follow it.
  return (text[end - 1] & 0xC0) == 0xC0 && end > 1 ? end - 1 : text.size();
}

}  // namespace tessera
