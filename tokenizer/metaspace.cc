#include "tokenizer/metaspace.h"

#include "tokenizer/sentencepiece_model.h"

namespace tessera {

std::string Metaspace::Apply(std::string_view part, bool first) const {
  std::string text = WithSpaceMarks(part);
  const bool prefixed = prefix == Prefix::kAlways || (prefix == Prefix::kFirst && first);
  if (prefixed && !text.empty() && !text.starts_with(kSpaceMark)) text.insert(0, kSpaceMark);
  return text;
}

}  // namespace tessera
