#ifndef TESSERA_COMPUTE_KERNELS_CPU_DNNL_ISA_H_
#define TESSERA_COMPUTE_KERNELS_CPU_DNNL_ISA_H_

#include <string_view>

namespace tessera {

// Limits oneDNN to the instruction sets that TESSERA_CPU allows (base/cpu_level.h). A lower limit,
// which a user sets with the variable ONEDNN_MAX_CPU_ISA or DNNL_MAX_CPU_ISA, is kept.
//
// Must be called before oneDNN is first used, which fixes the instruction sets of the process;
// further calls do nothing. Thread-safe.
void LimitDnnlIsa();

// The newest instruction set that oneDNN uses, named as in ONEDNN_MAX_CPU_ISA but in lower case:
// "avx2", "avx512_core". Calls LimitDnnlIsa().
std::string_view DnnlIsaName();

// Whether oneDNN has native bf16 products. With AVX-512 alone it emulates them, at a quarter of
// fp32's rate. Calls LimitDnnlIsa().
bool DnnlHasBf16();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_DNNL_ISA_H_
