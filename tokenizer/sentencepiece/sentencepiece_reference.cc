#include "tokenizer/sentencepiece/sentencepiece_reference.h"

#include <sentencepiece_processor.h>

namespace tessera {

std::vector<int> ReferenceEncode(const std::string& model, const std::string& text) {
  sentencepiece::SentencePieceProcessor processor;
  if (!processor.LoadFromSerializedProto(model).ok()) return {-1};
  return processor.EncodeAsIds(text);
}

}  // namespace tessera
