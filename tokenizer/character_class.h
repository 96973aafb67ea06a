#ifndef TESSERA_TOKENIZER_CHARACTER_CLASS_H_
#define TESSERA_TOKENIZER_CHARACTER_CLASS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

// The classes by which pre-tokenisation splits text, as of Unicode 16: \p{L}, \p{N}, \s
// (White_Space) and the rest.
enum class CharacterClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// Precondition: code_point <= 0x10FFFF.
CharacterClass ClassOf(uint32_t code_point);

struct Character {
  CharacterClass kind = CharacterClass::kOther;
  uint8_t length = 0;  // in bytes
};

// The first character of a text that is not empty. A byte that does not begin a well-formed
// character is a character of class kOther.
Character FirstCharacter(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_CHARACTER_CLASS_H_
