#include <bit>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/format/dtype.h"
#include "convert/formats/llmc/llmc.h"
#include "models/layers/architecture.h"
#include "models/registry.h"

namespace tessera::ckpt::convert {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr int32_t kVersionF32 = 3;
constexpr int32_t kVersionBF16 = 5;

LlmcDescription Describe(const ModelConfig& config, const LlmcFormat& format, DType dtype,
                         const LlmcHeader& header) {
  LlmcDescription description = {
      .model = DescribeModel(config), .dtype = dtype, .tensors = format.tensors(config, header)};
  std::map<std::string, std::string> tied;  // names of parameters
  for (const LogicalParameter& parameter : description.model.parameters) {
    if (!parameter.tied_name.empty()) tied[parameter.tied_name] = parameter.name;
  }
  for (ForeignParameter& tensor : description.tensors) {
    const auto found = tied.find(tensor.name);
    if (found == tied.end()) continue;
    for (ForeignBlock& block : tensor.blocks) block.name = found->second;
  }
  return description;
}

}  // namespace

absl::StatusOr<LlmcDescription> ReadLlmcHeader(LlmcFile& file, const ModelProto* model) {
  std::vector<std::string> known;
  for (const Architecture* const architecture : Architectures()) {
    const LlmcFormat* const format = architecture->llmc;
    if (format == nullptr) continue;
    known.push_back(absl::StrCat(format->magic, " (", std::string(format->model), ")"));
    if (format->magic != file.header[0]) continue;
    const int32_t version = file.header[1];
    if (version != kVersionF32 && version != kVersionBF16) {
      return file.Corrupt(absl::StrCat("unknown version: expected ", kVersionF32, " (fp32) or ",
                                       kVersionBF16, " (bf16), found ", version));
    }
    const DType dtype = version == kVersionF32 ? DType::kF32 : DType::kBF16;
    file.element_bytes = ElementSize(dtype);
    TESSERA_ASSIGN_OR_RETURN(ModelConfig config, format->read_config(file));
    if (model != nullptr) {
      const absl::StatusOr<ModelConfig> wanted = ConfigOf(*model);
      if (wanted.ok() && wanted->architecture() == config.architecture() &&
          wanted->has_untie_embeddings_and_output_weights()) {
        config.set_untie_embeddings_and_output_weights(
            wanted->untie_embeddings_and_output_weights());
      }
    }
    return Describe(config, *format, dtype, file.header);
  }
  return file.Corrupt(absl::StrCat("wrong magic number: expected ", absl::StrJoin(known, " or "),
                                   ", found ", file.header[0]));
}

absl::StatusOr<LlmcOutput> WriteLlmcHeader(const ModelProto& model, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("a llm.c file has F32 or BF16, not ", ProtoName(dtype)));
  }
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
  const LlmcFormat* const format = FindArchitecture(config)->llmc;
  if (format == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a llm.c file has GPT-2 or Llama-3, not ", ArchitectureName(config)));
  }
  TESSERA_ASSIGN_OR_RETURN(LlmcHeader header, format->make_header(config));
  header[0] = format->magic;
  header[1] = dtype == DType::kF32 ? kVersionF32 : kVersionBF16;
  const auto bytes = std::as_bytes(std::span(header));
  return LlmcOutput{{reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                    Describe(config, *format, dtype, header)};
}

}  // namespace tessera::ckpt::convert
