// A fuzz target: any bytes are a SentencePiece model or an error, and a text that a model encodes
// to ids that it can decode.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tokenizer/bpe/alphabet.h"
#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckText(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.Encode(text);
  Require(ids.ok());
  for (const int32_t id : *ids) Require(id >= 0 && id < tokenizer.vocab_size());
  const auto decoded = tokenizer.Decode(*ids);
  Require(decoded.ok());
  // With pieces of the model's user, U+2581 becomes a space.
  Require(WithSpaces(*decoded) == WithSpaces(text));
  Require(tokenizer.EncodablePrefix(text) <= text.size());
}

}  // namespace
}  // namespace tessera

void FuzzOneInput(const std::string& input) {
  const auto tokenizer = tessera::SentencePieceTokenizer::Parse("FILE", input);
  if (!tokenizer.ok()) return;
  tessera::CheckText(**tokenizer,
                     "  that caf\xC3\xA9 <u>\n\xE2\x96\x81 A\xEF\xAC\x81\xFF the  mat ");
  tessera::CheckText(**tokenizer, input);
  std::string pieces;
  for (int32_t id = 0; id < (*tokenizer)->vocab_size(); ++id) pieces += (*tokenizer)->TokenText(id);
  tessera::CheckText(**tokenizer, pieces);
}
