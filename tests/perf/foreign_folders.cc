#include "tests/perf/foreign_folders.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/models.h"
#include "convert/formats/llmc/llmc.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

// A header and random bytes or a hole.
absl::Status WriteFile(const std::string& path, const std::string& header, int64_t body_bytes,
                       bool random_values) {
  std::ofstream stream(path, std::ios::binary);
  stream << header;
  std::vector<uint64_t> block(1 << 20);
  const auto block_bytes = static_cast<int64_t>(block.size() * sizeof(uint64_t));
  uint64_t random = body_bytes;
  for (int64_t done = 0; random_values && done < body_bytes; done += block_bytes) {
    for (uint64_t& word : block) word = random = random * 6364136223846793005u + 1;
    stream.write(reinterpret_cast<const char*>(block.data()),
                 std::min(block_bytes, body_bytes - done));
  }
  stream.close();
  std::error_code error;
  std::filesystem::resize_file(path, header.size() + static_cast<uint64_t>(body_bytes), error);
  if (stream.good() && !error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace

absl::Status WriteLlmcFolder(const std::string& folder, const std::string& model,
                             bool random_values) {
  ckpt::ModelProto config;
  config.set_text(absl::StrCat("architecture: GPT2 ", model));
  TESSERA_ASSIGN_OR_RETURN(const auto output, ckpt::convert::WriteLlmcHeader(config, DType::kF32));
  int64_t body_bytes = 0;
  for (const auto& tensor : output.description.tensors) {
    body_bytes += ElementCount(tensor.shape) * static_cast<int64_t>(sizeof(float));
  }
  TESSERA_RETURN_IF_ERROR(
      WriteFile(folder + "/model_00000007.bin", output.header, body_bytes, random_values));
  std::vector<int32_t> state(256);
  state[0] = 20240527, state[1] = 1, state[2] = 1, state[10] = 7;
  const std::string header(reinterpret_cast<const char*>(state.data()), 1024);
  return WriteFile(folder + "/state_00000007_00000.bin", header, 2 * body_bytes, random_values);
}

absl::Status WriteHuggingFaceFolder(const std::string& folder, const std::string& model) {
  ckpt::ModelProto config;
  config.set_text(model);
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           ckpt::convert::WriteHuggingFaceConfig(config, DType::kF32));
  TESSERA_ASSIGN_OR_RETURN(const ckpt::convert::HuggingFaceDescription description,
                           ckpt::convert::ReadHuggingFaceConfig(json, INT64_MAX));
  std::ofstream(folder + "/config.json") << json;
  nlohmann::ordered_json tensors;
  int64_t bytes = 0;
  for (const LogicalParameter& parameter : description.model.parameters) {
    const int64_t end = bytes + ElementCount(parameter.shape) * static_cast<int64_t>(sizeof(float));
    tensors[parameter.name] = {
        {"dtype", "F32"}, {"shape", parameter.shape}, {"data_offsets", {bytes, end}}};
    bytes = end;
  }
  std::string text = tensors.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string header;
  AppendLittleEndian<uint64_t>(text.size(), header);
  return WriteFile(folder + "/model.safetensors", header + text, bytes, /*random_values=*/true);
}

}  // namespace tessera
