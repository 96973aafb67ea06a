// Functions of numbers: polynomials in multiply-adds, and what activations are made of. Processors
// and GPUs compile this source and compute the same bits. Included within a namespace that has
//
//   Number                      sixteen lanes (vector-inl.h) or one number (../cuda/exact_math.h),
//                               made of a float; + - * / < ==
//   MulAdd, MulSub, NegMulAdd   rounded once
//   Clamp, Select, ZeroWhere
//   ShiftIntoExponent(x)        the lowest bits of x as those of an exponent
//   SplitExponent(x, &exponent) m, where x = m 2^exponent and m is in [sqrt(1/2), sqrt(2))
//
// and after a definition of TESSERA_INLINE.

#if defined(TESSERA_COMPUTE_KERNELS_CPU_FUNCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COMPUTE_KERNELS_CPU_FUNCTIONS_INL_H_
#undef TESSERA_COMPUTE_KERNELS_CPU_FUNCTIONS_INL_H_
#else
#define TESSERA_COMPUTE_KERNELS_CPU_FUNCTIONS_INL_H_
#endif

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;
inline constexpr float kInfinity = __builtin_inff();

// Adding kRoundingShift rounds to an integer n; n + 127 is then in the low bits, as in an exponent.
inline constexpr float kRoundingShift = 12582912.0f + 127.0f;  // 1.5 * 2^23 + 127

// Returns 2^(n + r) for |r| <= 1/2; n = shifted - kRoundingShift from -127, for which the result is
// 0, to 128, for which it is infinity.
TESSERA_INLINE Number PowerOf2(Number shifted, Number r) {
  // Minimax, relative error 3e-9.
  Number p = 1.55946775e-4f;
  p = MulAdd(p, r, 1.34066439e-3f);
  p = MulAdd(p, r, 9.61769297e-3f);
  p = MulAdd(p, r, 5.55031055e-2f);
  p = MulAdd(p, r, 2.40226528e-1f);
  p = MulAdd(p, r, 6.93147215e-1f);
  p = MulAdd(p, r, 1.0f);
  return p * ShiftIntoExponent(shifted);
}

// Returns e^x for x from -88, for which the result is 0, to 88.7, for which it is infinity.
TESSERA_INLINE Number ExpInRange(Number x) {
  const Number shifted = MulAdd(x, kLog2E, kRoundingShift);
  const Number n = shifted - kRoundingShift;
  constexpr float kLog2ELow = 1.92596303e-8f;  // log2(e) - kLog2E
  // x * kLog2E - n is exact.
  return PowerOf2(shifted, MulAdd(x, kLog2ELow, MulSub(x, kLog2E, n)));
}

// Returns e^x, within 1.5 ulp; below -87.3 the result is 0, from 88.4 on infinity; NaN is
// preserved.
TESSERA_INLINE Number Exp(Number x) {
  return ZeroWhere(x < -87.33654f, ExpInRange(Clamp(x, -88.0f, 88.7f)));
}

// Returns 2^x, within 1.5 ulp; below -126 the result is 0, from 127.5 on infinity; NaN is
// preserved.
TESSERA_INLINE Number Exp2(Number x) {
  const Number clamped = Clamp(x, -127.0f, 128.0f);
  const Number shifted = clamped + kRoundingShift;
  const Number n = shifted - kRoundingShift;
  return ZeroWhere(x < -126.0f, PowerOf2(shifted, clamped - n));
}

// Returns 1 / (1 + e^-x), within 3 ulp; 0 below -87. Does not preserve NaN: callers multiply by x.
TESSERA_INLINE Number Sigmoid(Number x) {
  const Number result = 1.0f / (1.0f + ExpInRange(0.0f - Clamp(x, -87.0f, 87.0f)));
  return ZeroWhere(x < -87.0f, result);
}

// Returns ln(x) for normal x, within 1.5 ulp; -infinity for 0; infinity and NaN are preserved.
TESSERA_INLINE Number Log(Number x) {
  Number exponent;
  const Number m = SplitExponent(x, &exponent);
  // Cephes' polynomial for ln(1 + f) = f - f^2 / 2 + f^3 p(f).
  const Number f = m - 1.0f, square = f * f;
  Number p = 7.0376836292e-2f;
  p = MulAdd(p, f, -1.1514610310e-1f);
  p = MulAdd(p, f, 1.1676998740e-1f);
  p = MulAdd(p, f, -1.2420140846e-1f);
  p = MulAdd(p, f, 1.4249322787e-1f);
  p = MulAdd(p, f, -1.6668057665e-1f);
  p = MulAdd(p, f, 2.0000714765e-1f);
  p = MulAdd(p, f, -2.4999993993e-1f);
  p = MulAdd(p, f, 3.3333331174e-1f);
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const Number small = MulAdd(p * f, square, NegMulAdd(square, 0.5f, exponent * kLn2Low));
  const Number result = MulAdd(exponent, kLn2High, f + small);
  return Select(0.0f < x, Select(x < kInfinity, result, x), Select(x == 0.0f, -kInfinity, x));
}

// GELU, tanh form: y = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3). As (1 + tanh(u)) /
// 2 = sigmoid(2u) = s, y = x s and dy/dx = s + x s (1 - s) 2u'. Sigmoids do not cancel where 1 +
// tanh(u) does.

inline constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kCubic = 0.044715f;

TESSERA_INLINE Number Gelu(Number x) {
  return x * Sigmoid(kTwoSqrt2OverPi * MulAdd(kCubic * x * x, x, x));
}

TESSERA_INLINE Number GeluGradient(Number d_out, Number x) {
  const Number square = x * x;
  const Number u2 = kTwoSqrt2OverPi * MulAdd(kCubic * square, x, x);
  const Number slope = kTwoSqrt2OverPi * MulAdd(3.0f * kCubic, square, 1.0f);
  const Number s = Sigmoid(u2);
  // For large |x|, s is 0 or 1 and x * slope may be infinite: avoid 0 * infinity.
  const Number bell = s * (1.0f - s);
  return d_out * (s + ZeroWhere(bell == 0.0f, x * slope * bell));
}

// y = silu(g) * u with silu(g) = g * sigmoid(g). With s = sigmoid(g): d_u = d_y g s, d_g = d_y u s
// (1 + g (1 - s)).

TESSERA_INLINE Number SwiGlu(Number gate, Number up) { return gate * Sigmoid(gate) * up; }

TESSERA_INLINE void SwiGluGradient(Number d_out, Number gate, Number up, Number* d_gate,
                                   Number* d_up) {
  const Number s = Sigmoid(gate);
  *d_gate = d_out * up * s * MulAdd(gate, 1.0f - s, 1.0f);
  *d_up = d_out * gate * s;
}

#endif  // TESSERA_COMPUTE_KERNELS_CPU_FUNCTIONS_INL_H_
