#ifndef TESSERA_CHECKPOINT_BASE_UTF8_H_
#define TESSERA_CHECKPOINT_BASE_UTF8_H_

#include <string_view>

namespace tessera::ckpt {

// True for well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
bool IsValidUtf8(std::string_view text);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_BASE_UTF8_H_
