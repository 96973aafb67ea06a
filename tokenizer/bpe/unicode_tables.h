#ifndef TESSERA_TOKENIZER_BPE_UNICODE_TABLES_H_
#define TESSERA_TOKENIZER_BPE_UNICODE_TABLES_H_

// Properties of characters, as make_unicode_tables.py writes them from Python's data. Each table is
// in ascending order.

#include <cstdint>
#include <span>

#include "tokenizer/bpe/split_rules.h"

namespace tessera {

struct ClassRange {
  char32_t first;
  char32_t last;
  CharacterClass kind;
};

// What normalization does to a character: a decomposition is its characters' index in the parts,
// and how many they are. A length of 0 stands for the character itself.
struct NormalForm {
  char32_t character;
  uint16_t canonical;
  uint16_t compatible;
  uint8_t combining_class;
  uint8_t canonical_length;
  uint8_t compatible_length;
};

struct Composition {
  char32_t first;
  char32_t second;
  char32_t composed;
};

// Letters, numbers and spaces, as of Unicode 16.
std::span<const ClassRange> UnicodeClasses();

// Without the syllables of Hangul, which are computed, and as of Unicode 9: newer characters have
// no entry.
std::span<const NormalForm> UnicodeForms();
std::span<const char32_t> UnicodeParts();
std::span<const Composition> UnicodeCompositions();

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_UNICODE_TABLES_H_
