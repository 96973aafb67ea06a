#include "tokenizer/normalizing_sentencepiece.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

bool IsControl(const SentencePieceModel& model, int64_t id) {
  return id >= 0 && id < static_cast<int64_t>(model.pieces.size()) &&
         model.pieces[id].type == SentencePieceType::kControl;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NormalizingSentencePiece>> NormalizingSentencePiece::Create(
    const std::string& path, std::string contents, const SentencePieceModel& model) {
  if (model.model_type != SentencePieceModelType::kUnigram &&
      model.model_type != SentencePieceModelType::kBpe) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": this SentencePiece model is of the type word or char, which is not supported"));
  }
  TESSERA_ASSIGN_OR_RETURN(SentencePieceNormalizer normalizer,
                           SentencePieceNormalizer::Create(path, model));
  std::unique_ptr<NormalizingSentencePiece> tokenizer(
      new NormalizingSentencePiece(std::move(contents), model, std::move(normalizer)));
  TESSERA_RETURN_IF_ERROR(tokenizer->AddPieces(path, model));
  if (!IsControl(model, model.eos_id)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected an end-of-sentence control piece, found id ", model.eos_id));
  }
  tokenizer->end_of_text_ = static_cast<int32_t>(model.eos_id);
  tokenizer->texts_[tokenizer->end_of_text_] = kEndOfTextMarker;
  if (IsControl(model, model.bos_id)) {
    tokenizer->begin_of_text_ = static_cast<int32_t>(model.bos_id);
  }
  tokenizer->drops_first_space_ = model.add_dummy_prefix && !model.whitespace_as_suffix;
  return tokenizer;
}

absl::Status NormalizingSentencePiece::AddPieces(const std::string& path,
                                                 const SentencePieceModel& model) {
  byte_ids_.fill(-1);
  byte_fallback_ = model.byte_fallback;
  bool has_unknown = false;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    const auto id = static_cast<int32_t>(texts_.size());
    switch (piece.type) {
      case SentencePieceType::kByte: {
        const int byte = ParseBytePiece(piece.text);
        if (byte < 0) {
          return absl::DataLossError(absl::StrCat(
              path, ": piece ", id, " expected to be a byte, found \"", piece.text, "\""));
        }
        byte_ids_[byte] = id;
        texts_.emplace_back(1, static_cast<char>(byte));
        break;
      }
      case SentencePieceType::kUnknown:
        has_unknown = true;
        unknown_ = id;
        texts_.emplace_back(kReplacementCharacter);
        break;
      case SentencePieceType::kControl:
        texts_.emplace_back();
        break;
      default:
        texts_.push_back(WithSpaces(piece.text));
    }
  }
  if (!has_unknown) return absl::DataLossError(absl::StrCat(path, ": no unknown piece"));
  for (int byte = 0; byte < 256 && byte_fallback_; ++byte) {
    if (byte_ids_[byte] < 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": expected a piece for byte ", byte, ", found none"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> NormalizingSentencePiece::Encode(std::string_view text) const {
  const std::string normalized = normalizer_.Normalize(text);
  std::vector<int32_t> ids;
  bool after_unknown = false;
  for (const SentencePieceSegmenter::Segment& segment : segmenter_.Cut(normalized)) {
    const bool unknown = segment.id == unknown_;
    if (unknown && byte_fallback_) {
      for (const char c : segment.text) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    } else if (!unknown || !after_unknown) {  // unknown pieces in a row are one
      ids.push_back(segment.id);
    }
    after_unknown = unknown;
  }
  return ids;
}

absl::StatusOr<std::string> NormalizingSentencePiece::Decode(std::span<const int32_t> ids) const {
  absl::StatusOr<std::string> text = Tokenizer::Decode(ids);
  if (text.ok() && drops_first_space_ && text->starts_with(' ')) text->erase(0, 1);
  return text;
}

std::string_view NormalizingSentencePiece::TokenText(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return texts_[id];
}

}  // namespace tessera
