#include "layout/box.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace tessera {
namespace {

// Digits without sign or leading zeros, removed from the front of `text`.
std::optional<int64_t> ConsumeNumber(std::string_view& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  if (text[0] == '0' && text.size() > 1 && text[1] >= '0' && text[1] <= '9') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(end - text.data());
  return value;
}

bool ConsumeChar(std::string_view& text, char c) {
  if (text.empty() || text[0] != c) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::vector<int64_t> ContiguousStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

Box WholeBox(const Shape& global_shape) {
  return {std::vector<int64_t>(global_shape.size(), 0), global_shape};
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  const size_t rank = a.shape.size();
  if (b.shape.size() != rank) return std::nullopt;
  Box common;
  common.global_offset.resize(rank);
  common.shape.resize(rank);
  for (size_t d = 0; d < rank; ++d) {
    const int64_t begin = std::max(a.global_offset[d], b.global_offset[d]);
    const int64_t end = std::min(a.global_offset[d] + a.shape[d], b.global_offset[d] + b.shape[d]);
    if (end <= begin) return std::nullopt;
    common.global_offset[d] = begin;
    common.shape[d] = end - begin;
  }
  return common;
}

bool Contains(const Box& outer, const Box& inner) {
  if (outer.shape.size() != inner.shape.size()) return false;
  if (inner.empty()) return true;
  for (size_t d = 0; d < outer.shape.size(); ++d) {
    if (inner.global_offset[d] < outer.global_offset[d]) return false;
    if (inner.global_offset[d] + inner.shape[d] > outer.global_offset[d] + outer.shape[d]) {
      return false;
    }
  }
  return true;
}

std::string ToString(const Box& box) {
  std::string text = "[";
  // A box from an untrusted source may have columns of different lengths or ends beyond int64, and
  // still needs a message.
  const size_t rank = std::min(box.global_offset.size(), box.shape.size());
  for (size_t d = 0; d < rank; ++d) {
    if (d != 0) text += ',';
    text += std::to_string(box.global_offset[d]);
    text += ':';
    int64_t end;
    if (__builtin_add_overflow(box.global_offset[d], box.shape[d], &end)) {
      end = std::numeric_limits<int64_t>::max();
    }
    text += std::to_string(end);
  }
  return text += ']';
}

std::string ShapeToString(const Shape& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d != 0) text += ',';
    text += std::to_string(shape[d]);
  }
  return text += ']';
}

std::optional<Box> ParseBox(std::string_view text) {
  if (!ConsumeChar(text, '[')) return std::nullopt;
  Box box;
  if (text == "]") return box;
  do {
    if (box.shape.size() == kMaxRank) return std::nullopt;
    const std::optional<int64_t> begin = ConsumeNumber(text);
    if (!begin || !ConsumeChar(text, ':')) return std::nullopt;
    const std::optional<int64_t> end = ConsumeNumber(text);
    if (!end || *end < *begin) return std::nullopt;
    box.global_offset.push_back(*begin);
    box.shape.push_back(*end - *begin);
  } while (ConsumeChar(text, ','));
  if (text != "]") return std::nullopt;
  return box;
}

}  // namespace tessera
