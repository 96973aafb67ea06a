#include "tokenizer/byte_level.h"

#include <array>

namespace tessera {
namespace {

constexpr int kCharacters = 0x100 + 68;  // the alphabet lies below this code point

struct Alphabet {
  std::array<uint16_t, 256> character = {};    // by byte
  std::array<int16_t, kCharacters> byte = {};  // by code point; -1: not in the alphabet
};

constexpr bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet.character[byte] = static_cast<uint16_t>(IsPrintable(byte) ? byte : next++);
    alphabet.byte[alphabet.character[byte]] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string ByteLevelCharacter(uint8_t byte) {
  const int code = kAlphabet.character[byte];
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::optional<std::string> ByteLevelDecode(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    int code = static_cast<uint8_t>(token[i++]);
    if (code >= 0x80) {
      const bool two = code >= 0xC2 && code < 0xE0 && i < token.size() && (token[i] & 0xC0) == 0x80;
      if (!two) return std::nullopt;
      code = (code & 0x1F) << 6 | (token[i++] & 0x3F);
    }
    if (code >= kCharacters || kAlphabet.byte[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[code]);
  }
  return bytes;
}

}  // namespace tessera
