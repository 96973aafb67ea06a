#ifndef TESSERA_MODELS_FOREIGN_FORMAT_H_
#define TESSERA_MODELS_FOREIGN_FORMAT_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/foreign_parameter.h"
#include "models/config/config.pb.h"
#include "models/foreign/json_fields.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The frameworks' names, which checkpoints state and commands take.
inline constexpr char kGguf[] = "gguf";
inline constexpr char kInfiniTrain[] = "infinitrain";
inline constexpr char kInternEvo[] = "internevo";
inline constexpr char kMegatron[] = "megatron";
inline constexpr char kMeta[] = "meta";
inline constexpr char kNanoGpt[] = "nanogpt";
inline constexpr char kPaddle[] = "paddle";

// What another framework's files of an architecture are like.
struct ForeignFormat {
  std::string_view framework;  // "megatron"
  // Whether a configuration of the framework is of this architecture. At most one architecture may
  // say so.
  bool (*describes)(const JsonFields& fields) = nullptr;
  // Sets the fields of the config that the framework's configuration defines. InvalidArgument: one
  // sentence, where it asks for something that this architecture does not have.
  absl::Status (*read_config)(const JsonFields& fields, ModelConfig& config) = nullptr;
  // The inverse, for a resolved config. Null: the framework's files are not written.
  void (*write_config)(const ModelConfig& config, nlohmann::ordered_json& json) = nullptr;
  // InvalidArgument for models of the architecture that the framework does not have. Null: it has
  // all.
  absl::Status (*check)(const ModelConfig& config) = nullptr;
  // All parameters of a model with a resolved config. Those that files may have either one by one
  // or stacked are given in both forms. Memory is proportional to layers times attention heads.
  std::vector<ForeignParameter> (*parameters)(const ModelConfig& config) = nullptr;
};

// What Hugging Face's files of an architecture are like. Logical tensors have Hugging Face's names,
// shapes and layouts, so the rest needs no rule.
struct HuggingFaceFormat {
  std::string_view model_type;  // in config.json: "gpt2"
  std::string_view class_name;  // of the model with its head: "GPT2LMHeadModel"
  // The beginning of the names of all tensors but the head. Files of the model without its head
  // leave it out.
  std::string_view prefix;
  // Patterns (base/files.h) of tensors that files may hold although they are computed, not learned.
  std::span<const std::string_view> computed;
  // The tensors of a layer, without its prefix, in the order of transformers' modules. Empty: that
  // of the model.
  std::span<const std::string_view> layer_order;
  // Sets the fields of the config that config.json defines. InvalidArgument: one sentence, where it
  // asks for something that this architecture does not have.
  absl::Status (*read_config)(const JsonFields& fields, ModelConfig& config) = nullptr;
  // The inverse, for a resolved config. The caller sets the model's type and class, its vocabulary
  // and what else all architectures have.
  void (*write_config)(const ModelConfig& config, nlohmann::ordered_json& json) = nullptr;
};

// Model files of llm.c (https://github.com/karpathy/llm.c) and of InfiniTrain: a header of 256
// little-endian int32, then every tensor over all layers at once, in fp32 (version 3) or bf16 (5).
using LlmcHeader = std::array<int32_t, 256>;
inline constexpr int64_t kLlmcHeaderBytes = 1024;

// The header and the length of a model file.
struct LlmcFile {
  std::string path;  // for messages
  LlmcHeader header = {};
  int64_t size_bytes = 0;
  int64_t element_bytes = 0;

  // DataLoss that names the file.
  absl::Status Corrupt(const std::string& what) const;
  // OK if the file is exactly as long as header and elements are.
  absl::Status CheckLength(__int128 elements) const;
};

// What model files of llm.c, or of InfiniTrain, which uses the same format, are like.
struct LlmcFormat {
  int32_t magic = 0;       // header field 0
  std::string_view model;  // as messages call it: "GPT-2"
  // The config in the header, resolved, checked against the file's length. DataLoss naming the
  // file. Allocates nothing in proportion to numbers in the header.
  absl::StatusOr<ModelConfig> (*read_config)(const LlmcFile& file) = nullptr;
  // The header for a resolved config, but for fields 0 and 1. InvalidArgument where the format
  // cannot represent the config.
  absl::StatusOr<LlmcHeader> (*make_header)(const ModelConfig& config) = nullptr;
  // The tensors in the body of a file with this header, in its order, with the logical names.
  std::vector<ForeignParameter> (*tensors)(const ModelConfig& config,
                                           const LlmcHeader& header) = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_FOREIGN_FORMAT_H_
