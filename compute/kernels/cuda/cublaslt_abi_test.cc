// The declarations of cublaslt_abi.h and cublaslt_api.h against cuBLASLt's own header.

#include "compute/kernels/cuda/cublaslt_abi.h"

#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "base/testing.h"
#include "compute/kernels/cuda/cublaslt_api.h"

namespace tessera {
namespace {

using namespace cublaslt_abi;  // NOLINT(google-build-using-namespace): all of it is compared

static_assert(CublasLtApi::kSuccess == static_cast<int>(CUBLAS_STATUS_SUCCESS));
static_assert(CublasLtApi::kInvalidValue == static_cast<int>(CUBLAS_STATUS_INVALID_VALUE));
static_assert(CublasLtApi::kExecutionFailed == static_cast<int>(CUBLAS_STATUS_EXECUTION_FAILED));
static_assert(CublasLtApi::kNotSupported == static_cast<int>(CUBLAS_STATUS_NOT_SUPPORTED));
static_assert(sizeof(CublasLtApi::Algo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(CublasLtApi::HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(CublasLtApi::HeuristicResult, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(CublasLtApi::HeuristicResult, state) ==
              offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(kReal32F == CUDA_R_32F && kReal16BF == CUDA_R_16BF);
static_assert(kCompute32F == CUBLAS_COMPUTE_32F);
static_assert(kDescTransA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(kDescTransB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(kDescEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(kDescBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(kDescAuxPointer == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
static_assert(kDescAuxLd == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
static_assert(kOperationN == CUBLAS_OP_N && kOperationT == CUBLAS_OP_T);
static_assert(kEpilogueDefault == CUBLASLT_EPILOGUE_DEFAULT &&
              kEpilogueBias == CUBLASLT_EPILOGUE_BIAS);
static_assert(kEpilogueGeluAux == CUBLASLT_EPILOGUE_GELU_AUX &&
              kEpilogueGeluAuxBias == CUBLASLT_EPILOGUE_GELU_AUX_BIAS &&
              kEpilogueDGelu == CUBLASLT_EPILOGUE_DGELU);
static_assert(kEpilogueBgradA == CUBLASLT_EPILOGUE_BGRADA &&
              kEpilogueBgradB == CUBLASLT_EPILOGUE_BGRADB);
static_assert(kPrefMaxWorkspaceBytes == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kPrefReductionSchemeMask == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(kPrefMinAlignmentABytes == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kPrefMinAlignmentBBytes == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(kPrefMinAlignmentCBytes == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(kPrefMinAlignmentDBytes == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(kAlgoReductionScheme == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
static_assert(kReductionNone == CUBLASLT_REDUCTION_SCHEME_NONE);
static_assert(kReductionInPlace == CUBLASLT_REDUCTION_SCHEME_INPLACE);
static_assert(kReductionComputeType == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(kReductionOutputType == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);

// Needs no GPU: descriptors are host memory.
TEST(CublasLtAbiTest, TheToolkitsLibraryTakesEveryAttribute) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<CublasLtApi> opened, OpenCublasLt(CublasLtPlaces()));
  CublasLtApi& lt = *opened;
  EXPECT_STREQ(lt.GetStatusString(CublasLtApi::kSuccess), "success");

  CublasLtApi::MatmulDesc desc = nullptr;
  ASSERT_EQ(lt.MatmulDescCreate(&desc, kCompute32F, kReal32F), CublasLtApi::kSuccess);
  const int32_t operation = kOperationT;
  const uint32_t epilogue = kEpilogueBias;
  const void* const bias = &operation;
  EXPECT_EQ(lt.MatmulDescSetAttribute(desc, kDescTransA, &operation, 4), CublasLtApi::kSuccess);
  EXPECT_EQ(lt.MatmulDescSetAttribute(desc, kDescTransB, &operation, 4), CublasLtApi::kSuccess);
  EXPECT_EQ(lt.MatmulDescSetAttribute(desc, kDescEpilogue, &epilogue, 4), CublasLtApi::kSuccess);
  EXPECT_EQ(lt.MatmulDescSetAttribute(desc, kDescBiasPointer, &bias, 8), CublasLtApi::kSuccess);
  const int64_t leading_dim = 32;
  EXPECT_EQ(lt.MatmulDescSetAttribute(desc, kDescAuxPointer, &bias, 8), CublasLtApi::kSuccess);
  EXPECT_EQ(lt.MatmulDescSetAttribute(desc, kDescAuxLd, &leading_dim, 8), CublasLtApi::kSuccess);
  EXPECT_EQ(lt.MatmulDescDestroy(desc), CublasLtApi::kSuccess);

  CublasLtApi::MatrixLayout layout = nullptr;
  ASSERT_EQ(lt.MatrixLayoutCreate(&layout, kReal16BF, 30, 20, 32), CublasLtApi::kSuccess);
  EXPECT_EQ(lt.MatrixLayoutDestroy(layout), CublasLtApi::kSuccess);

  CublasLtApi::Preference preference = nullptr;
  ASSERT_EQ(lt.MatmulPreferenceCreate(&preference), CublasLtApi::kSuccess);
  const uint64_t workspace = 1 << 25;
  EXPECT_EQ(lt.MatmulPreferenceSetAttribute(preference, kPrefMaxWorkspaceBytes, &workspace, 8),
            CublasLtApi::kSuccess);
  const uint32_t value = 2;
  for (int attribute : {kPrefReductionSchemeMask, kPrefMinAlignmentABytes, kPrefMinAlignmentBBytes,
                        kPrefMinAlignmentCBytes, kPrefMinAlignmentDBytes}) {
    EXPECT_EQ(lt.MatmulPreferenceSetAttribute(preference, attribute, &value, 4),
              CublasLtApi::kSuccess)
        << attribute;
  }
  EXPECT_EQ(lt.MatmulPreferenceDestroy(preference), CublasLtApi::kSuccess);
}

}  // namespace
}  // namespace tessera
