#ifndef TESSERA_TRAINER_DATA_CORPUS_H_
#define TESSERA_TRAINER_DATA_CORPUS_H_

// Text files as documents, which are found, compared by content, split and read in chunks.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct Document {
  std::string path;
  int64_t size_bytes = 0;
  uint64_t hash = 0;  // hash of its contents
};

// Bytes [begin_bytes, end_bytes) of a document.
struct DocumentPart {
  const Document* document = nullptr;
  int64_t begin_bytes = 0;
  int64_t end_bytes = 0;

  int64_t size_bytes() const { return end_bytes - begin_bytes; }
};

struct SkippedFile {
  std::string path;
  std::string reason;
};

struct DocumentList {
  std::vector<std::string> paths;
  std::vector<SkippedFile> skipped;
};

// Called with the number of bytes processed since the last call.
using BytesDone = std::function<void(int64_t bytes)>;

// Returns the files that `inputs` (files, directories, shell patterns) name, each once, in the
// natural order of its path. Directories are searched recursively. Hidden entries, entries that are
// not regular files, and files with a zero byte in their first 4 KiB are left out and listed as
// skipped; of a hidden folder, the folder alone is listed. Errors: NotFound, naming the input
// without a text; those of the file system.
absl::StatusOr<DocumentList> FindDocuments(const std::vector<std::string>& inputs);

// Reads every file once for its size and hash. Empty files are appended to `skipped`.
absl::StatusOr<std::vector<Document>> ScanDocuments(const std::vector<std::string>& paths,
                                                    std::vector<SkippedFile>& skipped,
                                                    const BytesDone& done);

struct CorpusSplit {
  std::vector<DocumentPart> train;
  std::vector<DocumentPart> validation;
  // "documents": whole documents, chosen by the hash of their contents, so that neither their names
  // nor their neighbours matter and copies of one document stay together. "tails": the end of every
  // document, split after a line; used if whole documents would give validation less than a quarter
  // or more than four times its share (few documents). "none": fraction 0.
  std::string kind;
};

// Splits documents into those of training and of validation. Precondition: 0 <= validation_fraction
// < 1. `documents` must outlive the split.
absl::StatusOr<CorpusSplit> SplitCorpus(const std::vector<Document>& documents,
                                        double validation_fraction);

// Returns the length of the prefix of a text that may be the end of a chunk if more of the document
// follows; 0 if more of it must be known first.
using ChunkCut = std::function<size_t(std::string_view text)>;

// Reads a part in chunks of about a MiB, or longer if `cut` demands it. By default chunks end after
// a line, or between two characters if no line ends. Memory: one chunk.
absl::Status ForEachChunk(const DocumentPart& part,
                          const std::function<absl::Status(std::string_view chunk)>& visit,
                          const ChunkCut& cut = LastCut);

// Returns a shell pattern for the default training text: the Perl manual, some 9 MB of English in
// *.pod files, from Debian's package perl-doc. NotFound, naming the package to install, if it is
// missing. `root` is the folder of the Perl versions, for tests.
absl::StatusOr<std::string> DefaultCorpusPattern(const std::string& root = "/usr/share/perl");

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_CORPUS_H_
