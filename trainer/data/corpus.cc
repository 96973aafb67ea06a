#include "trainer/data/corpus.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "compute/random/philox.h"
#include "trainer/data/token_checksums.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kBinaryProbeBytes = 4096;
constexpr int64_t kLineSearchBytes = 64 << 10;

absl::Status DirectoryError(const std::string& path, const std::error_code& error) {
  return Named("cannot read the directory", path, ErrnoStatus(error.value()));
}

absl::StatusOr<bool> LooksBinary(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor file, FileDescriptor::OpenForReading(path));
  std::vector<uint8_t> bytes(kBinaryProbeBytes);
  TESSERA_ASSIGN_OR_RETURN(const int64_t read, file.ReadAt(0, bytes));
  return std::find(bytes.begin(), bytes.begin() + read, 0) != bytes.begin() + read;
}

// Adds a file, or the reason why it is left out.
absl::Status AddFile(const std::string& path, DocumentList& list) {
  std::error_code not_there;  // a dangling link is not a regular file
  if (!fs::is_regular_file(path, not_there)) {
    list.skipped.push_back({path, "not a regular file"});
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const bool binary, LooksBinary(path));
  if (binary) {
    list.skipped.push_back({path, "not text: a zero byte in its first 4 KiB"});
  } else {
    list.paths.push_back(path);
  }
  return absl::OkStatus();
}

absl::Status AddDirectory(const std::string& directory, DocumentList& list) {
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const std::string path = it->path().string();
    std::error_code not_there;
    if (it->path().filename().string().starts_with(".")) {
      it.disable_recursion_pending();
      list.skipped.push_back({path, "hidden"});
      continue;
    }
    if (it->is_directory(not_there) && !it->is_symlink(not_there)) continue;
    TESSERA_RETURN_IF_ERROR(AddFile(path, list));
  }
  return error ? DirectoryError(directory, error) : absl::OkStatus();
}

// The same file under two names (links, overlapping patterns) is one document.
absl::Status RemoveDuplicates(std::vector<std::string>& paths) {
  std::sort(paths.begin(), paths.end(), NaturalLess);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  std::vector<std::string> unique;
  for (std::string& path : paths) {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return Named("cannot examine", path, ErrnoStatus(errno));
    if (seen.insert({info.st_dev, info.st_ino}).second) unique.push_back(std::move(path));
  }
  paths = std::move(unique);
  return absl::OkStatus();
}

bool ChosenForValidation(const Document& document, double fraction) {
  const uint64_t word = MixCoordinates(document.hash, HashName("validation"));
  return static_cast<double>(word >> 11) * 0x1p-53 < fraction;
}

std::span<uint8_t> Bytes(std::string& text) {
  return {reinterpret_cast<uint8_t*>(text.data()), text.size()};
}

// Returns the position at which to split a document so that about `fraction` of it follows: after
// the end of the line at that point, if that is near, or else between two characters.
absl::StatusOr<int64_t> TailBegin(const Document& document, double fraction) {
  const int64_t wanted = static_cast<int64_t>(document.size_bytes * (1 - fraction));
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor file,
                           FileDescriptor::OpenForReading(document.path));
  std::string text(kLineSearchBytes, '\0');
  TESSERA_ASSIGN_OR_RETURN(const int64_t read, file.ReadAt(wanted, Bytes(text)));
  text.resize(read);
  if (const size_t line_end = text.find('\n'); line_end != text.npos) {
    return wanted + static_cast<int64_t>(line_end) + 1;
  }
  // A character in UTF-8 continues for up to three bytes.
  size_t cut = 0;
  while (cut < std::min<size_t>(text.size(), 3) && (text[cut] & 0xC0) == 0x80) ++cut;
  return wanted + static_cast<int64_t>(cut);
}

}  // namespace

absl::StatusOr<DocumentList> FindDocuments(const std::vector<std::string>& inputs) {
  DocumentList list;
  for (const std::string& input : inputs) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> matches, Glob(input));
    const size_t before = list.paths.size(), skipped = list.skipped.size();
    for (const std::string& match : matches) {
      std::error_code error;
      TESSERA_RETURN_IF_ERROR(fs::is_directory(match, error) ? AddDirectory(match, list)
                                                             : AddFile(match, list));
    }
    if (list.paths.size() == before) {
      return absl::NotFoundError(absl::StrCat(
          "no text file under \"", input, "\"", list.skipped.size() == skipped ? "" : ": skipped, ",
          list.skipped.size() == skipped ? "" : list.skipped.back().reason));
    }
  }
  TESSERA_RETURN_IF_ERROR(RemoveDuplicates(list.paths));
  return list;
}

absl::StatusOr<std::vector<Document>> ScanDocuments(const std::vector<std::string>& paths,
                                                    std::vector<SkippedFile>& skipped,
                                                    const BytesDone& done) {
  std::vector<Document> documents;
  std::vector<uint8_t> buffer(kChunkBytes);
  for (const std::string& path : paths) {
    TESSERA_ASSIGN_OR_RETURN(const FileDescriptor file, FileDescriptor::OpenForReading(path));
    Document document{path};
    ContentHash hash;
    while (true) {
      TESSERA_ASSIGN_OR_RETURN(const int64_t read, file.ReadAt(document.size_bytes, buffer));
      hash.Add(std::span(buffer).first(read));
      document.size_bytes += read;
      done(read);
      if (read < kChunkBytes) break;
    }
    document.hash = hash.Finish();
    if (document.size_bytes == 0) {
      skipped.push_back({path, "empty"});
    } else {
      documents.push_back(std::move(document));
    }
  }
  return documents;
}

absl::StatusOr<CorpusSplit> SplitCorpus(const std::vector<Document>& documents,
                                        double validation_fraction) {
  CorpusSplit split;
  split.kind = validation_fraction == 0 ? "none" : "documents";
  int64_t total_bytes = 0;
  int64_t validation_bytes = 0;
  for (const Document& document : documents) {
    const bool chosen = ChosenForValidation(document, validation_fraction);
    (chosen ? split.validation : split.train).push_back({&document, 0, document.size_bytes});
    total_bytes += document.size_bytes;
    if (chosen) validation_bytes += document.size_bytes;
  }
  const double share = validation_fraction * total_bytes;
  const bool fair = validation_bytes >= share / 4 && validation_bytes <= share * 4 &&
                    validation_bytes < total_bytes;
  if (fair || validation_fraction == 0) return split;

  split = {};
  split.kind = "tails";
  for (const Document& document : documents) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t cut, TailBegin(document, validation_fraction));
    if (cut > 0) split.train.push_back({&document, 0, cut});
    if (cut < document.size_bytes)
      split.validation.push_back({&document, cut, document.size_bytes});
  }
  return split;
}

absl::Status ForEachChunk(const DocumentPart& part,
                          const std::function<absl::Status(std::string_view chunk)>& visit,
                          const ChunkCut& cut) {
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor file,
                           FileDescriptor::OpenForReading(part.document->path));
  std::string chunk;
  int64_t wanted = kChunkBytes;
  for (int64_t at = part.begin_bytes; at < part.end_bytes;) {
    chunk.resize(std::min(wanted, part.end_bytes - at));
    TESSERA_ASSIGN_OR_RETURN(const int64_t read, file.ReadAt(at, Bytes(chunk)));
    if (read < static_cast<int64_t>(chunk.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat(part.document->path, " changed while it was read: expected ",
                       part.document->size_bytes, " bytes, found ", at + read));
    }
    const bool last = at + read == part.end_bytes;
    const std::string_view ready = std::string_view(chunk).substr(0, last ? read : cut(chunk));
    wanted = ready.empty() ? 2 * wanted : kChunkBytes;
    if (ready.empty()) continue;
    TESSERA_RETURN_IF_ERROR(visit(ready));
    at += ready.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DefaultCorpusPattern(const std::string& root) {
  // Other packages contain a few .pod files too; only perl-doc has the tutorial on regular
  // expressions.
  const std::string witness = absl::StrCat(root, "/*/pod/perlretut.pod");
  if (!Glob(witness).ok()) {
    return absl::NotFoundError(absl::StrCat("the default corpus is not installed (nothing matches ",
                                            witness,
                                            "): apt-get install perl-doc, or give --input"));
  }
  return absl::StrCat(root, "/*/pod/*.pod");
}

}  // namespace tessera
