#ifndef TESSERA_TRAINER_DATA_TOKEN_FILE_H_
#define TESSERA_TRAINER_DATA_TOKEN_FILE_H_

// Token files in llm.c's format: a header of 256 little-endian int32, then `count` tokens to the
// end of the file.
//
//   format    [0] magic   [1] version   [2] count   then
//   GPT-2     20240520    1             tokens      uint16 each
//   Llama-3   20240801    7             tokens      uint32 each
//
// The other header words are written as zero and ignored when read. Checksums may be stored beside
// a token file: token_checksums.h.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "base/replace_file.h"
#include "trainer/data/token_checksums.h"

namespace tessera {

enum class TokenFormat { kGpt2, kLlama3 };

inline constexpr int64_t kTokenFileHeaderBytes = 1024;

// Returns "gpt2" or "llama3".
std::string_view TokenFormatName(TokenFormat format);
// Returns the format of a name; InvalidArgument for any other name.
absl::StatusOr<TokenFormat> TokenFormatFromName(std::string_view name);
// Returns the bytes of one token: 2 or 4.
int64_t TokenBytes(TokenFormat format);
// Returns the largest vocabulary whose ids fit: 2^16, or 2^31 because ids are int32 in memory.
int64_t MaxVocabularySize(TokenFormat format);

// A token file open for reading.
//
// Reads use pread instead of a memory map. The page cache serves both alike, but with a map, a file
// that shrinks or a failing disk does not return a Status: it raises a signal, which kills the run.
// If the file has checksums, the first read that touches a chunk reads the whole chunk and verifies
// it. Thread-safe.
class TokenFile {
 public:
  // Opens a token file. Errors: NotFound, PermissionDenied; DataLoss (file, offset, expected and
  // found) for an unknown magic or version, for a size that is not exactly the header plus `count`
  // tokens, and for damaged checksums.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  TokenFormat format() const { return format_; }
  int64_t count() const { return count_; }

  // Reads tokens [first, first + out.size()) as int32. Errors:
  // - OutOfRange if the file does not contain all of them;
  // - DataLoss, naming file, position and offset, for an id of vocab_size or more, for a file that
  //   has shrunk since it was opened, and for a chunk that does not match its checksum.
  absl::Status Read(int64_t first, int64_t vocab_size, std::span<int32_t> out) const;

  // Returns a hash of format, count and contents that does not depend on the file's name. A file of
  // at most 16 MiB is hashed whole; of a longer one, 256 evenly spaced pages of 4 KiB, the first
  // and last included. Files with different hashes differ; files with equal ones may differ. Cost:
  // at most 16 MiB read.
  absl::StatusOr<uint64_t> SampledFingerprint() const;

  // Returns a hash of all contents (TokenChecksums::Fingerprint()); 0 for a file without checksums.
  uint64_t CompleteFingerprint() const;

  // Loads checksums that were stored beside the file after it was opened.
  absl::Status LoadChecksums();
  // Reads the whole file to compute its checksums, and stores them beside it. If only storing
  // fails, this object uses the checksums all the same, and `kept` is the reason.
  absl::Status MakeChecksums(absl::Status& kept);

 private:
  TokenFile(std::string path, FileDescriptor file, TokenFormat format, int64_t count);
  void SetChecksums(TokenChecksums checksums);
  // Verifies the chunks that contain the bytes [begin, end).
  absl::Status CheckChunks(int64_t begin, int64_t end) const;
  absl::Status CheckChunk(int64_t chunk) const;

  std::string path_;
  FileDescriptor file_;
  TokenFormat format_;
  int64_t count_;
  std::optional<TokenChecksums> checksums_;
  mutable std::vector<std::atomic<bool>> checked_;  // by chunk
};

// Writes a token file under a temporary name; Close() renames it to its own name, complete and
// synced, with its checksums beside it. A writer destroyed without Close() leaves nothing behind.
class TokenFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(const std::string& path,
                                                                 TokenFormat format);

  // Appends tokens. Errors: InvalidArgument for an id that the format cannot hold, and past 2^31 -
  // 1 tokens (the header's count is an int32).
  absl::Status Append(std::span<const int32_t> tokens);
  int64_t count() const { return count_; }
  // Completes the file. Call once, last. If it replaces a file, a crash here may leave that file's
  // checksums beside it.
  absl::Status Close();

 private:
  TokenFileWriter(std::string path, std::unique_ptr<FileReplacement> file, TokenFormat format);

  std::string path_;
  std::unique_ptr<FileReplacement> file_;
  TokenFormat format_;
  TokenChecksumBuilder checksums_;
  int64_t count_ = 0;
  std::vector<uint8_t> encoded_;
};

// Writes one stream of tokens as <directory>/<prefix>_000.bin and so on, each of shard_tokens
// tokens except the last, and counts how often each id occurs. Without tokens, no file is written.
class TokenShardWriter {
 public:
  TokenShardWriter(std::string directory, std::string prefix, TokenFormat format,
                   int64_t shard_tokens, int64_t vocab_size);

  // Appends tokens. Precondition: ids are in [0, vocab_size). Errors: those of TokenFileWriter.
  absl::Status Append(std::span<const int32_t> tokens);
  absl::Status Close();

  int64_t tokens() const { return tokens_; }
  // Returns how often each id was written, by id.
  const std::vector<int64_t>& counts() const { return counts_; }
  const std::vector<std::string>& file_names() const { return file_names_; }

 private:
  std::string directory_;
  std::string prefix_;
  TokenFormat format_;
  int64_t shard_tokens_;
  int64_t tokens_ = 0;
  std::vector<int64_t> counts_;
  std::vector<std::string> file_names_;
  std::unique_ptr<TokenFileWriter> shard_;
};

// Returns the cross entropy in nats of `counts` under a unigram model of `model_counts`, each count
// plus one. Precondition: the sizes are equal and some count is above zero.
double UnigramNatsPerToken(std::span<const int64_t> model_counts, std::span<const int64_t> counts);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_TOKEN_FILE_H_
