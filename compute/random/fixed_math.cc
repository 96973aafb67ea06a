#include "compute/random/fixed_math.h"

#include <cmath>
#include <cstdint>
#include <numbers>

// No multiplication is contracted with an addition, whatever processor this is compiled for.
#pragma STDC FP_CONTRACT OFF

namespace tessera {
namespace {

// ln 2 and pi / 2 in parts, of which all but the last have so few bits that their products with the
// whole numbers here are exact (fdlibm).
constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
constexpr double kHalfPi1 = 1.57079632673412561417e+00, kHalfPi2 = 6.07710050630396597660e-11,
                 kHalfPi3 = 2.02226624879595063154e-21;

// Returns e^r for |r| <= ln(2) / 2 by its Taylor series.
double ExpOfSmall(double r) {
  double sum = 1;
  for (int i = 14; i > 0; --i) sum = 1 + sum * r / i;
  return sum;
}

// Return sine and cosine for |r| <= pi / 4 by their Taylor series.
double SinOfSmall(double r) {
  const double square = r * r;
  double sum = 1;
  for (int i = 18; i > 0; i -= 2) sum = 1 - sum * square / (i * (i + 1));
  return r * sum;
}

double CosOfSmall(double r) {
  const double square = r * r;
  double sum = 1;
  for (int i = 19; i > 0; i -= 2) sum = 1 - sum * square / (i * (i + 1));
  return sum;
}

// Returns the sine of x + quarters * pi / 2.
double SinOfTurned(double x, int64_t quarters) {
  const double n = std::nearbyint(x * (2 / std::numbers::pi));
  const double r = ((x - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;
  switch ((static_cast<int64_t>(n) + quarters) & 3) {
    case 0:
      return SinOfSmall(r);
    case 1:
      return CosOfSmall(r);
    case 2:
      return -SinOfSmall(r);
    default:
      return -CosOfSmall(r);
  }
}

}  // namespace

double FixedExp(double x) {
  if (x < -745) return 0;
  const double n = std::nearbyint(x / std::numbers::ln2);
  return std::ldexp(ExpOfSmall((x - n * kLn2High) - n * kLn2Low), static_cast<int>(n));
}

double FixedExp2(double x) {
  const double n = std::nearbyint(x);
  return std::ldexp(ExpOfSmall((x - n) * std::numbers::ln2), static_cast<int>(n));
}

double FixedLog(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < std::numbers::sqrt2 / 2) {
    m *= 2;
    --exponent;
  }
  // ln(m) = 2 artanh(f)
  const double f = (m - 1) / (m + 1), square = f * f;
  double sum = 0;
  for (int i = 23; i > 1; i -= 2) sum = (sum + 2.0 / i) * square;
  return exponent * kLn2High + (2 * f + (f * sum + exponent * kLn2Low));
}

double FixedPow(double base, double exponent) { return FixedExp(exponent * FixedLog(base)); }

double FixedCos(double x) { return SinOfTurned(x, 1); }

double FixedSin(double x) { return SinOfTurned(x, 0); }

}  // namespace tessera
