#ifndef TESSERA_BASE_TEXT_VIEWS_H_
#define TESSERA_BASE_TEXT_VIEWS_H_

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/strings/string_view.h"

namespace tessera {

// The text as Abseil takes it: Debian's build has a string_view of its own.
inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// The bytes of a text.
inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace tessera

#endif  // TESSERA_BASE_TEXT_VIEWS_H_
