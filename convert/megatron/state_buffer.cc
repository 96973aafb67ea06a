#include "convert/megatron/state_buffer.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/format/dtype.h"

namespace tessera::ckpt::convert {
namespace {

int64_t Aligned(int64_t at) {
  return (at + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// The elements that each bucket has, as Megatron divides a buffer.
std::vector<int64_t> DivideIntoBuckets(std::span<const RankParameter> parameters,
                                       int64_t bucket_elements) {
  std::vector<int64_t> buckets;
  int64_t end = 0;  // of the last parameter, in the bucket that is being filled
  for (size_t i = parameters.size(); i > 0; --i) {
    const RankParameter& parameter = parameters[i - 1];
    if (parameter.has_own_bucket && end > 0) {
      buckets.push_back(Aligned(end));
      end = 0;
    }
    end = Aligned(end) + parameter.elements;
    const bool is_full = bucket_elements > 0 && end >= bucket_elements;
    if (!is_full && !parameter.has_own_bucket && i > 1) continue;
    buckets.push_back(end);
    end = 0;
  }
  return buckets;
}

}  // namespace

StateBuffer BufferOf(const GatheredBuffer& gathered, const std::string& path,
                     const std::string& where) {
  StateBuffer buffer = {.where = where, .elements = gathered.elements};
  for (const auto& [kind, tensor] : gathered.vectors) {
    const BufferRun run = {0, gathered.elements, {path, tensor.offset_bytes, tensor.dtype}};
    buffer.kinds.emplace_back(kind, std::vector<BufferRun>{run});
  }
  return buffer;
}

std::optional<std::vector<int64_t>> PlaceInBuffer(std::span<const RankParameter> parameters,
                                                  const StateBuffer& buffer,
                                                  int64_t bucket_elements) {
  const std::vector<int64_t> buckets = buffer.bucket_elements.empty()
                                           ? DivideIntoBuckets(parameters, bucket_elements)
                                           : buffer.bucket_elements;
  std::vector<int64_t> begins(parameters.size());
  size_t bucket = 0;
  int64_t bucket_begin = 0, end = 0;  // of the bucket in the buffer; of parameters in the bucket
  const auto is_full = [&] { return end == buckets[bucket] || Aligned(end) == buckets[bucket]; };
  for (size_t i = parameters.size(); i > 0; --i) {
    const int64_t elements = parameters[i - 1].elements;
    if (bucket == buckets.size()) return std::nullopt;
    if (end > 0 && Aligned(end) + elements > buckets[bucket]) {
      if (!is_full()) return std::nullopt;
      bucket_begin += buckets[bucket++];
      end = 0;
      if (bucket == buckets.size()) return std::nullopt;
    }
    if (Aligned(end) + elements > buckets[bucket]) return std::nullopt;
    begins[i - 1] = bucket_begin + Aligned(end);
    end = Aligned(end) + elements;
  }
  if (buckets.empty()) return buffer.elements == 0 ? std::optional(begins) : std::nullopt;
  if (bucket + 1 != buckets.size() || end != buckets[bucket]) return std::nullopt;
  if (bucket_begin + end != buffer.elements) return std::nullopt;
  return begins;
}

absl::Status AddBuffer(std::span<const RankParameter> parameters, std::span<const int64_t> begins,
                       const StateBuffer& buffer, ForeignTensorSet& set) {
  for (const auto& [kind, runs] : buffer.kinds) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const RankParameter& own = parameters[i];
      const int64_t begin = begins[i], end = begin + own.elements;
      auto run = std::ranges::upper_bound(runs, begin, {}, &BufferRun::begin);
      if (run != runs.begin()) --run;
      int64_t at = begin;
      for (; at < end && run != runs.end() && run->begin <= at; ++run) {
        const int64_t skipped = at - run->begin;
        const int64_t count = std::min(run->count - skipped, end - at);
        if (count <= 0) continue;
        ForeignPlace place = run->place;
        place.offset_bytes +=
            static_cast<uint64_t>(skipped) * static_cast<uint64_t>(DTypeSize(place.dtype));
        TESSERA_RETURN_IF_ERROR(
            set.AddRange(*own.parameter, own.share, kind, at - begin, at - begin + count, place));
        at += count;
      }
      if (at == end) continue;
      return absl::DataLossError(absl::StrCat(buffer.where, ": element ", at, " of ",
                                              buffer.elements, ", which is part of ",
                                              own.parameter->name, ", is missing"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::convert
