#include "tests/perf/llmc_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/manifest.h"
#include "convert/llmc/llmc.h"

namespace tessera {
namespace {

constexpr int kStep = 7;
constexpr size_t kBlockWords = size_t{1} << 20;

absl::Status WriteFile(const std::string& path, const std::string& header, int64_t body_bytes,
                       bool random_values, uint64_t seed) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(header.data(), static_cast<std::streamsize>(header.size()));
  std::vector<uint64_t> block(kBlockWords);
  const int64_t block_bytes = kBlockWords * sizeof(uint64_t);
  for (int64_t done = 0; random_values && done < body_bytes; done += block_bytes) {
    for (uint64_t& word : block) word = seed = seed * 6364136223846793005u + 1442695040888963407u;
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

absl::Status WriteLlmcFolder(const std::string& folder, const LlmcFolderOptions& options) {
  ckpt::ModelConfig config;
  config.set_text(absl::StrCat("architecture: GPT2 ", options.model));
  TESSERA_ASSIGN_OR_RETURN(const auto output, ckpt::convert::WriteLlmcHeader(config, ckpt::F32));
  int64_t body_bytes = 0;
  for (const auto& tensor : output.description.tensors) {
    body_bytes += tensor.rows * tensor.columns * static_cast<int64_t>(sizeof(float));
  }
  TESSERA_RETURN_IF_ERROR(WriteFile(folder + "/model_00000007.bin", output.header, body_bytes,
                                    options.random_values, 1));
  std::vector<int32_t> state(256);
  state[0] = 20240527, state[1] = 1, state[2] = 1, state[10] = kStep;
  const std::string header(reinterpret_cast<const char*>(state.data()), 1024);
  return WriteFile(folder + "/state_00000007_00000.bin", header, 2 * body_bytes,
                   options.random_values, 2);
}

}  // namespace tessera
