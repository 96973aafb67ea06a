#ifndef TESSERA_TOKENIZER_METASPACE_H_
#define TESSERA_TOKENIZER_METASPACE_H_

#include <string>
#include <string_view>

namespace tessera {

// What Hugging Face's pre-tokenizer of this name does to what lies between added tokens: spaces
// become U+2581, and one is put before.
struct Metaspace {
  enum class Prefix { kNever, kFirst, kAlways };

  Prefix prefix = Prefix::kAlways;  // kFirst: only at the beginning of the text
  // Whether U+2581 begins a piece.
  bool split = true;

  // A part that begins with a space gets no other one.
  std::string Apply(std::string_view part, bool first) const;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_METASPACE_H_
