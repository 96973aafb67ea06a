// A fuzz target: any bytes as a model file of llm.c, and as the optimizer's state beside one. What
// is accepted has every element of every tensor inside its files.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/include/manifest.h"
#include "checkpoint/storage/testing/memory_storage.h"
#include "convert/core/foreign_storage.h"
#include "convert/llmc/llmc.h"

namespace {

namespace ckpt = tessera::ckpt;

constexpr char kModel[] = "model_00000001.bin";

void Check(bool condition) {
  if (!condition) std::abort();
}

void Write(ckpt::Storage& storage, std::string_view name, std::string_view contents) {
  auto file = storage.Create(name, contents.size());
  Check(file.ok());
  Check((*file)->WriteAt(0, std::as_bytes(std::span(contents))).ok());
  Check((*file)->Close().ok());
}

// A whole model file, of zeros.
std::string SmallModel() {
  ckpt::ModelProto config;
  config.set_text(
      "architecture: GPT2 num_layers: 1 hidden_size: 4 num_attention_heads: 1 vocab_size: 8 "
      "max_position_embeddings: 4");
  auto output = ckpt::convert::WriteLlmcHeader(config, tessera::DType::kF32);
  Check(output.ok());
  int64_t elements = 0;
  for (const auto& tensor : output->description.tensors) elements += tensor.rows * tensor.columns;
  output->header.resize(output->header.size() + elements * sizeof(float));
  return std::move(output->header);
}

void Read(const std::shared_ptr<ckpt::Storage>& storage) {
  auto read = ckpt::convert::ReadLlmc(*storage, kModel, nullptr);
  if (!read.ok()) return;
  Check(!read->tensors.empty());
  // Copies that differ are refused here.
  ckpt::convert::ForeignStorage::Create(storage, "", *std::move(read)).IgnoreError();
}

// Reads the state of up to two ranks, whose files differ by the rank in the header.
void ReadState(std::string state) {
  static const std::string model = SmallModel();
  constexpr size_t kRankField = 3 * sizeof(int32_t);
  const auto storage = std::make_shared<ckpt::MemoryStorage>();
  Write(*storage, kModel, model);
  Write(*storage, "state_00000001_00000.bin", state);
  if (state.size() > kRankField) state[kRankField] = 1;
  Write(*storage, "state_00000001_00001.bin", state);
  Read(storage);
}

void ReadModel(std::string_view model) {
  const auto storage = std::make_shared<ckpt::MemoryStorage>();
  Write(*storage, kModel, model);
  Read(storage);
}

}  // namespace

extern "C" int FuzzOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ReadModel(bytes);
  ReadState(std::string(bytes));
  return 0;
}
