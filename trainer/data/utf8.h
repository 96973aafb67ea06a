#ifndef TESSERA_TRAINER_DATA_UTF8_H_
#define TESSERA_TRAINER_DATA_UTF8_H_

#include <cstddef>
#include <string_view>

namespace tessera {

// Bytes of the character that `text` begins with, 0 when that is not a well-formed one (Unicode 15,
// table 3-7: overlong forms, surrogates and values past U+10FFFF are not) or when text is empty.
size_t Utf8Length(std::string_view text);

bool IsUtf8(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_UTF8_H_
