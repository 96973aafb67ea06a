#ifndef TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TOKENIZER_H_
#define TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TOKENIZER_H_

// Encodes and decodes with a SentencePiece BPE model.
//
// The SentencePiece library trains the model (sentencepiece_training.h), but is not used to encode.
// It exports the symbols of a protobuf of its own, older than the one that the trainer links, and
// no program can contain both. A test compares the ids with the library's on a real corpus.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizer/bpe/added_tokens.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// A tokenizer that is lossless for any bytes: text is not normalised. Characters that the
// vocabulary lacks become byte pieces, and so do invalid UTF-8 and U+2581, which stands for a space
// inside pieces. (The library would turn the former into U+FFFD and the latter into a space.) If
// the model has user-defined pieces, U+2581 in a text becomes a space as in the library.
class SentencePieceTokenizer : public Tokenizer {
 public:
  // Reads models of type BPE with byte fallback that keep text as it is (Llama-2's and Mistral's),
  // with or without a dummy prefix (a space before every text) and user-defined pieces. `path` is
  // used in messages. Errors: InvalidArgument, naming the property, for other models (unigram, a
  // normalization, ...); DataLoss for bytes that are not a SentencePiece model.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Parse(const std::string& path,
                                                                       std::string contents);

  std::string_view kind() const override { return "sentencepiece"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(texts_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  std::optional<int32_t> begin_of_text() const override { return begin_of_text_; }
  // Returns the control pieces and the unknown one, and the end of text as it is decoded.
  std::vector<SpecialToken> special_tokens() const override { return special_; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override;
  // Cuts where no piece continues: after a line, or between a word and a space. Returns 0 with a
  // dummy prefix or user-defined pieces: only whole texts can be encoded then.
  size_t EncodablePrefix(std::string_view text) const override;
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;
  std::string_view TokenText(int32_t id) const override;
  std::vector<TokenizerFile> Files() const override { return {{kSentencePieceName, model_}}; }

 private:
  struct Piece {
    int32_t id;
    float score;
  };
  // Ids of the words of one call.
  using WordIds = absl::flat_hash_map<std::string, std::vector<int32_t>>;

  // Adds the next piece of the model, whose id is the number of those before.
  absl::Status AddPiece(const std::string& path, const SentencePieceModel::Piece& piece);
  // Sets the tokens at the ends of a text. InvalidArgument without one for its end.
  absl::Status TakeEndsOfText(const std::string& path, const SentencePieceModel& model);
  const Piece* Find(std::string_view piece) const;
  void AppendBytes(std::string_view bytes, std::vector<int32_t>& ids) const;
  // Encodes a word, which is valid UTF-8 with spaces as U+2581.
  std::vector<int32_t> EncodeWord(std::string_view word) const;
  void AppendWord(const std::string& word, WordIds& words, std::vector<int32_t>& ids) const;
  // Encodes text without user-defined pieces, after `prefix`, which is empty or a space mark.
  void AppendText(std::string_view prefix, std::string_view text, WordIds& words,
                  std::vector<int32_t>& ids) const;

  std::string model_;
  std::vector<std::string> texts_;
  std::vector<SpecialToken> special_;
  absl::flat_hash_map<std::string, Piece> pieces_;
  StringFinder user_defined_;  // as they are in the model; values: ids
  std::vector<int32_t> byte_ids_;
  int32_t end_of_text_ = -1;
  std::optional<int32_t> begin_of_text_;
  bool dummy_prefix_ = false;
  // Whether no piece extends past the end of a word or a line, so that text may be split there
  // before encoding.
  bool cut_before_space_ = true;
  bool cut_at_newline_ = true;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TOKENIZER_H_
