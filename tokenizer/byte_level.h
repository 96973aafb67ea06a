#ifndef TESSERA_TOKENIZER_BYTE_LEVEL_H_
#define TESSERA_TOKENIZER_BYTE_LEVEL_H_

// The alphabet in which GPT-2's vocabulary files write bytes: one printable character for each. The
// printable characters of Latin-1 stand for themselves; the other bytes are, in ascending order,
// the characters from U+0100 on.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

std::string ByteLevelCharacter(uint8_t byte);

// The bytes that a token stands for; nullopt where it has a character outside the alphabet.
std::optional<std::string> ByteLevelDecode(std::string_view token);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BYTE_LEVEL_H_
