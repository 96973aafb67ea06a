#include "trainer/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr int64_t kHeaderWords = 256;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSampledPages = 256;
constexpr int64_t kHashedWholeBytes = 16 << 20;

struct FormatFacts {
  TokenFormat format;
  std::string_view name;
  int32_t magic;
  int32_t version;
  int64_t token_bytes;
  int64_t max_vocab_size;
};

constexpr std::array<FormatFacts, 2> kFormats = {{
    {TokenFormat::kGpt2, "gpt2", 20240520, 1, 2, int64_t{1} << 16},
    {TokenFormat::kLlama3, "llama3", 20240801, 7, 4, int64_t{1} << 31},
}};

const FormatFacts& Facts(TokenFormat format) {
  return format == TokenFormat::kGpt2 ? kFormats[0] : kFormats[1];
}

absl::Status BadHeader(const std::string& path, int64_t word, absl::string_view what,
                       absl::string_view expected, int64_t found) {
  return absl::DataLossError(absl::StrCat(path, " at offset ", 4 * word, ": ", what, " expected ",
                                          expected, ", found ", found));
}

// Returns the header's format and count, checked against the size of the file.
absl::StatusOr<std::pair<const FormatFacts*, int64_t>> ParseHeader(
    const std::string& path, const std::array<int32_t, kHeaderWords>& header, int64_t size_bytes) {
  const FormatFacts* facts = nullptr;
  for (const FormatFacts& candidate : kFormats) {
    if (candidate.magic == header[0]) facts = &candidate;
  }
  if (facts == nullptr) {
    return BadHeader(path, 0, "magic number of a token file", "20240520 or 20240801", header[0]);
  }
  if (header[1] != facts->version) {
    return BadHeader(path, 1, "version", absl::StrCat(facts->version), header[1]);
  }
  if (header[2] < 0) return BadHeader(path, 2, "token count", "0 or more", header[2]);
  const int64_t expected_bytes = kTokenFileHeaderBytes + header[2] * facts->token_bytes;
  if (size_bytes != expected_bytes) {
    return absl::DataLossError(absl::StrCat(
        path, " at offset ", std::min(size_bytes, expected_bytes), ": ",
        size_bytes < expected_bytes ? "truncated" : "bytes after the last token", ": ", header[2],
        " tokens expected to end at ", expected_bytes, ", found a file of ", size_bytes, " bytes"));
  }
  return std::pair(facts, int64_t{header[2]});
}

}  // namespace

std::string_view TokenFormatName(TokenFormat format) { return Facts(format).name; }

absl::StatusOr<TokenFormat> TokenFormatFromName(std::string_view name) {
  for (const FormatFacts& facts : kFormats) {
    if (facts.name == name) return facts.format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("token format \"", std::string(name), "\": expected gpt2 or llama3"));
}

int64_t TokenBytes(TokenFormat format) { return Facts(format).token_bytes; }
int64_t MaxVocabularySize(TokenFormat format) { return Facts(format).max_vocab_size; }

TokenFile::TokenFile(std::string path, FileDescriptor file, TokenFormat format, int64_t count)
    : path_(std::move(path)), file_(std::move(file)), format_(format), count_(count) {}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, FileDescriptor::OpenForReading(path));
  TESSERA_ASSIGN_OR_RETURN(const int64_t size_bytes, file.SizeBytes());
  std::array<int32_t, kHeaderWords> header;
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t read,
      file.ReadAt(0, std::span(reinterpret_cast<uint8_t*>(header.data()), kTokenFileHeaderBytes)));
  if (read != kTokenFileHeaderBytes) {
    return absl::DataLossError(absl::StrCat(path, " at offset ", read,
                                            ": truncated: expected a header of ",
                                            kTokenFileHeaderBytes, " bytes, found ", read));
  }
  TESSERA_ASSIGN_OR_RETURN(const auto parsed, ParseHeader(path, header, size_bytes));
  std::unique_ptr<TokenFile> opened(
      new TokenFile(path, std::move(file), parsed.first->format, parsed.second));
  TESSERA_RETURN_IF_ERROR(opened->LoadChecksums());
  return opened;
}

absl::Status TokenFile::LoadChecksums() {
  if (checksums_.has_value()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(std::optional<TokenChecksums> found, ReadTokenChecksums(path_, file_));
  if (found.has_value()) SetChecksums(*std::move(found));
  return absl::OkStatus();
}

absl::Status TokenFile::MakeChecksums(absl::Status& kept) {
  TESSERA_ASSIGN_OR_RETURN(TokenChecksums made, MakeTokenChecksums(path_, file_));
  kept = WriteTokenChecksums(path_, made);
  SetChecksums(std::move(made));
  return absl::OkStatus();
}

void TokenFile::SetChecksums(TokenChecksums checksums) {
  checked_ = std::vector<std::atomic<bool>>(checksums.chunk_crc32c.size());
  checksums_ = std::move(checksums);
}

absl::Status TokenFile::CheckChunks(int64_t begin, int64_t end) const {
  if (!checksums_.has_value()) return absl::OkStatus();
  for (int64_t chunk = begin / kChecksumChunkBytes; chunk * kChecksumChunkBytes < end; ++chunk) {
    if (checked_[chunk].load(std::memory_order_relaxed)) continue;
    TESSERA_RETURN_IF_ERROR(CheckChunk(chunk));
    checked_[chunk].store(true, std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

absl::Status TokenFile::CheckChunk(int64_t chunk) const {
  const int64_t offset = chunk * kChecksumChunkBytes;
  std::vector<uint8_t> bytes(std::min(kChecksumChunkBytes, checksums_->size_bytes - offset));
  TESSERA_ASSIGN_OR_RETURN(const int64_t read, file_.ReadAt(offset, bytes));
  bytes.resize(read);
  const uint32_t found = Crc32c(std::as_bytes(std::span(bytes)));
  const uint32_t expected = checksums_->chunk_crc32c[chunk];
  if (found == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path_, " at offset ", offset, ": damaged: CRC-32C of ", bytes.size(), " bytes expected ",
      absl::Hex(expected, absl::kZeroPad8), ", found ", absl::Hex(found, absl::kZeroPad8),
      "; restore the file, or, where it was changed on purpose, remove ", ChecksumPath(path_)));
}

absl::Status TokenFile::Read(int64_t first, int64_t vocab_size, std::span<int32_t> out) const {
  const int64_t n = out.size();
  if (first < 0 || first > count_ || n > count_ - first) {
    return absl::OutOfRangeError(absl::StrCat(path_, ": ", n, " tokens from token ", first,
                                              " on requested, but the file has ", count_));
  }
  const int64_t token_bytes = TokenBytes(format_);
  const int64_t offset = kTokenFileHeaderBytes + first * token_bytes;
  TESSERA_RETURN_IF_ERROR(CheckChunks(offset, offset + n * token_bytes));
  // Raw tokens are read into the end of the output, so that widening from front to back never
  // overwrites unread ones.
  auto* out_bytes = reinterpret_cast<uint8_t*>(out.data());
  uint8_t* raw = out_bytes + n * (4 - token_bytes);
  TESSERA_ASSIGN_OR_RETURN(const int64_t read,
                           file_.ReadAt(offset, {raw, static_cast<size_t>(n * token_bytes)}));
  if (read != n * token_bytes) {
    return absl::DataLossError(absl::StrCat(path_, " at offset ", offset + read,
                                            ": the file has shrunk: expected ", n * token_bytes,
                                            " bytes from offset ", offset, ", found ", read));
  }
  for (int64_t i = 0; i < n; ++i) {
    uint32_t token = 0;
    std::memcpy(&token, raw + i * token_bytes, token_bytes);
    if (token >= static_cast<uint64_t>(vocab_size)) {
      return absl::DataLossError(absl::StrCat(
          path_, " at offset ", offset + i * token_bytes, ": token id ", token, " at position ",
          first + i, " is outside the vocabulary (vocab_size ", vocab_size, ")"));
    }
    std::memcpy(out_bytes + 4 * i, &token, 4);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TokenFile::SampledFingerprint() const {
  ContentHash hash;
  hash.Add(static_cast<uint64_t>(Facts(format_).magic));
  hash.Add(static_cast<uint64_t>(count_));
  const int64_t body_bytes = count_ * TokenBytes(format_);
  std::vector<uint8_t> buffer(kPageBytes);
  const auto add = [&](int64_t at) -> absl::Status {
    const int64_t n = std::min(kPageBytes, body_bytes - at);
    TESSERA_ASSIGN_OR_RETURN(const int64_t read,
                             file_.ReadAt(kTokenFileHeaderBytes + at, std::span(buffer).first(n)));
    hash.Add(std::span(buffer).first(read));
    return absl::OkStatus();
  };
  const int64_t pages = CeilDivide(body_bytes, kPageBytes);
  const int64_t hashed = body_bytes <= kHashedWholeBytes ? pages : kSampledPages;
  for (int64_t i = 0; i < hashed; ++i) {
    const int64_t page = hashed == pages ? i : i * (pages - 1) / (hashed - 1);
    TESSERA_RETURN_IF_ERROR(add(page * kPageBytes));
  }
  return hash.Finish();
}

uint64_t TokenFile::CompleteFingerprint() const {
  return checksums_.has_value() ? checksums_->Fingerprint() : 0;
}

TokenFileWriter::TokenFileWriter(std::string path, std::unique_ptr<FileReplacement> file,
                                 TokenFormat format)
    : path_(std::move(path)), file_(std::move(file)), format_(format) {}

absl::StatusOr<std::unique_ptr<TokenFileWriter>> TokenFileWriter::Create(const std::string& path,
                                                                         TokenFormat format) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<FileReplacement> file, FileReplacement::Create(path));
  std::unique_ptr<TokenFileWriter> writer(new TokenFileWriter(path, std::move(file), format));
  const std::vector<std::byte> space(kTokenFileHeaderBytes);
  TESSERA_RETURN_IF_ERROR(writer->file_->Append(space));
  writer->checksums_.Append(space);
  return writer;
}

absl::Status TokenFileWriter::Append(std::span<const int32_t> tokens) {
  const int64_t token_bytes = TokenBytes(format_);
  const int64_t n = tokens.size();
  if (n > std::numeric_limits<int32_t>::max() - count_) {
    return absl::InvalidArgumentError(absl::StrCat("a token file holds at most 2^31 - 1 tokens, ",
                                                   count_ + n, " given: use smaller shards"));
  }
  encoded_.resize(n * token_bytes);
  for (int64_t i = 0; i < n; ++i) {
    if (tokens[i] < 0 || tokens[i] >= MaxVocabularySize(format_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", count_ + i, " is ", tokens[i], ", which the format ",
                       std::string(TokenFormatName(format_)), " cannot hold"));
    }
    std::memcpy(encoded_.data() + i * token_bytes, &tokens[i], token_bytes);
  }
  const auto bytes = std::as_bytes(std::span(encoded_));
  TESSERA_RETURN_IF_ERROR(file_->Append(bytes));
  checksums_.Append(bytes);
  count_ += n;
  return absl::OkStatus();
}

absl::Status TokenFileWriter::Close() {
  std::array<int32_t, kHeaderWords> header = {};
  header[0] = Facts(format_).magic;
  header[1] = Facts(format_).version;
  header[2] = static_cast<int32_t>(count_);
  const auto bytes = std::as_bytes(std::span(header));
  TESSERA_RETURN_IF_ERROR(file_->WriteAt(0, bytes));
  TESSERA_RETURN_IF_ERROR(file_->Commit());
  return WriteTokenChecksums(path_, checksums_.Finish(bytes));
}

TokenShardWriter::TokenShardWriter(std::string directory, std::string prefix, TokenFormat format,
                                   int64_t shard_tokens, int64_t vocab_size)
    : directory_(std::move(directory)),
      prefix_(std::move(prefix)),
      format_(format),
      shard_tokens_(shard_tokens),
      counts_(vocab_size) {}

absl::Status TokenShardWriter::Append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) ++counts_[token];
  tokens_ += tokens.size();
  while (!tokens.empty()) {
    if (shard_ != nullptr && shard_->count() == shard_tokens_) TESSERA_RETURN_IF_ERROR(Close());
    if (shard_ == nullptr) {
      file_names_.push_back(absl::StrFormat("%s_%03d.bin", prefix_, file_names_.size()));
      TESSERA_ASSIGN_OR_RETURN(
          auto created,
          TokenFileWriter::Create(absl::StrCat(directory_, "/", file_names_.back()), format_));
      shard_ = std::move(created);
    }
    const size_t fits = std::min<int64_t>(tokens.size(), shard_tokens_ - shard_->count());
    TESSERA_RETURN_IF_ERROR(shard_->Append(tokens.first(fits)));
    tokens = tokens.subspan(fits);
  }
  return absl::OkStatus();
}

absl::Status TokenShardWriter::Close() {
  if (shard_ == nullptr) return absl::OkStatus();
  return std::exchange(shard_, nullptr)->Close();
}

double UnigramNatsPerToken(std::span<const int64_t> model_counts, std::span<const int64_t> counts) {
  double model_total = 0, total = 0;
  for (size_t id = 0; id < counts.size(); ++id) {
    model_total += model_counts[id] + 1.0;
    total += counts[id];
  }
  double nats = 0;
  for (size_t id = 0; id < counts.size(); ++id) {
    nats -= counts[id] / total * std::log((model_counts[id] + 1.0) / model_total);
  }
  return nats;
}

}  // namespace tessera
