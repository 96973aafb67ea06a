#ifndef TESSERA_BASE_UTF8_H_
#define TESSERA_BASE_UTF8_H_

#include <cstddef>
#include <string_view>

namespace tessera {

// Well-formed UTF-8 according to RFC 3629: no overlong forms, no surrogates, nothing above
// U+10FFFF.

// Length in bytes of the first character of `text`; 0 when that is not well-formed or when text is
// empty.
size_t Utf8Length(std::string_view text);

bool IsValidUtf8(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_BASE_UTF8_H_
