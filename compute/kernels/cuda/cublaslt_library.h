#ifndef TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_LIBRARY_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_LIBRARY_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/kernels/cuda/cublaslt_api.h"

namespace tessera {

// Opens cuBLASLt's shared library at the first of `places` that has it. A place is a path, or a
// name for the dynamic linker to search. The library stays open until the process ends.
//
// Errors: NotFound, in one sentence with every place, if no place has the library;
// FailedPrecondition for a version before 11.8 and for a library without the needed functions.
absl::StatusOr<std::unique_ptr<CublasLtApi>> OpenCublasLt(std::span<const std::string> places);

// $TESSERA_CUBLASLT alone where it is set. Else the usual places (LibraryPlaces()), with
// libcublasLt.so.13 before libcublasLt.so.12.
std::vector<std::string> CublasLtPlaces();

// The library as a part of a numerics fingerprint: its version, and whether products of fp32
// operands are computed in TF32, which NVIDIA_TF32_OVERRIDE changes whatever the program asks for.
std::string DescribeCublasLt(size_t version, bool allow_tf32);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_LIBRARY_H_
