#ifndef TESSERA_TOKENIZER_NORMALIZING_SENTENCEPIECE_H_
#define TESSERA_TOKENIZER_NORMALIZING_SENTENCEPIECE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/sentencepiece_normalizer.h"
#include "tokenizer/sentencepiece_segmenter.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// A SentencePiece model of the type unigram or BPE, with the ids that the library gives for any
// text. What normalisation changes, and characters that the model does not know, are lost: see
// SentencePieceTokenizer for models that keep all bytes.
class NormalizingSentencePiece final : public Tokenizer {
 public:
  // `contents`: what `model` was parsed from. Errors: InvalidArgument for other types of model and
  // where end of text is no control piece; DataLoss for malformed parts.
  static absl::StatusOr<std::unique_ptr<NormalizingSentencePiece>> Create(
      const std::string& path, std::string contents, const SentencePieceModel& model);

  std::string_view kind() const override { return "sentencepiece"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(texts_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  std::optional<int32_t> begin_of_text() const override { return begin_of_text_; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override;
  // Only whole texts: what their beginning becomes may depend on their end.
  size_t EncodablePrefix(std::string_view) const override { return 0; }
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;
  std::string_view TokenText(int32_t id) const override;
  std::vector<TokenizerFile> Files() const override { return {{kSentencePieceName, contents_}}; }

 private:
  NormalizingSentencePiece(std::string contents, const SentencePieceModel& model,
                           SentencePieceNormalizer normalizer)
      : contents_(std::move(contents)), normalizer_(std::move(normalizer)), segmenter_(model) {}
  absl::Status AddPieces(const std::string& path, const SentencePieceModel& model);

  const std::string contents_;
  const SentencePieceNormalizer normalizer_;
  const SentencePieceSegmenter segmenter_;
  std::vector<std::string> texts_;
  std::array<int32_t, 256> byte_ids_;
  bool byte_fallback_ = false;
  bool drops_first_space_ = false;
  int32_t unknown_ = 0;
  int32_t end_of_text_ = -1;
  std::optional<int32_t> begin_of_text_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_NORMALIZING_SENTENCEPIECE_H_
