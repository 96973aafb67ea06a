#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_ARITHMETIC_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_ARITHMETIC_H_

namespace tessera::simt {

// How a simulated device computes: by IEEE 754, or as one that EXACT numerics must not use.
enum class Arithmetic {
  kIeee,
  kFlushesSubnormals,  // reads and returns zeros in their place
  kRoundsTowardZero,
};

// Sets it for the kernels that the calling thread runs from now on; at first it is kIeee.
void SetSimulatedArithmetic(Arithmetic arithmetic);

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_ARITHMETIC_H_
