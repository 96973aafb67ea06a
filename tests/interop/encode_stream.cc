// Encodes the texts of standard input: for each, a uint32 of its length in bytes and the bytes.
// Writes, for each, a uint32 of the number of ids and the ids, and to standard error the rate.
//   encode_stream TOKENIZER [special]
// Writes the files for Hugging Face's programs into a folder:
//   encode_stream TOKENIZER files FOLDER

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "tokenizer/files/hugging_face_files.h"
#include "tokenizer/files/load_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace {

int Fail(std::string_view message) {
  std::fprintf(stderr, "encode_stream: %s\n", std::string(message).c_str());
  return 1;
}

int WriteFiles(const tessera::Tokenizer& tokenizer, const std::string& folder) {
  const auto files = tessera::HuggingFaceFiles(tokenizer);
  if (!files.ok()) return Fail(files.status().ToString());
  for (const tessera::TokenizerFile& file : *files) {
    std::ofstream out(folder + "/" + file.name, std::ios::binary);
    if (!(out << file.contents).flush()) return Fail("cannot write " + file.name);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return Fail("expected the path of a tokenizer");
  const auto tokenizer = tessera::LoadTokenizer(argv[1]);
  if (!tokenizer.ok()) return Fail(tokenizer.status().ToString());
  if (argc == 4 && std::string_view(argv[2]) == "files") return WriteFiles(**tokenizer, argv[3]);
  const bool special = argc > 2;
  uint32_t length = 0;
  double bytes = 0;
  std::chrono::duration<double> elapsed{};
  while (std::fread(&length, sizeof(length), 1, stdin) == 1) {
    std::string text(length, '\0');
    if (std::fread(text.data(), 1, length, stdin) != length) return Fail("a text is cut short");
    const auto begin = std::chrono::steady_clock::now();
    const auto ids =
        special ? (*tokenizer)->EncodeWithSpecialTokens(text) : (*tokenizer)->Encode(text);
    elapsed += std::chrono::steady_clock::now() - begin;
    bytes += length;
    if (!ids.ok()) return Fail(ids.status().ToString());
    const uint32_t count = static_cast<uint32_t>(ids->size());
    std::fwrite(&count, sizeof(count), 1, stdout);
    std::fwrite(ids->data(), sizeof(int32_t), count, stdout);
  }
  std::fprintf(stderr, "%.1f MB/s\n", bytes / 1e6 / elapsed.count());
  return std::fflush(stdout) == 0 ? 0 : Fail("cannot write");
}
