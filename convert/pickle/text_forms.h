#ifndef TESSERA_CONVERT_PICKLE_TEXT_FORMS_H_
#define TESSERA_CONVERT_PICKLE_TEXT_FORMS_H_

// How protocol 0 writes texts in ASCII.

#include <optional>
#include <string>
#include <string_view>

namespace tessera::ckpt::pickle {

// A string of Python 2 as its repr() writes it: in quotes, with backslash escapes.
std::optional<std::string> DecodeQuoted(std::string_view line);

// Python's raw-unicode-escape, as UTF-8: \uXXXX and \UXXXXXXXX, all other bytes are Latin-1.
std::optional<std::string> DecodeRawUnicodeEscape(std::string_view line);

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_TEXT_FORMS_H_
