#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "convert/core/value.h"
#include "convert/formats/gguf/gguf.h"
#include "convert/formats/gguf/gguf_file.h"
#include "models/foreign/gguf_fields.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr int64_t kMaxRopeFactors = 1 << 16;
// The number of files that a model has been split into.
constexpr std::string_view kSplitCount = "split.count";
constexpr char kType[] = "general.type";

// Returns the scalars of the metadata, whose keys have dots of their own.
SavedValue Values(const GgufHeader& header) {
  SavedValue::Dict values;
  for (const auto& entry : header.metadata) {
    std::visit(
        [&](const auto& value) {
          using Plain = std::decay_t<decltype(value)>;
          if constexpr (std::is_constructible_v<decltype(SavedValue::data), Plain>) {
            values.Add({entry.first}, {value});
          }
        },
        entry.second);
  }
  return {std::move(values)};
}

absl::StatusOr<nlohmann::json> ReadRopeFactors(const ReadableFile& file, const GgufTensor& tensor) {
  const int64_t count = ElementCount(tensor.shape);
  if (tensor.dtype != DType::kF32 || count > kMaxRopeFactors) {
    return DataLoss("tensor ", tensor.name, ": ", count,
                    " elements, expected one F32 for each pair of rows");
  }
  std::vector<float> factors(static_cast<size_t>(count));
  TESSERA_RETURN_IF_ERROR(
      file.ReadAt(tensor.offset_bytes, std::as_writable_bytes(std::span(factors))));
  nlohmann::json json = nlohmann::json::array();
  for (const float factor : factors) json.push_back(factor);
  return json;
}

// Returns the configuration as the object of models/foreign/gguf_fields.h.
absl::StatusOr<std::string> Configuration(const ReadableFile& file, const GgufHeader& header,
                                          const SavedValue& values) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : ValuesByName(values)) json[name] = ValueToPlainJson(*value);
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.name == kGgufEmbedding && !tensor.shape.empty()) {
      json[kGgufEmbedding] = tensor.shape[0];
    } else if (tensor.name == kGgufHead) {
      json[kGgufHead] = true;
    } else if (tensor.name == kGgufRopeFactors) {
      TESSERA_ASSIGN_OR_RETURN(json[kGgufRopeFactors], ReadRopeFactors(file, tensor));
    }
  }
  return json.dump();
}

// Returns a value of this type in the metadata, or null.
template <typename T>
const T* FindValue(const SavedValue& values, std::string_view key) {
  const SavedValue* const value = values.As<SavedValue::Dict>()->Find(key);
  return value == nullptr ? nullptr : value->As<T>();
}

absl::Status CheckIsModel(const SavedValue& values) {
  const auto* const type = FindValue<std::string>(values, kType);
  if (type != nullptr && *type != "model") {
    return InvalidArgument(
        kType, " is ", Shown(*type),
        ": only whole models are read; an adapter has to be merged into its model");
  }
  const auto* const files = FindValue<int64_t>(values, kSplitCount);
  if (files == nullptr || *files <= 1) return absl::OkStatus();
  return InvalidArgument("one of ", *files,
                         " files that a model was split into: join them "
                         "with llama-gguf-split --merge");
}

absl::Status AddTensors(const Storage& storage, const std::string& file, const GgufHeader& header,
                        ForeignModel& model, ForeignTensorSet& set) {
  for (const GgufTensor& tensor : header.tensors) {
    const ForeignParameter* const parameter = model.Find(tensor.name);
    if (parameter == nullptr) {
      return InvalidArgument(storage.Describe(file), ": tensor ", tensor.name,
                             " belongs to no parameter of the model that the metadata describes");
    }
    TESSERA_RETURN_IF_ERROR(set.AddWhole(*parameter, {}, kForeignWeight, tensor.shape,
                                         {file, tensor.offset_bytes, tensor.dtype},
                                         ContiguousStrides(tensor.shape)));
  }
  return absl::OkStatus();
}

// Reads the header, and returns the model that it describes.
absl::StatusOr<ForeignModel> ReadModel(const ReadableFile& file, GgufHeader& header,
                                       ForeignCheckpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(header, ReadGgufHeader(file));
  checkpoint.state = Values(header);
  TESSERA_RETURN_IF_ERROR(CheckIsModel(checkpoint.state));
  TESSERA_ASSIGN_OR_RETURN(const std::string text, Configuration(file, header, checkpoint.state));
  const auto* const architecture = FindValue<std::string>(checkpoint.state, kGgufArchitecture);
  return In(absl::StrCat(kGgufArchitecture, " ",
                         architecture == nullptr ? "is missing" : Shown(*architecture)),
            ForeignModel::Read(kGguf, text, static_cast<int64_t>(header.tensors.size()),
                               file.size_bytes()));
}

}  // namespace

absl::StatusOr<std::string> FindGguf(Storage& storage, std::string_view file) {
  std::vector<std::string> found;
  if (!file.empty()) {
    found.emplace_back(file);
  } else {
    TESSERA_ASSIGN_OR_RETURN(found, storage.List(""));
    std::erase_if(found, [](const std::string& name) { return !name.ends_with(".gguf"); });
  }
  if (found.empty()) return std::string();
  if (found.size() > 1) {
    return InvalidArgument(storage.Describe(""), " has ", found.size(), " GGUF files: give one of ",
                           JoinFirst(found, ", "));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open, storage.Open(found[0]));
  if (open->size_bytes() < kGgufMagic.size()) return std::string();
  TESSERA_ASSIGN_OR_RETURN(const std::string magic, ReadPart(*open, 0, kGgufMagic.size()));
  return magic == kGgufMagic ? found[0] : std::string();
}

absl::StatusOr<ForeignCheckpoint> ReadGguf(Storage& storage, const std::string& file) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> open, storage.Open(file));
  ForeignCheckpoint checkpoint = CheckpointOf(kGguf, "llama.cpp");
  GgufHeader header;
  TESSERA_ASSIGN_OR_RETURN(ForeignModel model,
                           At(storage, file, ReadModel(*open, header, checkpoint)));
  ForeignTensorSet set(model.description());
  TESSERA_RETURN_IF_ERROR(AddTensors(storage, file, header, model, set));
  TESSERA_RETURN_IF_ERROR(std::move(set).MoveTo(kGguf, storage.Describe(file), checkpoint));
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
