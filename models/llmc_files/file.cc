#include "models/llmc_files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

absl::Status SystemError(const char* action, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", action, " ", path));
}

}  // namespace

absl::StatusOr<LlmcReader> LlmcReader::Open(const std::string& path) {
  LlmcReader reader;
  reader.path_ = path;
  // Non-blocking, so that a pipe by this name is reported below instead of waiting for its writer.
  reader.descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (reader.descriptor_ < 0) return SystemError("open", path);
  struct stat info;
  if (fstat(reader.descriptor_, &info) != 0) return SystemError("stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  reader.size_bytes_ = info.st_size;
  if (reader.size_bytes_ < kLlmcHeaderBytes) {
    return reader.Corrupt(absl::StrCat("truncated: expected ", kLlmcHeaderBytes,
                                       " bytes of header, found ", reader.size_bytes_));
  }
  if (auto status = reader.ReadAt(0, std::as_writable_bytes(std::span(reader.header_)));
      !status.ok()) {
    return status;
  }
  return reader;
}

absl::StatusOr<LlmcReader> LlmcReader::FromHeader(const std::string& path,
                                                  std::span<const std::byte> header,
                                                  int64_t size_bytes) {
  LlmcReader reader;
  reader.path_ = path;
  reader.size_bytes_ = size_bytes;
  if (header.size() < kLlmcHeaderBytes || size_bytes < kLlmcHeaderBytes) {
    return reader.Corrupt(absl::StrCat("truncated: expected ", kLlmcHeaderBytes,
                                       " bytes of header, found ",
                                       std::min<int64_t>(header.size(), size_bytes)));
  }
  std::memcpy(reader.header_.data(), header.data(), kLlmcHeaderBytes);
  return reader;
}

LlmcReader::LlmcReader(LlmcReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_),
      header_(other.header_) {}

LlmcReader::~LlmcReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status LlmcReader::ReadAt(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = pread(descriptor_, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("read", path_);
    if (count == 0) {
      return Corrupt(absl::StrCat("ends at byte ", offset, ", expected ", out.size(), " more"));
    }
    offset += count;
    out = out.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status LlmcReader::Corrupt(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(path_, ": ", what));
}

absl::Status LlmcReader::CheckLength(__int128 elements, int64_t element_bytes) const {
  const __int128 expected = kLlmcHeaderBytes + elements * element_bytes;
  if (expected == size_bytes_) return absl::OkStatus();
  if (expected > INT64_MAX) {
    return Corrupt(absl::StrCat("the header asks for more than 2^63 bytes, found ", size_bytes_));
  }
  return Corrupt(absl::StrCat(expected > size_bytes_ ? "truncated" : "trailing bytes",
                              ": expected ", static_cast<int64_t>(expected), " bytes, found ",
                              size_bytes_));
}

absl::StatusOr<LlmcWriter> LlmcWriter::Create(const std::string& path, const LlmcHeader& header) {
  absl::StatusOr<std::unique_ptr<FileReplacement>> file = FileReplacement::Create(path);
  if (!file.ok()) return file.status();
  LlmcWriter writer(*std::move(file));
  if (auto status = writer.Append(std::as_bytes(std::span(header))); !status.ok()) return status;
  return writer;
}

}  // namespace tessera
