// A fuzz target: any bytes as a model file of llm.c, and as the optimizer's state beside one. What
// is accepted has every element of every tensor inside its files.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_storage.h"
#include "convert/formats/llmc/llmc.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/packed_folder.h"
#include "layout/box.h"

namespace {

namespace ckpt = tessera::ckpt;
using tessera::ckpt::convert::Check;

constexpr char kModel[] = "model_00000001.bin";

// A whole model file, of zeros.
std::string SmallModel() {
  ckpt::ModelProto config;
  config.set_text(
      "architecture: GPT2 num_layers: 1 hidden_size: 4 num_attention_heads: 1 vocab_size: 8 "
      "max_position_embeddings: 4");
  auto output = ckpt::convert::WriteLlmcHeader(config, tessera::DType::kF32);
  Check(output.ok());
  int64_t elements = 0;
  for (const auto& tensor : output->description.tensors)
    elements += tessera::ElementCount(tensor.shape);
  output->header.resize(output->header.size() + elements * sizeof(float));
  return std::move(output->header);
}

void Read(const std::map<std::string, std::string>& files) {
  // Copies that differ are refused.
  ckpt::convert::ReadWholeFolder(ckpt::convert::FolderOf(files), [](tessera::Storage& storage) {
    return ckpt::convert::ReadLlmc(storage, kModel, nullptr);
  }).IgnoreError();
}

// Reads the state of up to two ranks, whose files differ by the rank in the header.
void ReadState(const std::string& state) {
  static const std::string model = SmallModel();
  constexpr size_t kRankField = 3 * sizeof(int32_t);
  std::string second = state;
  if (state.size() > kRankField) second[kRankField] = 1;
  Read(
      {{kModel, model}, {"state_00000001_00000.bin", state}, {"state_00000001_00001.bin", second}});
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  Read({{kModel, input}});
  ReadState(input);
}
