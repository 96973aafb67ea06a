#ifndef TESSERA_TOKENIZER_BPE_SPLIT_RULES_H_
#define TESSERA_TOKENIZER_BPE_SPLIT_RULES_H_

// Pre-tokenisation: text is split into pieces, which are encoded one by one. Vocabulary files
// specify it as a regular expression. The expressions of GPT-2 and its successors are implemented
// here as loops; their matches cover every text, in time proportional to its length.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

// The classes of characters that pre-tokenisation distinguishes, as of Unicode 16: \p{L}, \p{N}, \s
// (White_Space) and the rest.
enum class CharacterClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// Precondition: `character` is one well-formed character of UTF-8.
uint32_t CodePoint(std::string_view character);

// Returns the class of a character. Precondition: code_point <= 0x10FFFF.
CharacterClass ClassOf(uint32_t code_point);

struct Character {
  CharacterClass kind = CharacterClass::kOther;
  uint8_t length = 0;  // in bytes
};

// Returns the first character of a text that is not empty. A byte that does not begin a well-formed
// character is a character of class kOther.
Character FirstCharacter(std::string_view text);

struct SplitRules {
  // Whether 's, 't, 're, 've, 'm, 'll, 'd are contractions in any case, or in lower case only.
  bool contractions_in_any_case = false;
  // Whether a word may begin with any character but a letter, a number or the end of a line,
  // [^\r\n\p{L}\p{N}]?\p{L}+. Otherwise it may begin with a space only, ` ?\p{L}+`.
  bool any_prefix = false;
  // Numbers are ` ?\p{N}+` if 0, or \p{N}{1,max_digits}.
  int max_digits = 0;
  // Whether numbers are split off first, so that the space before one is not a part of it.
  bool numbers_apart = false;
  // Whether line ends belong to the punctuation before them, and otherwise to the spaces before
  // them: ` ?[^\s\p{L}\p{N}]+[\r\n]*` and `\s*[\r\n]+`.
  bool line_ends = false;
  // Whether the spaces at the end of the text are one piece, line ends or not: \s++$.
  bool whole_tail = false;

  bool operator==(const SplitRules&) const = default;
};

// Returns the rules that a regular expression states; nullopt for an unknown one.
std::optional<SplitRules> FindSplitRules(std::string_view regex);

// Returns a regular expression for the rules of a known one, as Hugging Face's tokenizers
// understand it.
std::string_view SplitRegex(const SplitRules& rules);

// Returns the length of the first piece of a text that is not empty. Invalid UTF-8 counts as
// punctuation.
size_t PieceLength(const SplitRules& rules, std::string_view text);

// The expressions of the original programs.
inline constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kCl100kRegex =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+)"
    R"(|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
inline constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_SPLIT_RULES_H_
