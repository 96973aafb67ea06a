#ifndef TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_REFERENCE_H_
#define TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_REFERENCE_H_

#include <string>
#include <vector>

namespace tessera {

// Returns the SentencePiece library's own encoding of a text, for tests to compare with. Uses no
// Abseil, because the library's header clashes with it.
std::vector<int> ReferenceEncode(const std::string& model, const std::string& text);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_REFERENCE_H_
