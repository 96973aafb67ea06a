#ifndef TESSERA_TOKENIZER_BPE_BPE_TOKENIZER_H_
#define TESSERA_TOKENIZER_BPE_BPE_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizer/bpe/added_tokens.h"
#include "tokenizer/bpe/alphabet.h"
#include "tokenizer/bpe/merges.h"
#include "tokenizer/bpe/normalizers.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// A BPE vocabulary, as the files of GPT-2, tiktoken and Hugging Face describe it.
struct BpeVocabulary {
  // The bytes of each token; empty if the id has no token. Without added tokens.
  std::vector<std::string> tokens;
  // Ids that encoding never yields, with the text to which they decode.
  std::vector<SpecialToken> unreachable;
  std::vector<BpeMerge> merges;
  TextNormalizer normalizer;
  // Null: a ByteAlphabet of `tokens` and `split`.
  std::shared_ptr<const BpeAlphabet> alphabet;
  SplitRules split;
  // Whether a piece that is a token becomes that token, whatever the merges.
  bool whole_pieces_first = false;
  // How spaces are marked in the text between added tokens; nullopt: not at all.
  std::optional<Metaspace> metaspace;
  // Whether decoding drops the space that encoding puts before a text.
  bool drops_first_space = false;
  std::vector<AddedToken> added;
  int32_t end_of_text = -1;
  std::optional<int32_t> begin_of_text;
  std::vector<TokenizerFile> files;
};

// A tokenizer by byte-pair encoding. Lossless for any bytes, unless it normalises. Encodes valid
// UTF-8 as the same ids as the original programs.
class BpeTokenizer : public Tokenizer {
 public:
  // `path` is used in messages. Errors: those of ByteAlphabet; InvalidArgument if one id is two
  // tokens.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Create(const std::string& path,
                                                              BpeVocabulary vocabulary);

  std::string_view kind() const override { return "bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(texts_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  std::optional<int32_t> begin_of_text() const override { return begin_of_text_; }
  std::vector<SpecialToken> special_tokens() const override;
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override;
  absl::StatusOr<std::vector<int32_t>> EncodeWithSpecialTokens(
      std::string_view text) const override;
  // Cuts between a letter or a number and a space, as every split rule does. A tokenizer that
  // normalises, which may change a letter, does not cut at all.
  size_t EncodablePrefix(std::string_view text) const override;
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;
  std::string_view TokenText(int32_t id) const override;
  std::vector<TokenizerFile> Files() const override { return files_; }
  // Returns whether decoding may yield another text than the one that was encoded.
  bool normalizes() const { return normalizes_; }

 private:
  BpeTokenizer(BpeVocabulary vocabulary, bool normalizes);

  std::vector<int32_t> EncodeText(std::string_view text, bool special) const;
  // Encodes a part of a text; `first` if nothing precedes the part.
  void EncodePart(std::string_view part, bool first, std::vector<int32_t>& ids) const;
  void EncodeOrdinary(std::string_view text, std::vector<int32_t>& ids) const;
  void EncodePiece(std::string_view piece, std::vector<int32_t>& ids) const;

  const std::shared_ptr<const BpeAlphabet> alphabet_;
  const BpeMerges merges_;
  const AddedTokens added_;
  const std::optional<Metaspace> metaspace_;
  const bool drops_first_space_;
  const bool normalizes_;
  // Whether EncodablePrefix() cuts: not if an added token may contain a place to cut.
  bool cuts_;
  int32_t end_of_text_;
  std::optional<int32_t> begin_of_text_;
  std::vector<std::string> texts_;
  absl::flat_hash_map<absl::string_view, int32_t> whole_pieces_;  // keys point into texts_
  std::vector<TokenizerFile> files_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_BPE_TOKENIZER_H_
