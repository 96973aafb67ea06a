#include "tokenizer/files/load_tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/tiktoken.h"
#include "tokenizer/llmc_tokenizer.h"
#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTokenizerFileBytes = 256 << 20;

// GPT-2's two files, by their names on the Hugging Face hub and in the original release.
constexpr std::pair<const char*, const char*> kGpt2Names[] = {{"vocab.json", "merges.txt"},
                                                              {"encoder.json", "vocab.bpe"}};

absl::StatusOr<std::string> Read(const fs::path& path) {
  return ReadFile(path.string(), kMaxTokenizerFileBytes);
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::StatusOr<fs::path> FindInFolder(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json"}) {
    if (Exists(folder / name)) return folder / name;
  }
  if (const auto found = Glob((folder / "*.tiktoken").string()); found.ok()) {
    if (found->size() == 1) return fs::path(found->front());
    return absl::InvalidArgumentError(absl::StrCat(folder.string(), " has ", found->size(),
                                                   " .tiktoken files: give one of them"));
  }
  for (const char* name : {"tokenizer.model", "tokenizer.bin"}) {
    if (Exists(folder / name)) return folder / name;
  }
  return absl::NotFoundError(
      absl::StrCat(folder.string(),
                   " has no tokenizer: expected tokenizer.json, vocab.json with merges.txt, a "
                   ".tiktoken file, tokenizer.model or tokenizer.bin"));
}

absl::StatusOr<TokenizerConfig> ConfigBeside(const fs::path& path) {
  TokenizerConfig config;
  if (const fs::path name = path.parent_path() / kTokenizerConfigName; Exists(name)) {
    TESSERA_ASSIGN_OR_RETURN(const std::string contents, Read(name));
    TESSERA_ASSIGN_OR_RETURN(config, ParseTokenizerConfig(name.string(), contents));
  }
  if (const fs::path name = path.parent_path() / "added_tokens.json"; Exists(name)) {
    TESSERA_ASSIGN_OR_RETURN(const std::string contents, Read(name));
    TESSERA_RETURN_IF_ERROR(ParseAddedTokens(name.string(), contents, config));
  }
  return config;
}

// Returns the names of GPT-2's files, if `path` is one of the two.
const std::pair<const char*, const char*>* Gpt2NamesOf(const fs::path& path) {
  for (const auto& names : kGpt2Names) {
    if (path.filename() == names.first || path.filename() == names.second) return &names;
  }
  return nullptr;
}

bool IsJsonObject(std::string_view contents) {
  const size_t first = contents.find_first_not_of(" \t\r\n");
  return first != contents.npos && contents[first] == '{';
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFile(const fs::path& path) {
  TESSERA_ASSIGN_OR_RETURN(std::string contents, Read(path));
  const std::string name = path.string();
  if (const auto* names = Gpt2NamesOf(path); names != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const std::string vocabulary, Read(path.parent_path() / names->first));
    TESSERA_ASSIGN_OR_RETURN(const std::string merges, Read(path.parent_path() / names->second));
    TESSERA_ASSIGN_OR_RETURN(const TokenizerConfig config, ConfigBeside(path));
    return ParseGpt2Files(name, vocabulary, merges, config);
  }
  if (IsJsonObject(contents)) {
    TESSERA_ASSIGN_OR_RETURN(const TokenizerConfig config, ConfigBeside(path));
    return ParseTokenizerJson(name, contents, config);
  }
  if (IsTiktokenFile(contents)) {
    TESSERA_ASSIGN_OR_RETURN(const TokenizerConfig config, ConfigBeside(path));
    TESSERA_RETURN_IF_ERROR(CheckTiktokenClass(name, config.tokenizer_class));
    return ParseTiktoken(name, contents);
  }
  if (!IsLlmcTokenizerFile(contents)) {
    return SentencePieceTokenizer::Parse(name, std::move(contents));
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> table, LlmcTokenizer::Parse(name, contents));
  if (ByteTokenizer::Matches(*table)) return std::make_unique<ByteTokenizer>();
  return table;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return LoadFile(path);
  TESSERA_ASSIGN_OR_RETURN(const fs::path file, FindInFolder(path));
  return LoadFile(file);
}

}  // namespace tessera
