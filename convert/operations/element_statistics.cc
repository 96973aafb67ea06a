#include "convert/operations/element_statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "checkpoint/elements/copy_elements.h"

namespace tessera::ckpt {
namespace {

constexpr int kBlock = 2048;  // elements, as numbers: they stay in the first cache
constexpr int kLanes = 4;     // sums that are independent of each other
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

// A quick look: false where no element is zero or not finite.
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

// Elements of the block that are zero, or not finite, are counted, and are zeros afterwards.
template <typename Value>
int64_t CountOthers(Value* values, int count, ElementStatistics& statistics) {
  int64_t others = 0;
  for (int i = 0; i < count; ++i) {
    if (values[i] == 0) {
      ++statistics.zeros;
      ++others;
    } else if (!std::isfinite(values[i])) {
      ++(std::isnan(values[i]) ? statistics.nans
         : values[i] > 0       ? statistics.positive_infinities
                               : statistics.negative_infinities);
      ++others;
      values[i] = 0;
    }
  }
  return others;
}

template <typename Value>
void AddRange(const Value* values, int count, ElementStatistics& statistics) {
  Value min = values[0], max = values[0];
  for (int i = 1; i < count; ++i) {
    min = values[i] < min ? values[i] : min;
    max = values[i] > max ? values[i] : max;
  }
  statistics.min = std::min<double>(statistics.min, min);
  statistics.max = std::max<double>(statistics.max, max);
}

// `Sum` holds the square of every finite Value.
template <typename Value, typename Sum>
void AddBlock(Value* values, int count, ElementStatistics& statistics, Bins& bins) {
  statistics.elements += count;
  if (MayHaveOthers(values, count) && CountOthers(values, count, statistics) > 0) {
    // What stands for them is in no bin and no range.
    std::array<Value, kBlock> kept;
    int rest = 0;
    for (int i = 0; i < count; ++i) {
      if (values[i] != 0) kept[rest++] = values[i];
    }
    if (statistics.zeros > 0) {
      statistics.min = std::min(statistics.min, 0.0);
      statistics.max = std::max(statistics.max, 0.0);
    }
    std::copy_n(kept.begin(), rest, values);
    count = rest;
    if (count == 0) return;
  }
  AddRange(values, count, statistics);
  if (!statistics.bins.empty()) {
    for (int i = 0; i < count; ++i) ++bins[BinOf(values[i])];
  }
  std::array<Sum, kLanes> sums = {}, squares = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const Sum value = values[i + lane];
      sums[lane] += value;
      squares[lane] += value * value;
    }
  }
  for (; i < count; ++i) {
    const Sum value = values[i];
    sums[0] += value;
    squares[0] += value * value;
  }
  statistics.sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  statistics.squares += (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

// A float8 as a float. E4M3 is torch's float8_e4m3fn, which has no infinity.
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

// Null for a dtype that is none of fp32's subsets.
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
  Bins bins = {};
  std::array<Value, kBlock> values;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int size = static_cast<int>(std::min<int64_t>(kBlock, count - begin));
    convert(data + begin * element_bytes, size, values.data());
    AddBlock<Value, Sum>(values.data(), size, statistics, bins);
    // At the end, and before a bin overflows.
    if (begin + kBlock < count && (begin + kBlock) % (int64_t{1} << 31) != 0) continue;
    if (statistics.bins.empty()) continue;
    for (int bin = 0; bin < ElementStatistics::kBins; ++bin) {
      statistics.bins[bin] += bins[bin];
      bins[bin] = 0;
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

int HistogramBin(double value) { return BinOf(value); }

double BinBegin(int bin) {
  const int magnitude = bin % ElementStatistics::kBinsPerSign;
  if (magnitude < 4) return 0;
  return std::ldexp(1 + 0.25 * (magnitude % 4), magnitude / 4 - 127);
}

void AddElements(DType dtype, const std::byte* data, int64_t count, ElementStatistics& statistics) {
  if (const ToNumbers<float> floats = FindFloats(dtype); floats != nullptr) {
    AddAll<float, double>(floats, ElementSize(dtype), data, count, statistics);
  } else if (const ToNumbers<double> doubles = FindDoubles(dtype); doubles != nullptr) {
    AddAll<double, long double>(doubles, ElementSize(dtype), data, count, statistics);
  }
}

}  // namespace tessera::ckpt
