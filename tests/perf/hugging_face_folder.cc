#include "tests/perf/hugging_face_folder.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "checkpoint/manifest.h"
#include "convert/core/models.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

constexpr int64_t kBlockWords = int64_t{1} << 20;
constexpr size_t kHeaderAlignmentBytes = 8;

}  // namespace

absl::Status WriteHuggingFaceFolder(const std::string& folder, const std::string& model) {
  ckpt::ModelConfig config;
  config.set_text(model);
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           ckpt::convert::WriteHuggingFaceConfig(config, ckpt::F32));
  TESSERA_ASSIGN_OR_RETURN(const ckpt::convert::HuggingFaceDescription description,
                           ckpt::convert::ReadHuggingFaceConfig(json, INT64_MAX));
  std::ofstream(folder + "/config.json") << json;

  nlohmann::ordered_json tensors;
  int64_t bytes = 0;
  for (const LogicalParameter& parameter : description.model.parameters) {
    const int64_t end =
        bytes + ckpt::ElementCount(parameter.shape) * static_cast<int64_t>(sizeof(float));
    tensors[parameter.name] = {
        {"dtype", "F32"}, {"shape", parameter.shape}, {"data_offsets", {bytes, end}}};
    bytes = end;
  }
  std::string text = tensors.dump();
  text.resize(
      (text.size() + kHeaderAlignmentBytes - 1) / kHeaderAlignmentBytes * kHeaderAlignmentBytes,
      ' ');
  std::string header;
  AppendLittleEndian<uint64_t>(text.size(), header);
  const std::string path = folder + "/model.safetensors";
  std::ofstream stream(path, std::ios::binary);
  stream << header << text;
  std::vector<uint64_t> block(kBlockWords);
  uint64_t random = 1;
  const int64_t block_bytes = kBlockWords * static_cast<int64_t>(sizeof(uint64_t));
  for (int64_t done = 0; done < bytes; done += block_bytes) {
    for (uint64_t& word : block) word = random = random * 6364136223846793005u + 1;
    stream.write(reinterpret_cast<const char*>(block.data()), std::min(block_bytes, bytes - done));
  }
  stream.close();
  if (stream.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace tessera
