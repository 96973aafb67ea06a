#ifndef TESSERA_MODELS_FOREIGN_GGUF_FIELDS_H_
#define TESSERA_MODELS_FOREIGN_GGUF_FIELDS_H_

#include <string_view>

#include "absl/status/status.h"
#include "models/config/config.pb.h"
#include "models/foreign/json_fields.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The configuration of a GGUF file is a JSON object: the file's metadata without arrays, and a
// field for each tensor that says more about the model:
//   "token_embd.weight"   its number of rows
//   "output.weight"       true, where the file has it
//   "rope_freqs.weight"   its elements; a writer writes them as that tensor
inline constexpr char kGgufArchitecture[] = "general.architecture";
inline constexpr char kGgufEmbedding[] = "token_embd.weight";
inline constexpr char kGgufHead[] = "output.weight";
inline constexpr char kGgufRopeFactors[] = "rope_freqs.weight";

// Returns whether the file is of llama.cpp's architecture of this name. The file's keys begin with
// the name.
bool IsGgufArchitecture(const JsonFields& fields, std::string_view name);

// Sets the sizes that all decoders have. Refuses experts, and heads whose size is not their share
// of the embedding's.
absl::Status ReadGgufSizes(const JsonFields& fields, std::string_view architecture,
                           ModelConfig& config);
void WriteGgufSizes(const ModelConfig& config, std::string_view architecture,
                    nlohmann::ordered_json& json);

}  // namespace tessera

#endif  // TESSERA_MODELS_FOREIGN_GGUF_FIELDS_H_
