#ifndef TESSERA_COMPUTE_KERNELS_NUMERICS_FINGERPRINT_H_
#define TESSERA_COMPUTE_KERNELS_NUMERICS_FINGERPRINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "compute/kernels/backend.h"

namespace tessera {

// Which of a GPU's operations compute the bits of processors in EXACT numerics.
enum class DeviceNumerics {
  kFast,           // none by contract
  kExactProducts,  // products of fp32 operands
  kExact,          // all, of fp32 operands
};

// The contract of our own loops on processors (cpu/vector-inl.h); its number changes with every
// change of a bit.
inline constexpr char kAnyInstructionSet[] = "any (contract 1)";

// The causes of the bits of a process's results, apart from operands and shapes. Two processes with
// equal fingerprints compute the same bits, as far as a few fixed examples can show.
struct NumericsFingerprint {
  // Instruction set of our own loops: kAnyInstructionSet for the same bits on every processor, or a
  // GPU's.
  std::string instruction_set;
  std::string library;         // of matrix products: "oneDNN 2.6.3 avx512_core", "contract 1"
  uint64_t products_hash = 0;  // of the results of fixed matrix products
  uint64_t loops_hash = 0;     // of the results of our own loops on fixed operands

  bool operator==(const NumericsFingerprint&) const = default;
};

// Returns the differences for a message: "instruction set avx512, here avx2". `here` names the
// place of `b`.
std::vector<std::string> NumericsDifferences(const NumericsFingerprint& a,
                                             const NumericsFingerprint& b, const std::string& here);

// Hashes of a backend's results for fixed operands.
struct FixedResults {
  uint64_t products_hash = 0;  // of matrix products and attention
  uint64_t loops_hash = 0;     // of the remaining operations

  bool operator==(const FixedResults&) const = default;
};

// Computes fixed examples in fp32 and, with `bf16`, in bf16. Among them are products that use
// packed and blocked code paths, and long sums. How these are split depends on instruction set,
// caches and version of the library.
FixedResults ComputeFixedResults(Backend& backend, bool bf16 = true);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_NUMERICS_FINGERPRINT_H_
