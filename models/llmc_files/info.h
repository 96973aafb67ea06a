#ifndef TESSERA_MODELS_LLMC_FILES_INFO_H_
#define TESSERA_MODELS_LLMC_FILES_INFO_H_

#include <cstdint>

#include "models/config/config.pb.h"
#include "trainer/tensor/dtype.h"

namespace tessera {

// Llama-3's header has three real numbers in int32 fields.
enum class LlmcRealEncoding {
  kTruncated,  // llm.c: cut to an integer
  kFloatBits,  // InfiniTrain: the bits of the fp32
};

struct LlmcFileOptions {
  DType dtype = DType::kF32;  // of the stored weights: kF32 (version 3) or kBF16 (version 5)
  // Llama-3 only; carried so that import and export give back the same file.
  LlmcRealEncoding real_encoding = LlmcRealEncoding::kFloatBits;
  int32_t max_batch = 4;
  int32_t version_major = 3;
  int32_t version_minor = 1;
};

struct LlmcFileInfo {
  ModelConfig config;  // resolved
  LlmcFileOptions options;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LLMC_FILES_INFO_H_
