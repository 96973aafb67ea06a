#ifndef TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_MODEL_H_
#define TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_MODEL_H_

// The fields of SentencePiece's ModelProto (sentencepiece_model.proto) that encoding and decoding
// need.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

inline constexpr char kSentencePieceName[] = "tokenizer.model";  // in Tokenizer::Files()
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The type of a piece, with the numbers of the .proto file.
enum class SentencePieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};
enum class SentencePieceModelType { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    SentencePieceType type = SentencePieceType::kNormal;
  };

  std::vector<Piece> pieces;
  SentencePieceModelType model_type = SentencePieceModelType::kUnigram;
  bool byte_fallback = false;
  int64_t bos_id = 1;
  int64_t eos_id = 2;
  bool normalizes = false;  // by a precompiled_charsmap
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
};

// Parses a model; skips unknown fields. Errors: DataLoss with file, offset and what was expected.
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(const std::string& path,
                                                           std::string_view contents);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_MODEL_H_
