#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/core/saved_weights.h"
#include "convert/formats/gguf/gguf.h"
#include "convert/formats/gguf/gguf_file.h"
#include "layout/box.h"
#include "nlohmann/json.hpp"
#include "tokenizer/files/gguf_vocabulary.h"

namespace tessera::ckpt::convert {
namespace {

// "general.file_type", as llama.cpp numbers what most weights are: never renumber.
constexpr std::pair<DType, int64_t> kFileTypes[] = {
    {DType::kF32, 0}, {DType::kF16, 1}, {DType::kBF16, 32}};
constexpr int64_t kQuantizationVersion = 2;
constexpr char kPositions[] = "position_embd.weight";

const auto* FileType(DType dtype) {
  return std::ranges::find(kFileTypes, dtype, &std::pair<DType, int64_t>::first);
}

// Adds the metadata of the model, except what is written as a tensor.
absl::Status AddModel(const nlohmann::ordered_json& json, GgufHeader& header) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_string()) {
      header.metadata.emplace_back(key, value.get<std::string>());
    } else if (value.is_number_integer()) {
      const auto number = value.get<int64_t>();
      if (!std::in_range<uint32_t>(number)) {
        return InvalidArgument(key, " is ", number, ", which a GGUF file cannot have");
      }
      header.metadata.emplace_back(key, number);
    } else if (value.is_number()) {
      header.metadata.emplace_back(key, value.get<double>());
    }
  }
  return absl::OkStatus();
}

void AddVocabulary(GgufVocabulary vocabulary, GgufHeader& header) {
  const auto add = [&](const char* key, GgufValue value) {
    header.metadata.emplace_back(absl::StrCat("tokenizer.ggml.", key), std::move(value));
  };
  const auto add_id = [&](const char* key, std::optional<int32_t> id) {
    if (id.has_value()) add(key, int64_t{*id});
  };
  add("model", vocabulary.model);
  add("pre", vocabulary.pre);
  add("tokens", std::move(vocabulary.tokens));
  add("token_type", std::move(vocabulary.types));
  if (vocabulary.scores.empty()) {
    add("merges", std::move(vocabulary.merges));
  } else {
    add("scores", std::move(vocabulary.scores));
    add("add_space_prefix", vocabulary.adds_space_prefix);
  }
  add_id("bos_token_id", vocabulary.begin_of_text.value_or(vocabulary.end_of_text));
  add_id("eos_token_id", vocabulary.end_of_text);
  add_id("unknown_token_id", vocabulary.unknown);
  add("add_bos_token", vocabulary.begin_of_text.has_value());
  add("add_eos_token", false);
}

// Returns a tensor that is computed from the configuration and not learned.
std::string Elements(const nlohmann::ordered_json& numbers, const GgufTensor& tensor) {
  std::string bytes;
  for (const nlohmann::ordered_json& number : numbers) {
    const auto element = number.get<float>();
    bytes.append(reinterpret_cast<const char*>(&element), sizeof(element));
  }
  bytes.resize(PaddedGgufBytes(tensor));
  return bytes;
}

class GgufPlan {
 public:
  // Precondition: the weights are all of the parameters'.
  GgufPlan(const std::vector<SavedWeight>& weights, const nlohmann::ordered_json& json, DType dtype)
      : json_(json), dtype_(dtype) {
    for (const SavedWeight& weight : weights) weights_[weight.parameter->name] = &weight;
  }

  absl::StatusOr<OutputFile> File(const std::vector<ForeignParameter>& parameters,
                                  std::optional<GgufVocabulary> vocabulary) {
    // Computed ones come first, so that the file begins with them.
    for (const bool computed : {true, false}) {
      for (const ForeignParameter& parameter : parameters) {
        if (parameter.blocks.empty() != computed) continue;
        if (computed && !json_.contains(parameter.name)) continue;
        written_.push_back(&parameter);
        header_.tensors.push_back(
            {.name = parameter.name, .dtype = DTypeOf(parameter), .shape = parameter.shape});
      }
    }
    TESSERA_RETURN_IF_ERROR(CheckDTypes());
    TESSERA_RETURN_IF_ERROR(AddModel(json_, header_));
    header_.metadata.emplace_back("general.type", "model");
    header_.metadata.emplace_back("general.file_type", MostlyType());
    header_.metadata.emplace_back("general.quantization_version", kQuantizationVersion);
    if (vocabulary.has_value()) {
      AddVocabulary(*std::move(vocabulary), header_);
    } else {
      header_.metadata.emplace_back("tokenizer.ggml.model", "none");
    }
    return Place();
  }

 private:
  DType DTypeOf(const ForeignParameter& parameter) const {
    if (parameter.shape.size() == 1 || parameter.name == kPositions) return DType::kF32;
    return dtype_ != DType::kUnspecified ? dtype_ : weights_.at(parameter.blocks[0].name)->dtype;
  }

  absl::Status CheckDTypes() const {
    for (const GgufTensor& tensor : header_.tensors) {
      if (FileType(tensor.dtype) != std::end(kFileTypes)) continue;
      return InvalidArgument(tensor.name, " is ", ProtoName(tensor.dtype),
                             ": a GGUF file has F32, F16 or BF16; choose one with --dtype");
    }
    return absl::OkStatus();
  }

  int64_t MostlyType() const {
    std::map<int64_t, int64_t> elements;  // by type
    for (const GgufTensor& tensor : header_.tensors) {
      if (tensor.shape.size() == 1 || tensor.name == kPositions) continue;
      elements[FileType(tensor.dtype)->second] += ElementCount(tensor.shape);
    }
    return std::ranges::max_element(elements, {}, &std::pair<const int64_t, int64_t>::second)
        ->first;
  }

  OutputFile Place() {
    OutputFile file = {.name = "model.gguf", .header = BuildGgufHeader(header_)};
    for (size_t i = 0; i < written_.size(); ++i) {
      const ForeignParameter& parameter = *written_[i];
      const GgufTensor& tensor = header_.tensors[i];
      file.size_bytes = tensor.offset_bytes + PaddedGgufBytes(tensor);
      if (parameter.blocks.empty()) {
        file.header += Elements(json_.at(parameter.name), tensor);
      } else {
        const LogicalParameter& logical = *weights_.at(parameter.blocks[0].name)->parameter;
        OutputTensor& output = file.tensors.emplace_back(
            WholeParameter(parameter, logical, kForeignWeight, tensor.dtype));
        output.offset_bytes = tensor.offset_bytes;
        output.elements = static_cast<int64_t>(PaddedGgufBytes(tensor)) / ElementSize(tensor.dtype);
      }
    }
    return file;
  }

  const nlohmann::ordered_json& json_;
  const DType dtype_;  // unspecified: as saved
  std::map<std::string, const SavedWeight*> weights_;
  GgufHeader header_;
  std::vector<const ForeignParameter*> written_;  // by index in header_.tensors
};

}  // namespace

absl::StatusOr<std::vector<OutputFile>> PlanGguf(const Manifest& manifest,
                                                 const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, WriteForeignConfig(kGguf, manifest.model()));
  const auto json = nlohmann::ordered_json::parse(text);
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(manifest.model()));
  const ModelDescription model = DescribeModel(config);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SavedWeight> weights, FindWeights(manifest, model));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ForeignParameter> parameters,
                           ForeignParameters(kGguf, manifest.model()));
  std::optional<GgufVocabulary> vocabulary;
  if (options.tokenizer != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        vocabulary,
        In(options.tokenizer_path, DescribeForGguf(*options.tokenizer, config.vocab_size())));
  }
  TESSERA_ASSIGN_OR_RETURN(
      OutputFile file,
      GgufPlan(weights, json, options.dtype).File(parameters, std::move(vocabulary)));
  std::vector<OutputFile> files;
  files.push_back(std::move(file));
  return files;
}

}  // namespace tessera::ckpt::convert
