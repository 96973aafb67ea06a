#ifndef TESSERA_MODELS_LLMC_FILES_INFO_H_
#define TESSERA_MODELS_LLMC_FILES_INFO_H_

#include <cstdint>

#include "compute/tensor/dtype.h"
#include "models/config/config.pb.h"

namespace tessera {

// The encoding of the three real numbers that Llama-3's header stores in int32 fields.
enum class LlmcRealEncoding {
  kTruncated,  // llm.c: truncated to an integer
  kFloatBits,  // InfiniTrain: the bits of the fp32
};

struct LlmcFileOptions {
  DType dtype = DType::kF32;  // of the stored weights: kF32 (version 3) or kBF16 (version 5)
  // Llama-3 only; kept so that export after import reproduces the file.
  LlmcRealEncoding real_encoding = LlmcRealEncoding::kFloatBits;
  int32_t max_batch = 4;
  int32_t version_major = 3;
  int32_t version_minor = 1;
};

struct LlmcFileInfo {
  ModelConfig config;  // resolved
  LlmcFileOptions options;
  int64_t padded_vocab_size = 0;  // GPT-2's; Llama's is not padded
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LLMC_FILES_INFO_H_
