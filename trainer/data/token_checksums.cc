#include "trainer/data/token_checksums.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/errno_status.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "compute/random/philox.h"

namespace tessera {
namespace {

constexpr std::string_view kSuffix = ".crc32c";
constexpr std::string_view kMagic = "TOKSUMS\n";
constexpr uint32_t kVersion = 1;
constexpr int64_t kHeaderBytes = 32;
constexpr int64_t kCrcBytes = 4;
// A checksum file's size limit. Enough for the largest token file: 2^31 tokens of four bytes.
constexpr int64_t kMaxBytes = 1 << 20;
constexpr int64_t kReadBytes = 16 * kChecksumChunkBytes;

int64_t NumChunks(int64_t size_bytes) { return CeilDivide(size_bytes, kChecksumChunkBytes); }

template <typename T>
T Get(std::string_view bytes, int64_t offset) {
  return LoadLittleEndian<T>(bytes.data() + offset);
}

absl::Status Damaged(const std::string& path, int64_t offset, absl::string_view what,
                     const auto& expected, const auto& found) {
  return absl::DataLossError(absl::StrCat(path, " at offset ", offset, ": ", what, " expected ",
                                          expected, ", found ", found,
                                          "; without this file the tokens are not checked"));
}

}  // namespace

uint64_t TokenChecksums::Fingerprint() const {
  ContentHash hash;
  hash.Add(static_cast<uint64_t>(size_bytes));
  for (const uint32_t crc : chunk_crc32c) hash.Add(uint64_t{crc});
  return std::max<uint64_t>(hash.Finish(), 1);
}

std::string ChecksumPath(const std::string& token_path) {
  return absl::StrCat(token_path, std::string(kSuffix));
}

bool IsChecksumPath(std::string_view path) { return path.ends_with(kSuffix); }

std::string EncodeTokenChecksums(const TokenChecksums& checksums) {
  std::string bytes(kMagic);
  AppendLittleEndian(kVersion, bytes);
  AppendLittleEndian(static_cast<uint32_t>(kChecksumChunkBytes), bytes);
  AppendLittleEndian(static_cast<uint64_t>(checksums.size_bytes), bytes);
  AppendLittleEndian(static_cast<uint64_t>(checksums.modified_ns), bytes);
  for (const uint32_t crc : checksums.chunk_crc32c) AppendLittleEndian(crc, bytes);
  AppendLittleEndian(Crc32c(bytes), bytes);
  return bytes;
}

absl::StatusOr<TokenChecksums> DecodeTokenChecksums(const std::string& path,
                                                    std::string_view bytes) {
  const int64_t size = bytes.size();
  if (size < kHeaderBytes + kCrcBytes) {
    return Damaged(path, size, "size", absl::StrCat(kHeaderBytes + kCrcBytes, " bytes or more"),
                   size);
  }
  if (!bytes.starts_with(kMagic)) return Damaged(path, 0, "magic", "TOKSUMS", "other bytes");
  const int64_t body = size - kCrcBytes;
  const uint32_t crc = Crc32c(bytes.substr(0, body));
  if (Get<uint32_t>(bytes, body) != crc) {
    return Damaged(path, body, "CRC-32C of this file", absl::Hex(Get<uint32_t>(bytes, body)),
                   absl::Hex(crc));
  }
  if (Get<uint32_t>(bytes, 8) != kVersion) {
    return Damaged(path, 8, "version", kVersion, Get<uint32_t>(bytes, 8));
  }
  if (Get<uint32_t>(bytes, 12) != kChecksumChunkBytes) {
    return Damaged(path, 12, "chunk_bytes", kChecksumChunkBytes, Get<uint32_t>(bytes, 12));
  }
  TokenChecksums checksums{.size_bytes = static_cast<int64_t>(Get<uint64_t>(bytes, 16)),
                           .modified_ns = static_cast<int64_t>(Get<uint64_t>(bytes, 24))};
  const int64_t chunks = (body - kHeaderBytes) / kCrcBytes;
  if (checksums.size_bytes < 0 || checksums.size_bytes > kMaxBytes * kChecksumChunkBytes ||
      NumChunks(checksums.size_bytes) != chunks || (body - kHeaderBytes) % kCrcBytes != 0) {
    return Damaged(path, 16, "size_bytes", absl::StrCat("that of ", chunks, " chunks"),
                   checksums.size_bytes);
  }
  for (int64_t i = 0; i < chunks; ++i) {
    checksums.chunk_crc32c.push_back(Get<uint32_t>(bytes, kHeaderBytes + kCrcBytes * i));
  }
  return checksums;
}

absl::StatusOr<std::optional<TokenChecksums>> ReadTokenChecksums(const std::string& token_path,
                                                                 const FileDescriptor& file) {
  const std::string path = ChecksumPath(token_path);
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxBytes);
  if (absl::IsNotFound(bytes.status())) return std::nullopt;
  if (absl::IsInvalidArgument(bytes.status())) return absl::DataLossError(bytes.status().message());
  if (!bytes.ok()) return bytes.status();
  TESSERA_ASSIGN_OR_RETURN(TokenChecksums checksums, DecodeTokenChecksums(path, *bytes));
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor::Facts facts, file.Examine());
  if (checksums.modified_ns != 0 && checksums.modified_ns != facts.modified_ns) return std::nullopt;
  if (checksums.size_bytes != facts.size_bytes) {
    if (checksums.modified_ns != 0) return std::nullopt;
    return Damaged(path, 16, absl::StrCat("size of ", token_path), checksums.size_bytes,
                   facts.size_bytes);
  }
  return checksums;
}

absl::Status WriteTokenChecksums(const std::string& token_path, const TokenChecksums& checksums) {
  return ReplaceFile(ChecksumPath(token_path), EncodeTokenChecksums(checksums));
}

absl::Status RemoveTokenChecksums(const std::string& token_path) {
  const std::string path = ChecksumPath(token_path);
  if (unlink(path.c_str()) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return Named("cannot remove", path, ErrnoStatus(errno));
  }
  const size_t slash = path.rfind('/');
  const absl::StatusOr<FileDescriptor> folder =
      FileDescriptor::OpenFolder(slash == path.npos ? "./." : path.substr(0, slash + 1) + ".");
  return folder.ok() ? folder->Sync() : folder.status();
}

absl::StatusOr<TokenChecksums> MakeTokenChecksums(const std::string& token_path,
                                                  const FileDescriptor& file) {
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor::Facts before, file.Examine());
  TokenChecksumBuilder builder;
  std::vector<uint8_t> buffer(kReadBytes);
  for (int64_t offset = 0; offset < before.size_bytes; offset += kReadBytes) {
    const int64_t wanted = std::min(kReadBytes, before.size_bytes - offset);
    TESSERA_ASSIGN_OR_RETURN(const int64_t read,
                             file.ReadAt(offset, std::span(buffer).first(wanted)));
    builder.Append(std::as_bytes(std::span(buffer).first(read)));
  }
  TokenChecksums checksums = builder.Finish({});
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor::Facts after, file.Examine());
  if (checksums.size_bytes != after.size_bytes || before.modified_ns != after.modified_ns) {
    return absl::FailedPreconditionError(
        absl::StrCat(token_path, " was changed while it was read for its checksums"));
  }
  checksums.modified_ns = after.modified_ns;
  return checksums;
}

void TokenChecksumBuilder::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part =
        bytes.first(std::min<size_t>(bytes.size(), kChecksumChunkBytes - chunk_bytes_));
    if (checksums_.chunk_crc32c.empty()) {
      first_chunk_.insert(first_chunk_.end(), part.begin(), part.end());
    }
    crc32c_ = ExtendCrc32c(crc32c_, part);
    checksums_.size_bytes += part.size();
    chunk_bytes_ += part.size();
    if (chunk_bytes_ == kChecksumChunkBytes) {
      checksums_.chunk_crc32c.push_back(std::exchange(crc32c_, 0));
      chunk_bytes_ = 0;
    }
    bytes = bytes.subspan(part.size());
  }
}

TokenChecksums TokenChecksumBuilder::Finish(std::span<const std::byte> header) {
  if (chunk_bytes_ > 0) checksums_.chunk_crc32c.push_back(crc32c_);
  if (!header.empty()) {
    std::copy(header.begin(), header.end(), first_chunk_.begin());
    checksums_.chunk_crc32c[0] = Crc32c(std::span<const std::byte>(first_chunk_));
  }
  return std::move(checksums_);
}

void ContentHash::Add(uint64_t value) {
  uint8_t bytes[sizeof(value)];
  StoreLittleEndian(value, bytes);
  Add(bytes);
}

void ContentHash::Add(std::span<const uint8_t> bytes) {
  total_bytes_ += bytes.size();
  size_t i = 0;
  while (i < bytes.size()) {
    if (pending_bytes_ == 0 && bytes.size() - i >= 8) {
      hash_ = MixCoordinates(hash_, LoadLittleEndian<uint64_t>(bytes.data() + i));
      i += 8;
      continue;
    }
    pending_ |= uint64_t{bytes[i++]} << (8 * pending_bytes_);
    if (++pending_bytes_ == 8) {
      hash_ = MixCoordinates(hash_, pending_);
      pending_ = 0;
      pending_bytes_ = 0;
    }
  }
}

uint64_t ContentHash::Finish() {
  return MixCoordinates(MixCoordinates(hash_, pending_), total_bytes_);
}

}  // namespace tessera
