#include "tokenizer/sentencepiece/sentencepiece_model.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// Wire types of protocol buffers.
constexpr int kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;

struct Field {
  int64_t number = 0;
  uint64_t value = 0;      // varint, fixed32, fixed64
  std::string_view bytes;  // length-delimited: points into the contents
};

// Reads the fields of one message in order. Implements only the part of protocol buffers that the
// format needs, since no program can link both the protobuf library and SentencePiece's (see
// sentencepiece_tokenizer.h).
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  bool done() const { return rest_.empty(); }
  const char* at() const { return rest_.data(); }

  // Returns false when the bytes are not a field.
  bool Next(Field& field) {
    uint64_t tag;
    if (!Varint(tag)) return false;
    field = {};
    field.number = static_cast<int64_t>(tag >> 3);
    switch (tag & 7) {
      case kVarint:
        return Varint(field.value);
      case kFixed64:
        return Fixed(8, field.value);
      case kFixed32:
        return Fixed(4, field.value);
      case kLengthDelimited: {
        uint64_t length;
        if (!Varint(length) || length > rest_.size()) return false;
        field.bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return true;
      }
      default:
        return false;
    }
  }

 private:
  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const uint8_t byte = rest_.front();
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Fixed(size_t size, uint64_t& value) {
    if (rest_.size() < size) return false;
    value = 0;
    std::memcpy(&value, rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
};

// Calls visit(field) for every field. Returns the first byte that is not a field, or null.
template <typename Visit>
const char* ForEachField(std::string_view message, Visit visit) {
  FieldReader reader(message);
  while (!reader.done()) {
    const char* at = reader.at();
    Field field;
    if (!reader.Next(field)) return at;
    if (const char* bad = visit(field); bad != nullptr) return bad;
  }
  return nullptr;
}

const char* ReadPiece(std::string_view message, SentencePieceModel& model) {
  SentencePieceModel::Piece& piece = model.pieces.emplace_back();
  return ForEachField(message, [&piece](const Field& field) -> const char* {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == 3) piece.type = static_cast<SentencePieceType>(field.value);
    return nullptr;
  });
}

const char* ReadTrainerSpec(std::string_view message, SentencePieceModel& model) {
  return ForEachField(message, [&model](const Field& field) -> const char* {
    if (field.number == 3) model.model_type = static_cast<SentencePieceModelType>(field.value);
    if (field.number == 24) model.whitespace_as_suffix = field.value != 0;
    if (field.number == 35) model.byte_fallback = field.value != 0;
    if (field.number == 41) model.bos_id = static_cast<int32_t>(field.value);
    if (field.number == 42) model.eos_id = static_cast<int32_t>(field.value);
    return nullptr;
  });
}

const char* ReadNormalizerSpec(std::string_view message, SentencePieceModel& model) {
  return ForEachField(message, [&model](const Field& field) -> const char* {
    if (field.number == 2) model.normalizes = !field.bytes.empty();
    if (field.number == 3) model.add_dummy_prefix = field.value != 0;
    if (field.number == 4) model.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) model.escape_whitespaces = field.value != 0;
    return nullptr;
  });
}

}  // namespace

absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(const std::string& path,
                                                           std::string_view contents) {
  SentencePieceModel model;
  const char* bad = ForEachField(contents, [&model](const Field& field) -> const char* {
    if (field.number == 1) return ReadPiece(field.bytes, model);
    if (field.number == 2) return ReadTrainerSpec(field.bytes, model);
    if (field.number == 3) return ReadNormalizerSpec(field.bytes, model);
    return nullptr;
  });
  if (bad != nullptr) {
    return absl::DataLossError(absl::StrCat(path, " at offset ", bad - contents.data(),
                                            ": expected a field of a SentencePiece model, found ",
                                            contents.data() + contents.size() - bad,
                                            " bytes that are none"));
  }
  if (model.pieces.empty()) {
    return absl::DataLossError(
        absl::StrCat(path,
                     " at offset 0: expected an llm.c tokenizer file or a SentencePiece model, "
                     "found no piece in ",
                     contents.size(), " bytes"));
  }
  return model;
}

}  // namespace tessera
