#include "tokenizer/sentencepiece_segmenter.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/utf8.h"
#include "tokenizer/scored_merges.h"

namespace tessera {
namespace {

// Below the score of any piece: what no piece covers is covered by the unknown one.
constexpr float kUnknownPenalty = 10.0f;

size_t CharacterLength(std::string_view text) { return std::max<size_t>(Utf8Length(text), 1); }

// The best way to cut what lies before a position.
struct Node {
  int32_t id = -1;
  float score = 0;
  size_t begin = 0;  // of its last piece
  bool reached = false;

  void Offer(int32_t piece, float candidate, size_t from) {
    if (reached && candidate <= score) return;
    *this = {piece, candidate, from, true};
  }
};

}  // namespace

SentencePieceSegmenter::SentencePieceSegmenter(const SentencePieceModel& model)
    : is_bpe_(model.model_type == SentencePieceModelType::kBpe),
      min_score_(std::numeric_limits<float>::max()),
      max_score_(std::numeric_limits<float>::min()) {
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    const auto number = static_cast<int32_t>(id);
    pieces_.push_back({piece.score, piece.type});
    switch (piece.type) {
      case SentencePieceType::kNormal:
        min_score_ = std::min(min_score_, piece.score);
        max_score_ = std::max(max_score_, piece.score);
        trie_.Add(piece.text, number);
        break;
      case SentencePieceType::kUserDefined:
        user_defined_.Add(piece.text, number);
        trie_.Add(piece.text, number);
        break;
      case SentencePieceType::kUnused:
        trie_.Add(piece.text, number);
        break;
      case SentencePieceType::kUnknown:
        unknown_ = number;
        break;
      default:
        break;
    }
  }
}

std::vector<SentencePieceSegmenter::Segment> SentencePieceSegmenter::Cut(
    std::string_view text) const {
  return is_bpe_ ? CutBpe(text) : CutUnigram(text);
}

int32_t SentencePieceSegmenter::Find(std::string_view piece) const {
  int32_t id = -1;
  trie_.ForEachPrefix(piece, [&](size_t length, int32_t found) {
    if (length == piece.size()) id = found;
  });
  return id;
}

std::vector<SentencePieceSegmenter::Segment> SentencePieceSegmenter::CutUnigram(
    std::string_view text) const {
  std::vector<Node> nodes(text.size() + 1);
  for (size_t at = 0; at < text.size();) {
    const float before = nodes[at].score;
    const size_t character = CharacterLength(text.substr(at));
    bool has_character = false;
    trie_.ForEachPrefix(text.substr(at), [&](size_t length, int32_t id) {
      const Piece& piece = pieces_[id];
      if (piece.type == SentencePieceType::kUnused) return;
      // A symbol that the user defined is better than any other way.
      const float score = piece.type == SentencePieceType::kUserDefined
                              ? static_cast<float>(length) * max_score_ - 0.1f
                              : piece.score;
      nodes[at + length].Offer(id, score + before, at);
      has_character |= length == character;
    });
    if (!has_character) {
      nodes[at + character].Offer(unknown_, min_score_ - kUnknownPenalty + before, at);
    }
    at += character;
  }
  std::vector<Segment> segments;
  for (size_t end = text.size(); end > 0; end = nodes[end].begin) {
    segments.push_back({text.substr(nodes[end].begin, end - nodes[end].begin), nodes[end].id});
  }
  std::ranges::reverse(segments);
  return segments;
}

std::vector<SentencePieceSegmenter::Segment> SentencePieceSegmenter::CutBpe(
    std::string_view text) const {
  ScoredMerges merges;
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    user_defined_.ForEachPrefix(text.substr(at), [&](size_t found, int32_t) { length = found; });
    const bool fixed = length > 0;
    if (!fixed) length = CharacterLength(text.substr(at));
    merges.Add(text.substr(at, length), fixed);
    at += length;
  }
  // Pieces that are only a step to others are cut again where they remain.
  absl::flat_hash_map<absl::string_view, size_t> left_bytes;
  merges.Run([&](std::string_view left, std::string_view both) -> std::optional<float> {
    const int32_t id = Find(both);
    if (id < 0) return std::nullopt;
    if (pieces_[id].type == SentencePieceType::kUnused) {
      left_bytes[{both.data(), both.size()}] = left.size();
    }
    return pieces_[id].score;
  });

  std::vector<Segment> segments;
  std::vector<std::string_view> rest;
  merges.ForEach([&](std::string_view text) {
    for (rest = {text}; !rest.empty();) {
      const std::string_view part = rest.back();
      rest.pop_back();
      const int32_t id = Find(part);
      const auto cut = left_bytes.find({part.data(), part.size()});
      if (id >= 0 && pieces_[id].type == SentencePieceType::kUnused && cut != left_bytes.end()) {
        rest.push_back(part.substr(cut->second));
        rest.push_back(part.substr(0, cut->second));
        continue;
      }
      segments.push_back({part, id < 0 ? unknown_ : id});
    }
  });
  return segments;
}

}  // namespace tessera
