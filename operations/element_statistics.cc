#include "operations/element_statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "layout/elements/copy_elements.h"

namespace tessera::ckpt {
namespace {

constexpr int kBlock = 2048;  // elements, as numbers: they stay in the first cache
constexpr int kLanes = 8;     // sums that are independent of each other
constexpr int kLastBin = ElementStatistics::kBinsPerSign - 5;  // of finite fp32 numbers

using Bins = std::array<uint32_t, ElementStatistics::kBins>;

int BinOf(float value) {
  const int bin = static_cast<int>(std::bit_cast<uint32_t>(value) >> 21);
  // Subnormal numbers are in one bin.
  return (bin & (ElementStatistics::kBinsPerSign - 4)) == 0 ? bin & ~3 : bin;
}

int BinOf(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023 + 127;
  const int quarter = static_cast<int>(bits >> 50 & 3);
  const int bin = exponent <= 0 ? 0 : std::min(exponent * 4 + quarter, kLastBin);
  return (bits >> 63) * ElementStatistics::kBinsPerSign + bin;
}

// Returns quickly whether any element may be zero or not finite.
bool MayHaveOthers(const float* values, int count) {
  constexpr uint32_t kLeast = 0x00800000, kInfinity = 0x7f800000;
  uint32_t found = 0;
  for (int i = 0; i < count; ++i) {
    // The exponent is 0 or the highest one.
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & 0x7fffffff;
    found |= static_cast<uint32_t>(magnitude - kLeast >= kInfinity - kLeast);
  }
  return found != 0;
}
bool MayHaveOthers(const double*, int) { return true; }

// Counts the elements that are zero or not finite, and moves the others together. Returns how many
// those are.
template <typename Value>
int TakeOthersOut(Value* values, int count, ElementStatistics& statistics) {
  std::array<Value, kBlock> kept;
  int rest = 0, zeros = 0;
  for (int i = 0; i < count; ++i) {  // without branches
    const Value value = values[i];
    kept[rest] = value;
    rest += static_cast<int>(value != 0) & static_cast<int>(value - value == 0);
    zeros += static_cast<int>(value == 0);
  }
  if (zeros > 0) {
    statistics.zeros += zeros;
    statistics.min = std::min(statistics.min, 0.0);
    statistics.max = std::max(statistics.max, 0.0);
  }
  for (int i = 0; i < count && rest + zeros < count; ++i) {
    if (std::isnan(values[i])) ++statistics.nans;
    if (std::isinf(values[i])) {
      ++(values[i] > 0 ? statistics.positive_infinities : statistics.negative_infinities);
    }
  }
  std::copy_n(kept.begin(), rest, values);
  return rest;
}

// `Sum` holds the square of every finite Value.
template <typename Value, typename Sum>
void AddBlock(Value* values, int count, ElementStatistics& statistics, Bins (&bins)[2]) {
  statistics.elements += count;
  if (MayHaveOthers(values, count)) count = TakeOthersOut(values, count, statistics);
  if (count == 0) return;
  if (!statistics.bins.empty()) {
    // Two tables: neighbours are often in one bin.
    int i = 0;
    for (; i + 2 <= count; i += 2) {
      ++bins[0][BinOf(values[i])];
      ++bins[1][BinOf(values[i + 1])];
    }
    if (i < count) ++bins[0][BinOf(values[i])];
  }
  std::array<Value, kLanes> min, max;
  std::array<Sum, kLanes> sums = {}, squares = {};
  min.fill(values[0]);
  max.fill(values[0]);
  const auto add = [&](int lane, Value value) {
    min[lane] = value < min[lane] ? value : min[lane];
    max[lane] = value > max[lane] ? value : max[lane];
    const Sum wide = value;
    sums[lane] += wide;
    squares[lane] += wide * wide;
  };
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(lane, values[i + lane]);
  }
  for (; i < count; ++i) add(0, values[i]);
  for (int lane = 0; lane < kLanes; ++lane) {
    statistics.min = std::min<double>(statistics.min, min[lane]);
    statistics.max = std::max<double>(statistics.max, max[lane]);
    statistics.sum += sums[lane];
    statistics.squares += squares[lane];
  }
}

// Returns a float8 as a float. E4M3 is torch's float8_e4m3fn, which has no infinity.
float Float8(uint8_t bits, int mantissa_bits, int bias, bool has_infinity) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits & 0x7f) >> mantissa_bits, highest = 0x7f >> mantissa_bits;
  float magnitude;
  if (exponent == highest && (has_infinity || mantissa == (1 << mantissa_bits) - 1)) {
    magnitude = has_infinity && mantissa == 0 ? std::numeric_limits<float>::infinity()
                                              : std::numeric_limits<float>::quiet_NaN();
  } else {
    const int implied = exponent == 0 ? 0 : 1 << mantissa_bits;
    magnitude = std::ldexp(static_cast<float>(implied + mantissa),
                           std::max(exponent, 1) - bias - mantissa_bits);
  }
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

template <typename Value>
using ToNumbers = void (*)(const std::byte* from, int count, Value* to);

template <typename Element, typename Value>
void Widen(const std::byte* from, int count, Value* to) {
  for (int i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, from + i * sizeof(Element), sizeof(Element));
    to[i] = static_cast<Value>(element);
  }
}

template <DType dtype>
void CopyFloats(const std::byte* from, int count, float* to) {
  if constexpr (dtype == DType::kF32) {
    std::memcpy(to, from, count * sizeof(float));
  } else {
    static const CopyElements copy = FindCopy(dtype, DType::kF32);
    copy(from, reinterpret_cast<std::byte*>(to), count, 1);
  }
}

template <int mantissa_bits, int bias, bool has_infinity>
void WidenFloat8(const std::byte* from, int count, float* to) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all;
    for (int bits = 0; bits < 256; ++bits) {
      all[bits] = Float8(static_cast<uint8_t>(bits), mantissa_bits, bias, has_infinity);
    }
    return all;
  }();
  for (int i = 0; i < count; ++i) to[i] = values[std::to_integer<uint8_t>(from[i])];
}

// Returns null if fp32 does not have all of the dtype's values.
ToNumbers<float> FindFloats(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CopyFloats<DType::kF32>;
    case DType::kF16:
      return CopyFloats<DType::kF16>;
    case DType::kBF16:
      return CopyFloats<DType::kBF16>;
    case DType::kF8E4M3:
      return WidenFloat8<3, 7, false>;
    case DType::kF8E5M2:
      return WidenFloat8<2, 15, true>;
    case DType::kI16:
      return Widen<int16_t, float>;
    case DType::kU16:
      return Widen<uint16_t, float>;
    case DType::kI8:
      return Widen<int8_t, float>;
    case DType::kU8:
    case DType::kBool:
      return Widen<uint8_t, float>;
    default:
      return nullptr;
  }
}

ToNumbers<double> FindDoubles(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return Widen<double, double>;
    case DType::kI64:
      return Widen<int64_t, double>;
    case DType::kU64:
      return Widen<uint64_t, double>;
    case DType::kI32:
      return Widen<int32_t, double>;
    case DType::kU32:
      return Widen<uint32_t, double>;
    default:
      return nullptr;
  }
}

template <typename Value, typename Sum>
void AddAll(ToNumbers<Value> convert, int64_t element_bytes, const std::byte* data, int64_t count,
            ElementStatistics& statistics) {
  Bins bins[2] = {};
  std::array<Value, kBlock> values;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int size = static_cast<int>(std::min<int64_t>(kBlock, count - begin));
    convert(data + begin * element_bytes, size, values.data());
    AddBlock<Value, Sum>(values.data(), size, statistics, bins);
    // At the end, and before a bin overflows.
    if (begin + kBlock < count && (begin + kBlock) % (int64_t{1} << 31) != 0) continue;
    if (statistics.bins.empty()) continue;
    for (int bin = 0; bin < ElementStatistics::kBins; ++bin) {
      for (Bins& table : bins) statistics.bins[bin] += std::exchange(table[bin], 0);
    }
  }
}

}  // namespace

double ElementStatistics::norm() const { return static_cast<double>(std::sqrt(squares)); }

void ElementStatistics::Merge(const ElementStatistics& other) {
  elements += other.elements;
  zeros += other.zeros;
  nans += other.nans;
  positive_infinities += other.positive_infinities;
  negative_infinities += other.negative_infinities;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  sum += other.sum;
  squares += other.squares;
  if (other.bins.empty()) return;
  for (size_t bin = 0; bin < bins.size(); ++bin) bins[bin] += other.bins[bin];
}

void AddElements(DType dtype, const std::byte* data, int64_t count, ElementStatistics& statistics) {
  if (const ToNumbers<float> floats = FindFloats(dtype); floats != nullptr) {
    AddAll<float, double>(floats, ElementSize(dtype), data, count, statistics);
  } else if (const ToNumbers<double> doubles = FindDoubles(dtype); doubles != nullptr) {
    AddAll<double, long double>(doubles, ElementSize(dtype), data, count, statistics);
  }
}

}  // namespace tessera::ckpt
