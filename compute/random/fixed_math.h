#ifndef TESSERA_COMPUTE_RANDOM_FIXED_MATH_H_
#define TESSERA_COMPUTE_RANDOM_FIXED_MATH_H_

namespace tessera {

// Compute in fp64 with the same bits on every processor: additions, multiplications and divisions
// in a fixed order. The functions of a C library differ in the last bit from version to version,
// and between the variants for processors with and without fused multiply-adds. Relative errors are
// below 1e-15.
double FixedExp(double x);                      // 0 below -745
double FixedExp2(double x);                     // exact for whole x
double FixedLog(double x);                      // of finite x > 0
double FixedPow(double base, double exponent);  // base > 0
// Return cosine and sine for |x| below a million.
double FixedCos(double x);
double FixedSin(double x);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_RANDOM_FIXED_MATH_H_
