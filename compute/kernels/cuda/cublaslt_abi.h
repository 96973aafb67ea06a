#ifndef TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_ABI_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_ABI_H_

#include <cstdint>

// Values of cuBLASLt's enumerations, which have not changed since CUDA 11.8. cublaslt_abi_test.cc
// compares them with the toolkit's header.
namespace tessera::cublaslt_abi {

inline constexpr int kReal32F = 0;    // CUDA_R_32F
inline constexpr int kReal16BF = 14;  // CUDA_R_16BF

// cublasComputeType_t
inline constexpr int kCompute32F = 68;

// cublasLtMatmulDescAttributes_t, with the type of the value
inline constexpr int kDescTransA = 3;       // int32_t
inline constexpr int kDescTransB = 4;       // int32_t
inline constexpr int kDescEpilogue = 7;     // uint32_t
inline constexpr int kDescBiasPointer = 8;  // const void*
inline constexpr int kDescAuxPointer = 11;  // const void*
inline constexpr int kDescAuxLd = 12;       // int64_t

// cublasOperation_t
inline constexpr int32_t kOperationN = 0;
inline constexpr int32_t kOperationT = 1;

// cublasLtEpilogue_t
inline constexpr uint32_t kEpilogueDefault = 1;
inline constexpr uint32_t kEpilogueBias = 4;
inline constexpr uint32_t kEpilogueGeluAux = 32 | 128;
inline constexpr uint32_t kEpilogueGeluAuxBias = kEpilogueGeluAux | kEpilogueBias;
inline constexpr uint32_t kEpilogueDGelu = 64 | 128;
// The sums over the inner dim of operand A, or B, of D's type, instead of a bias.
inline constexpr uint32_t kEpilogueBgradA = 256;
inline constexpr uint32_t kEpilogueBgradB = 512;

// cublasLtMatmulPreferenceAttributes_t
inline constexpr int kPrefMaxWorkspaceBytes = 1;    // uint64_t
inline constexpr int kPrefReductionSchemeMask = 3;  // uint32_t
inline constexpr int kPrefMinAlignmentABytes = 5;   // uint32_t, as the three that follow
inline constexpr int kPrefMinAlignmentBBytes = 6;
inline constexpr int kPrefMinAlignmentCBytes = 7;
inline constexpr int kPrefMinAlignmentDBytes = 8;

// cublasLtMatmulAlgoConfigAttributes_t
inline constexpr int kAlgoReductionScheme = 3;  // uint32_t

// cublasLtReductionScheme_t: how partial sums over parts of the inner dim are added.
inline constexpr uint32_t kReductionNone = 0;
inline constexpr uint32_t kReductionInPlace = 1;
inline constexpr uint32_t kReductionComputeType = 2;
inline constexpr uint32_t kReductionOutputType = 4;

// cublasLtGetVersion(): 11.8; 12.3.4, before which there are no sums over an inner dim of 1.
inline constexpr uint64_t kMinVersion = 110800;
inline constexpr uint64_t kMinBgradVersion = 120304;

}  // namespace tessera::cublaslt_abi

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_ABI_H_
