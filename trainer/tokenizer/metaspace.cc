#include "trainer/tokenizer/metaspace.h"

#include "trainer/tokenizer/sentencepiece_model.h"

namespace tessera {

std::string Metaspace::Apply(std::string_view part, bool first) const {
  std::string text;
  text.reserve(part.size() + part.size() / 2);
  const bool prefixed = prefix == Prefix::kAlways || (prefix == Prefix::kFirst && first);
  const bool begins_with_space = part.starts_with(' ') || part.starts_with(kSpaceMark);
  if (prefixed && !part.empty() && !begins_with_space) text += kSpaceMark;
  for (const char c : part) {
    if (c == ' ') {
      text += kSpaceMark;
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace tessera
