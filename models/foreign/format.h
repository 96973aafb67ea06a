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

// The frameworks' names, as checkpoints record them and commands take them.
inline constexpr char kGguf[] = "gguf";
inline constexpr char kInfiniTrain[] = "infinitrain";
inline constexpr char kInternEvo[] = "internevo";
inline constexpr char kMegatron[] = "megatron";
inline constexpr char kMeta[] = "meta";
inline constexpr char kNanoGpt[] = "nanogpt";
inline constexpr char kPaddle[] = "paddle";
inline constexpr char kTorchtitan[] = "torchtitan";
inline constexpr char kTorchtitanGateUp[] = "torchtitan.w13";
inline constexpr char kTorchtitanQkv[] = "torchtitan.wqkv";

// The rules of another framework's files of an architecture.
struct ForeignFormat {
  std::string_view framework;  // "megatron"
  // Returns whether a configuration of the framework is of this architecture. At most one
  // architecture may return true.
  bool (*describes)(const JsonFields& fields) = nullptr;
  // Sets the fields of the config that the framework's configuration defines. InvalidArgument, one
  // sentence, if the configuration asks for something that this architecture does not have.
  absl::Status (*read_config)(const JsonFields& fields, ModelConfig& config) = nullptr;
  // Writes the framework's configuration of a resolved config. Null: the framework's files are not
  // written.
  void (*write_config)(const ModelConfig& config, nlohmann::ordered_json& json) = nullptr;
  // Returns InvalidArgument for models of the architecture that the framework does not have. Null:
  // the framework has all.
  absl::Status (*check)(const ModelConfig& config) = nullptr;
  // Returns all parameters of a model with a resolved config. Parameters that files may have either
  // one by one or stacked are given in both forms. Memory is proportional to layers times attention
  // heads.
  std::vector<ForeignParameter> (*parameters)(const ModelConfig& config) = nullptr;
};

// The rules of Hugging Face's files of an architecture. Logical tensors have Hugging Face's names,
// shapes and layouts, so the rest needs no rule.
struct HuggingFaceFormat {
  std::string_view model_type;  // in config.json: "gpt2"
  std::string_view class_name;  // of the model with its head: "GPT2LMHeadModel"
  // The beginning of the names of all tensors but the head. Files of the model without its head
  // leave it out.
  std::string_view prefix;
  // Patterns (base/files.h) of tensors that files may hold although they are computed, not learned.
  std::span<const std::string_view> computed;
  // The tensors of a layer, without its prefix, in the order of transformers' modules. Empty: in
  // the order of the model.
  std::span<const std::string_view> layer_order;
  // Sets the fields of the config that config.json defines. InvalidArgument, one sentence, if the
  // file asks for something that this architecture does not have.
  absl::Status (*read_config)(const JsonFields& fields, ModelConfig& config) = nullptr;
  // Writes the fields of config.json of a resolved config. The caller sets the model's type and
  // class, its vocabulary, and the other fields that all architectures have.
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

  // Returns DataLoss that names the file.
  absl::Status Corrupt(const std::string& what) const;
  // Returns OK if the file is exactly as long as its header and elements.
  absl::Status CheckLength(__int128 elements) const;
};

// The rules of model files of llm.c, or of InfiniTrain, which uses the same format.
struct LlmcFormat {
  int32_t magic = 0;       // header field 0
  std::string_view model;  // as messages call it: "GPT-2"
  // Returns the config in the header, resolved and checked against the file's length. DataLoss
  // names the file. Allocates nothing in proportion to numbers in the header.
  absl::StatusOr<ModelConfig> (*read_config)(const LlmcFile& file) = nullptr;
  // Returns the header of a resolved config, without fields 0 and 1. InvalidArgument if the format
  // cannot represent the config.
  absl::StatusOr<LlmcHeader> (*make_header)(const ModelConfig& config) = nullptr;
  // Returns the tensors in the body of a file with this header, in its order, with the logical
  // names.
  std::vector<ForeignParameter> (*tensors)(const ModelConfig& config,
                                           const LlmcHeader& header) = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_FOREIGN_FORMAT_H_
