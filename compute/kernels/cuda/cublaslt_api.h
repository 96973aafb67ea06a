#ifndef TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_API_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_API_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// Calls V(type of the result, name, parameters) for the functions of cuBLASLt that Tessera calls,
// whose names begin with "cublasLt". Layouts are column-major: element (r, c) is at r + c *
// leading_dim. Algorithms are proposed best first. Matmul: d = alpha op(a) op(b) + beta c (+ bias,
// by row).
#define TESSERA_CUBLASLT_FUNCTIONS(V)                                                              \
  V(size_t, GetVersion, ())                                                                        \
  V(const char*, GetStatusString, (Status status))                                                 \
  V(Status, Create, (Handle * handle))                                                             \
  V(Status, Destroy, (Handle handle))                                                              \
  V(Status, MatmulDescCreate, (MatmulDesc * desc, int compute_type, int scale_type))               \
  V(Status, MatmulDescSetAttribute,                                                                \
    (MatmulDesc desc, int attribute, const void* value, size_t bytes))                             \
  V(Status, MatmulDescDestroy, (MatmulDesc desc))                                                  \
  V(Status, MatrixLayoutCreate,                                                                    \
    (MatrixLayout * layout, int type, uint64_t rows, uint64_t columns, int64_t leading_dim))       \
  V(Status, MatrixLayoutDestroy, (MatrixLayout layout))                                            \
  V(Status, MatmulPreferenceCreate, (Preference * preference))                                     \
  V(Status, MatmulPreferenceSetAttribute,                                                          \
    (Preference preference, int attribute, const void* value, size_t bytes))                       \
  V(Status, MatmulPreferenceDestroy, (Preference preference))                                      \
  V(Status, MatmulAlgoGetHeuristic,                                                                \
    (Handle handle, MatmulDesc desc, MatrixLayout a, MatrixLayout b, MatrixLayout c,               \
     MatrixLayout d, Preference preference, int requested, HeuristicResult* results,               \
     int* returned))                                                                               \
  V(Status, MatmulAlgoConfigGetAttribute,                                                          \
    (const Algo* algo, int attribute, void* value, size_t bytes, size_t* written))                 \
  V(Status, Matmul,                                                                                \
    (Handle handle, MatmulDesc desc, const void* alpha, const void* a, MatrixLayout a_layout,      \
     const void* b, MatrixLayout b_layout, const void* beta, const void* c, MatrixLayout c_layout, \
     void* d, MatrixLayout d_layout, const Algo* algo, void* workspace, size_t workspace_bytes,    \
     StreamHandle stream))

// The functions of cuBLASLt: of the shared library, which is opened at run time, or fake ones for
// tests. Nothing here needs cuBLASLt's header: enumerations are int, whose values are in
// cublaslt_abi.h, and handles are void*.
struct CublasLtApi {
  using Status = int;  // cublasStatus_t
  static constexpr Status kSuccess = 0;
  static constexpr Status kInvalidValue = 7;
  static constexpr Status kExecutionFailed = 13;
  static constexpr Status kNotSupported = 15;

  using Handle = void*;        // cublasLtHandle_t
  using MatmulDesc = void*;    // cublasLtMatmulDesc_t
  using MatrixLayout = void*;  // cublasLtMatrixLayout_t
  using Preference = void*;    // cublasLtMatmulPreference_t
  using StreamHandle = void*;  // cudaStream_t
  // cublasLtMatmulAlgo_t.
  struct Algo {
    uint64_t data[8];
  };
  // cublasLtMatmulHeuristicResult_t.
  struct HeuristicResult {
    Algo algo;
    size_t workspace_bytes;
    Status state;
    float waves_count;
    int reserved[4];
  };

#define TESSERA_DECLARE_FUNCTION(Result, Name, Parameters) std::function<Result Parameters> Name;
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_DECLARE_FUNCTION)
#undef TESSERA_DECLARE_FUNCTION
};

// Opens cuBLASLt's shared library at the first of `places` that has it. A place is a path, or a
// name for the dynamic linker to search. The library stays open until the process ends.
//
// Errors: NotFound, in one sentence with every place, if no place has the library;
// FailedPrecondition for a version before 11.8 and for a library without the needed functions.
absl::StatusOr<std::unique_ptr<CublasLtApi>> OpenCublasLt(std::span<const std::string> places);

// Returns the places to look for cuBLASLt: $TESSERA_CUBLASLT alone if it is set, otherwise the
// usual ones (LibraryPlaces()), with libcublasLt.so.13 before libcublasLt.so.12.
std::vector<std::string> CublasLtPlaces();

// Describes the library for a numerics fingerprint: its version, and NVIDIA_TF32_OVERRIDE, by which
// it computes products of fp32 operands in TF32.
std::string DescribeCublasLt(size_t version);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_API_H_
