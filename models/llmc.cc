#include "models/llmc.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/gpt2/llmc.h"
#include "models/llama3/llmc.h"
#include "models/llmc_files/file.h"

namespace tessera {
namespace {

constexpr int32_t kVersionF32 = 3;
constexpr int32_t kVersionBF16 = 5;

absl::StatusOr<LlmcFileInfo> ReadInfo(const LlmcReader& reader) {
  const int32_t magic = reader.header()[0], version = reader.header()[1];
  if (magic != gpt2::kLlmcMagic && magic != llama3::kLlmcMagic) {
    return reader.Corrupt(absl::StrCat("wrong magic number: expected ", gpt2::kLlmcMagic,
                                       " (GPT-2) or ", llama3::kLlmcMagic, " (Llama-3), found ",
                                       magic));
  }
  if (version != kVersionF32 && version != kVersionBF16) {
    return reader.Corrupt(absl::StrCat("unknown version: expected ", kVersionF32, " (fp32) or ",
                                       kVersionBF16, " (bf16), found ", version));
  }
  const DType dtype = version == kVersionF32 ? DType::kF32 : DType::kBF16;
  if (magic == llama3::kLlmcMagic) return llama3::ReadLlmcInfo(reader, dtype);
  absl::StatusOr<ModelConfig> config = gpt2::ReadLlmcConfig(reader, ElementSize(dtype));
  if (!config.ok()) return config.status();
  LlmcFileInfo info;
  info.config = *std::move(config);
  info.options.dtype = dtype;
  info.padded_vocab_size = reader.header()[7];
  return info;
}

std::vector<LlmcTensor> Tensors(const ModelConfig& config, int64_t padded_vocab_size) {
  return config.architecture() == ModelConfig::GPT2 ? gpt2::LlmcTensors(config, padded_vocab_size)
                                                    : llama3::LlmcTensors(config);
}

// A number in the file, compared with the configured model's. Reals in the file are fp32.
struct Comparison {
  const char* field;
  double file;
  double model;
  bool real = false;
  bool equal() const {
    return file == model || (real && static_cast<float>(file) == static_cast<float>(model));
  }
};

// FailedPrecondition listing every field that differs.
absl::Status CompareConfigs(const std::string& path, const LlmcFileInfo& info,
                            const ModelConfig& model) {
  const ModelConfig& file = info.config;
  if (file.architecture() != model.architecture()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": architecture is ",
                     ModelConfig::Architecture_Name(file.architecture()), " in the file and ",
                     ModelConfig::Architecture_Name(model.architecture()), " in the model"));
  }
  const auto as_double = [](int64_t value) { return static_cast<double>(value); };
  std::vector<Comparison> fields = {
      {"num_layers", as_double(file.num_layers()), as_double(model.num_layers())},
      {"hidden_size", as_double(file.hidden_size()), as_double(model.hidden_size())},
      {"num_attention_heads", as_double(file.num_attention_heads()),
       as_double(model.num_attention_heads())},
      {"num_query_groups", as_double(file.num_query_groups()), as_double(model.num_query_groups())},
      {"ffn_hidden_size", as_double(file.ffn_hidden_size()), as_double(model.ffn_hidden_size())},
      {"vocab_size", as_double(file.vocab_size()), as_double(model.vocab_size())},
      {"norm_epsilon", file.norm_epsilon(), model.norm_epsilon(), true},
  };
  if (file.architecture() == ModelConfig::GPT2) {
    fields.push_back({"max_position_embeddings", as_double(file.max_position_embeddings()),
                      as_double(model.max_position_embeddings())});
  } else {
    fields.push_back({"rotary_base", file.rotary_base(), model.rotary_base(), true});
    fields.push_back({"use_rope_scaling", as_double(file.use_rope_scaling()),
                      as_double(model.use_rope_scaling())});
    // A truncated epsilon carries no information.
    if (info.options.real_encoding == LlmcRealEncoding::kTruncated) {
      std::erase_if(fields, [](const Comparison& field) {
        return std::strcmp(field.field, "norm_epsilon") == 0;
      });
    }
  }
  std::vector<std::string> differences;
  for (const Comparison& field : fields) {
    if (field.equal()) continue;
    differences.push_back(absl::StrCat(field.field, " is ", field.file, " in the file and ",
                                       field.model, " in the model"));
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", absl::StrJoin(differences, "; ")));
}

// A tied model has one matrix where the file has two, which must be equal.
absl::Status CheckTied(const LlmcReader& reader, const ModelConfig& config, DType dtype) {
  constexpr int64_t kBlockBytes = 1 << 20;
  const int64_t size = config.vocab_size() * config.hidden_size() * ElementSize(dtype);
  std::vector<std::byte> embedding(std::min(size, kBlockBytes)), head(embedding.size());
  for (int64_t done = 0; done < size;) {
    const size_t count = std::min(size - done, kBlockBytes);
    auto status = reader.ReadAt(kLlmcHeaderBytes + done, std::span(embedding).first(count));
    if (status.ok()) {
      status = reader.ReadAt(reader.size_bytes() - size + done, std::span(head).first(count));
    }
    if (!status.ok()) return status;
    if (std::memcmp(embedding.data(), head.data(), count) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(reader.path(), ": the head differs from the token embedding, but ",
                       "untie_embeddings_and_output_weights is false in the model"));
    }
    done += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<LlmcHeader> MakeHeader(const ModelConfig& config, const LlmcFileOptions& options) {
  if (config.architecture() == ModelConfig::OTHER) {
    return absl::InvalidArgumentError(
        absl::StrCat("a llm.c file has GPT-2 or Llama-3, not ", config.other_architecture()));
  }
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat("a llm.c file has float32 or bfloat16, not ",
                                                   std::string(DTypeName(options.dtype))));
  }
  const int32_t version = options.dtype == DType::kF32 ? kVersionF32 : kVersionBF16;
  return config.architecture() == ModelConfig::GPT2
             ? gpt2::MakeLlmcHeader(config, version)
             : llama3::MakeLlmcHeader(config, version, options);
}

}  // namespace

absl::StatusOr<LlmcFileInfo> ReadLlmcInfo(const std::string& path) {
  absl::StatusOr<LlmcReader> reader = LlmcReader::Open(path);
  if (!reader.ok()) return reader.status();
  return ReadInfo(*reader);
}

absl::StatusOr<LlmcFileInfo> ParseLlmcInfo(const std::string& path,
                                           std::span<const std::byte> header, int64_t size_bytes) {
  absl::StatusOr<LlmcReader> reader = LlmcReader::FromHeader(path, header, size_bytes);
  if (!reader.ok()) return reader.status();
  return ReadInfo(*reader);
}

absl::StatusOr<LlmcHeader> MakeLlmcHeader(const ModelConfig& config,
                                          const LlmcFileOptions& options) {
  return MakeHeader(config, options);
}

std::vector<LlmcTensor> LlmcTensors(const LlmcFileInfo& info) {
  return Tensors(info.config, info.padded_vocab_size);
}

absl::Status ImportLlmc(const std::string& path, const ModelConfig& config,
                        const ParameterSet& parameters, const TensorView& flat) {
  absl::StatusOr<LlmcReader> reader = LlmcReader::Open(path);
  if (!reader.ok()) return reader.status();
  absl::StatusOr<LlmcFileInfo> info = ReadInfo(*reader);
  if (!info.ok()) return info.status();
  if (auto status = CompareConfigs(path, *info, config); !status.ok()) return status;
  const DType dtype = info->options.dtype;
  const bool tied_llama =
      config.architecture() == ModelConfig::LLAMA3 && !config.untie_embeddings_and_output_weights();
  if (tied_llama) {
    if (auto status = CheckTied(*reader, config, dtype); !status.ok()) return status;
  }
  // GPT-2's header field 7; Llama's tensors are not padded.
  return ImportLlmcTensors(*reader, dtype, Tensors(config, reader->header()[7]), parameters, flat);
}

absl::Status ExportLlmc(const std::string& path, const ModelConfig& config,
                        const LlmcFileOptions& options, const ParameterSet& parameters,
                        const TensorView& flat) {
  absl::StatusOr<LlmcHeader> header = MakeHeader(config, options);
  if (!header.ok()) return header.status();
  absl::StatusOr<LlmcWriter> writer = LlmcWriter::Create(path, *header);
  if (!writer.ok()) return writer.status();
  const std::vector<LlmcTensor> tensors = Tensors(config, (*header)[7]);
  auto status = ExportLlmcTensors(*writer, options.dtype, tensors, parameters, flat);
  if (!status.ok()) return status;
  return writer->Close();
}

absl::Status ExportLlmc(const std::string& path, const ModelConfig& config,
                        const LlmcFileOptions& options, std::span<const LlmcPart> parts,
                        const LlmcRanks& ranks, bool writes) {
  absl::StatusOr<LlmcHeader> header = MakeHeader(config, options);
  if (!header.ok()) return header.status();
  const std::vector<LlmcTensor> tensors = Tensors(config, (*header)[7]);
  if (!writes) return ExportLlmcTensors(nullptr, options.dtype, tensors, parts, ranks);
  absl::StatusOr<LlmcWriter> writer = LlmcWriter::Create(path, *header);
  if (!writer.ok()) return writer.status();
  auto status = ExportLlmcTensors(&*writer, options.dtype, tensors, parts, ranks);
  if (!status.ok()) return status;
  return writer->Close();
}

absl::Status CheckLlmcExport(const std::string& path, const ModelConfig& config,
                             const LlmcFileOptions& options) {
  absl::StatusOr<LlmcHeader> header = MakeHeader(config, options);
  if (!header.ok()) return header.status();
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder"));
  }
  return LlmcWriter::Create(path, *header).status();
}

}  // namespace tessera
