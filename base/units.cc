#include "base/units.h"

#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace tessera {
namespace {

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char buffer[64];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  return buffer;
}

// Formats a value with three digits: 1.23, 12.3, 123.
std::string ThreeDigits(double value) {
  if (value < 9.995) return Format("%.2f", value);
  if (value < 99.95) return Format("%.1f", value);
  return Format("%.0f", value);
}

// Divides until the value prints below `base`; `units[0]` is the unit of `value`.
template <size_t kUnits>
std::string Scale(double value, double base, const std::array<const char*, kUnits>& units) {
  size_t unit = 0;
  while (unit + 1 < kUnits && value >= base - 0.5) {
    value /= base;
    ++unit;
  }
  return ThreeDigits(value) + " " + units[unit];
}

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1024) return Format("%" PRIu64 " B", bytes);
  static constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  return Scale(static_cast<double>(bytes) / 1024, 1024, kUnits);
}

std::string HumanRate(uint64_t bytes, double seconds) {
  if (!(seconds > 0)) return "-";
  static constexpr std::array<const char*, 6> kUnits = {"B/s",  "kB/s", "MB/s",
                                                        "GB/s", "TB/s", "PB/s"};
  return Scale(static_cast<double>(bytes) / seconds, 1000, kUnits);
}

std::string HumanSeconds(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "-";
  if (seconds < 59.95) {
    static constexpr std::array<const char*, 3> kUnits = {"us", "ms", "s"};
    if (seconds < 999.5e-6) return Format("%.0f us", seconds * 1e6);
    return Scale(seconds * 1e6, 1000, kUnits);
  }
  if (seconds > 1e15) return "-";  // beyond what int64 seconds could hold safely
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return Format("%" PRId64 "m %02" PRId64 "s", whole / 60, whole % 60);
  if (whole < 24 * 3600) {
    return Format("%" PRId64 "h %02" PRId64 "m", whole / 3600, whole / 60 % 60);
  }
  return Format("%" PRId64 "d %02" PRId64 "h", whole / 86400, whole / 3600 % 24);
}

}  // namespace tessera
