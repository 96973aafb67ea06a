#ifndef TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_API_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

// The functions of cuBLASLt that Tessera calls, one method each, named after it. Implementations:
// the shared library, which is opened at run time (cublaslt_library.h), and a fake one for tests.
// Nothing here needs cuBLASLt's header; the values of its enumerations are in cublaslt_abi.h.
class CublasLtApi {
 public:
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

  virtual ~CublasLtApi() = default;

  virtual size_t GetVersion() = 0;
  virtual Status Create(Handle* handle) = 0;
  virtual Status Destroy(Handle handle) = 0;
  virtual Status MatmulDescCreate(MatmulDesc* desc, int compute_type, int scale_type) = 0;
  virtual Status MatmulDescSetAttribute(MatmulDesc desc, int attribute, const void* value,
                                        size_t bytes) = 0;
  virtual Status MatmulDescDestroy(MatmulDesc desc) = 0;
  // Column-major: element (r, c) is at r + c * leading_dim.
  virtual Status MatrixLayoutCreate(MatrixLayout* layout, int type, uint64_t rows, uint64_t columns,
                                    int64_t leading_dim) = 0;
  virtual Status MatrixLayoutDestroy(MatrixLayout layout) = 0;
  virtual Status PreferenceCreate(Preference* preference) = 0;
  virtual Status PreferenceSetAttribute(Preference preference, int attribute, const void* value,
                                        size_t bytes) = 0;
  virtual Status PreferenceDestroy(Preference preference) = 0;
  // The best first.
  virtual Status AlgoGetHeuristic(Handle handle, MatmulDesc desc, MatrixLayout a, MatrixLayout b,
                                  MatrixLayout c, MatrixLayout d, Preference preference,
                                  int requested, HeuristicResult* results, int* returned) = 0;
  virtual Status AlgoConfigGetAttribute(const Algo* algo, int attribute, void* value, size_t bytes,
                                        size_t* written) = 0;
  // d = alpha op(a) op(b) + beta c (+ bias, by row).
  virtual Status Matmul(Handle handle, MatmulDesc desc, const void* alpha, const void* a,
                        MatrixLayout a_layout, const void* b, MatrixLayout b_layout,
                        const void* beta, const void* c, MatrixLayout c_layout, void* d,
                        MatrixLayout d_layout, const Algo* algo, void* workspace,
                        size_t workspace_bytes, StreamHandle stream) = 0;

  virtual std::string StatusString(Status status) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_API_H_
