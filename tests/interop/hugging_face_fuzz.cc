// A fuzz target: any bytes as the index of a folder in Hugging Face's format, and as its
// config.json. What is accepted has every tensor once, in a file of the folder.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/format/safetensors.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/models.h"
#include "convert/formats/hugging_face/hugging_face.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/packed_folder.h"

namespace {

namespace ckpt = tessera::ckpt;
using tessera::ckpt::convert::Check;

constexpr int64_t kTensors = 100;  // that config.json is read for

std::string FileOfOneTensor(const std::string& key, tessera::Shape shape) {
  ckpt::SafetensorsHeader header;
  header.entries = {{.key = key, .dtype = tessera::DType::kF32, .shape = std::move(shape)}};
  auto bytes = ckpt::BuildSafetensorsHeader(header);
  Check(bytes.ok());
  bytes->resize(header.file_size_bytes);
  return *std::move(bytes);
}

void ReadIndex(std::string_view text) {
  static const std::string first = FileOfOneTensor("a", {2, 2}), second = FileOfOneTensor("b", {3});
  const auto storage =
      ckpt::convert::FolderOf({{"model-00001-of-00002.safetensors", first},
                               {"model-00002-of-00002.safetensors", second},
                               {"model.safetensors.index.json", std::string(text)}});
  auto read = ckpt::convert::ReadSafetensors(*storage, "");
  if (!read.ok()) return;
  Check(read->tensors.size() <= 2);
  Check(ckpt::convert::ForeignStorage::Create(storage, *std::move(read)).ok());
}

void ReadConfig(std::string_view text) {
  const auto description = ckpt::convert::ReadHuggingFaceConfig(text, kTensors);
  if (!description.ok()) return;
  const auto& parameters = description->model.parameters;
  Check(!parameters.empty() && parameters.size() <= 20 * kTensors);
  for (const auto& parameter : parameters) Check(!parameter.name.empty());
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  ReadIndex(input);
  ReadConfig(input);
}
