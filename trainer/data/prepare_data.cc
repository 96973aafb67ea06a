#include "trainer/data/prepare_data.h"

#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/file_descriptor.h"
#include "base/files.h"
#include "base/processors.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/files/load_tokenizer.h"
#include "tokenizer/llmc_tokenizer.h"
#include "trainer/data/encode_documents.h"
#include "trainer/data/token_checksums.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultSentencePieceVocabulary = 4096;
// Part of the request hash: incremented whenever the same texts and options yield different files.
constexpr uint64_t kProgramVersion = 3;

absl::Status Invalid(absl::string_view option, const absl::AlphaNum& value,
                     absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(option, " is ", value, ": expected ", expected));
}

// Checks options that do not concern the tokenizer.
absl::Status CheckOptions(const PrepareDataOptions& options) {
  if (options.output_dir.empty()) return Invalid("output_dir", "empty", "a folder");
  if (options.threads < 0) return Invalid("threads", options.threads, "0 or more");
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    return Invalid("validation_fraction", options.validation_fraction, "0 or more, below 1");
  }
  if (options.shard_tokens < 1 || options.shard_tokens >= int64_t{1} << 31) {
    return Invalid("shard_tokens", options.shard_tokens, "from 1 to 2^31 - 1");
  }
  if (options.tokenizer_sample_bytes < 1) {
    return Invalid("tokenizer_sample_bytes", options.tokenizer_sample_bytes, "1 or more");
  }
  return absl::OkStatus();
}

// The options, with what they do not say.
struct Job {
  const PrepareDataOptions& options;
  // Null: trained on the text.
  std::unique_ptr<Tokenizer> tokenizer;
  TokenFormat format = TokenFormat::kGpt2;
  int threads = 1;
};

absl::Status CheckVocabularySize(const Job& job) {
  const int64_t wanted = job.options.vocab_size;
  const int64_t largest = MaxVocabularySize(job.format);
  const std::string format(TokenFormatName(job.format));
  if (job.tokenizer != nullptr) {
    const int64_t found = job.tokenizer->vocab_size();
    if (wanted != 0 && wanted != found) {
      return Invalid("vocab_size", wanted, absl::StrCat(found, ", which the tokenizer has"));
    }
    if (found > largest) {
      return Invalid("format", format, absl::StrCat("llama3, which holds ", found, " ids"));
    }
  } else if (wanted != 0 && (wanted < kMinSentencePieceVocabulary || wanted > largest)) {
    return Invalid("vocab_size", wanted,
                   absl::StrCat("from ", kMinSentencePieceVocabulary, " to ", largest,
                                ", what format ", format, " holds"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGiven(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return Invalid("tokenizer", path, "byte, sentencepiece, or the path of a tokenizer");
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(path);
  if (!tokenizer.ok()) return tokenizer;
  if (const auto ids = (*tokenizer)->Encode(""); !ids.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", ids.status().message()));
  }
  return tokenizer;
}

absl::StatusOr<Job> PlanJob(const PrepareDataOptions& options) {
  Job job{.options = options};
  if (options.tokenizer == "byte") {
    job.tokenizer = std::make_unique<ByteTokenizer>();
  } else if (options.tokenizer != "sentencepiece") {
    TESSERA_ASSIGN_OR_RETURN(job.tokenizer, LoadGiven(options.tokenizer));
  }
  if (options.begin_of_text &&
      (job.tokenizer == nullptr || !job.tokenizer->begin_of_text().has_value())) {
    return Invalid("begin_of_text", "true", "false: the tokenizer has no begin-of-text token");
  }
  const bool small = job.tokenizer == nullptr ||
                     job.tokenizer->vocab_size() <= MaxVocabularySize(TokenFormat::kGpt2);
  job.format = options.format.value_or(small ? TokenFormat::kGpt2 : TokenFormat::kLlama3);
  job.threads = options.threads > 0 ? options.threads : UsableProcessors();
  TESSERA_RETURN_IF_ERROR(CheckVocabularySize(job));
  return job;
}

void Add(ContentHash& hash, std::string_view text) {
  hash.Add(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

std::string RequestHash(const Job& job, const std::vector<Document>& documents) {
  const PrepareDataOptions& options = job.options;
  ContentHash hash;
  const bool own = options.tokenizer == "byte" || options.tokenizer == "sentencepiece";
  Add(hash, absl::StrCat(kProgramVersion, " ", own ? options.tokenizer : "files", " ",
                         options.vocab_size, " ", options.tokenizer_sample_bytes, " ",
                         std::string(TokenFormatName(job.format)), " ", options.validation_fraction,
                         " ", options.shard_tokens));
  if (!own) {
    for (const TokenizerFile& file : job.tokenizer->Files()) Add(hash, file.contents);
  }
  if (options.begin_of_text) Add(hash, "begin_of_text");
  for (const Document& document : documents) hash.Add(document.hash);
  return absl::StrCat(absl::Hex(hash.Finish(), absl::kZeroPad16));
}

std::string Join(const std::string& directory, std::string_view name) {
  return absl::StrCat(directory, "/", std::string(name));
}

bool AllFilesThere(const DatasetSummary& summary, const std::string& directory) {
  return std::all_of(summary.files.begin(), summary.files.end(), [&](const auto& file) {
    std::error_code error;
    return fs::file_size(Join(directory, file.name), error) == file.size_bytes && !error;
  });
}

// Token files that dataset.json does not list would be read along with the ones written here.
absl::Status CheckForeignFiles(const std::string& directory, const DatasetSummary& old) {
  std::set<std::string> ours;
  for (const DatasetSummary::File& file : old.files) ours.insert(file.name);
  for (const std::string pattern : {"train_*.bin", "val_*.bin"}) {
    const absl::StatusOr<std::vector<std::string>> paths = Glob(Join(directory, pattern));
    if (!paths.ok()) continue;
    for (const std::string& path : *paths) {
      if (ours.contains(fs::path(path).filename().string())) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          path, " was not written by prepare_data: give an output folder without token files"));
    }
  }
  return absl::OkStatus();
}

// Locks a folder until the descriptor is closed or the process ends. An error if it is locked.
absl::StatusOr<FileDescriptor> LockFolder(const std::string& path) {
  absl::StatusOr<FileDescriptor> folder = FileDescriptor::OpenFolder(path);
  if (!folder.ok()) return folder;
  TESSERA_RETURN_IF_ERROR(folder->TryLock());
  return folder;
}

constexpr std::string_view kStagingPrefix = ".staging-";
constexpr std::string_view kStagingPattern = "XXXXXX";  // mkdtemp's

// Removes staging folders of runs that were killed; those of running processes are locked.
void RemoveStaleStagingFolders(const std::string& output_dir) {
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator it(output_dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kStagingPrefix) &&
        name.size() == kStagingPrefix.size() + kStagingPattern.size()) {
      found.push_back(it->path().string());
    }
  }
  for (const std::string& path : found) {
    if (LockFolder(path).ok()) fs::remove_all(path, error);
  }
}

// A temporary folder beside the final files, removed with its contents by the destructor.
class StagingFolder {
 public:
  static absl::StatusOr<std::unique_ptr<StagingFolder>> Create(const std::string& output_dir) {
    TESSERA_RETURN_IF_ERROR(Named("cannot create the output folder", output_dir,
                                  MakeDirectories(AT_FDCWD, output_dir)));
    RemoveStaleStagingFolders(output_dir);
    std::string path =
        Join(output_dir, absl::StrCat(std::string(kStagingPrefix), std::string(kStagingPattern)));
    if (mkdtemp(path.data()) == nullptr) {
      return Named("cannot write to the output folder", output_dir, ErrnoStatus(errno));
    }
    TESSERA_ASSIGN_OR_RETURN(FileDescriptor lock, LockFolder(path));
    return std::unique_ptr<StagingFolder>(new StagingFolder(path, std::move(lock)));
  }
  ~StagingFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  StagingFolder(std::string path, FileDescriptor lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  FileDescriptor lock_;
};

absl::Status EncodeSplit(const Job& job, const std::vector<DocumentPart>& parts,
                         const Tokenizer& tokenizer, const BytesDone& done,
                         TokenShardWriter& writer, SplitSummary& summary) {
  std::vector<int32_t> separator = {tokenizer.end_of_text()};
  if (job.options.begin_of_text) separator.push_back(*tokenizer.begin_of_text());
  TESSERA_RETURN_IF_ERROR(EncodeDocuments(parts, tokenizer, separator, job.threads, done, writer));
  for (const DocumentPart& part : parts) summary.text_bytes += part.size_bytes();
  summary.documents = static_cast<int64_t>(parts.size());
  summary.tokens = writer.tokens();
  return writer.Close();
}

// Trains a tokenizer where none is given.
absl::StatusOr<std::unique_ptr<Tokenizer>> TrainOn(const PrepareDataOptions& options,
                                                   const std::vector<DocumentPart>& train,
                                                   const BytesDone& done) {
  const int64_t vocab_size =
      options.vocab_size == 0 ? kDefaultSentencePieceVocabulary : options.vocab_size;
  return TrainTokenizer(train, vocab_size, options.tokenizer_sample_bytes, done);
}

// Writes the tokenizer's own files and, if no token is too long for it, llm.c's, which has the text
// of every id. Appends their names.
absl::Status WriteTokenizer(const Tokenizer& tokenizer, const std::string& directory,
                            std::vector<std::string>& names) {
  std::vector<TokenizerFile> files;
  absl::StatusOr<std::string> table = LlmcTokenizerFile(tokenizer);
  if (table.ok()) files.push_back({kLlmcTokenizerName, *std::move(table)});
  for (TokenizerFile& file : tokenizer.Files()) {
    if (file.name != kLlmcTokenizerName) files.push_back(std::move(file));
  }
  for (const TokenizerFile& file : files) {
    TESSERA_RETURN_IF_ERROR(ReplaceFile(Join(directory, file.name), file.contents));
    names.push_back(file.name);
  }
  return absl::OkStatus();
}

// Writes every file except dataset.json into `directory`, and fills in the summary.
absl::Status WriteFiles(const Job& job, const CorpusSplit& split, const Tokenizer& tokenizer,
                        const std::string& directory, const BytesDone& done,
                        DatasetSummary& summary) {
  const int64_t shard_tokens = job.options.shard_tokens;
  summary.tokenizer = tokenizer.kind();
  summary.vocab_size = tokenizer.vocab_size();
  summary.end_of_text = tokenizer.end_of_text();
  summary.format = TokenFormatName(job.format);
  summary.split = split.kind;

  TokenShardWriter train(directory, "train", job.format, shard_tokens, tokenizer.vocab_size());
  TESSERA_RETURN_IF_ERROR(EncodeSplit(job, split.train, tokenizer, done, train, summary.train));
  TokenShardWriter validation(directory, "val", job.format, shard_tokens, tokenizer.vocab_size());
  TESSERA_RETURN_IF_ERROR(
      EncodeSplit(job, split.validation, tokenizer, done, validation, summary.validation));
  summary.unigram_nats_per_token = UnigramNatsPerToken(
      train.counts(), validation.tokens() > 0 ? validation.counts() : train.counts());

  std::vector<std::string> names = train.file_names();
  names.insert(names.end(), validation.file_names().begin(), validation.file_names().end());
  for (size_t i = 0, n = names.size(); i < n; ++i) names.push_back(ChecksumPath(names[i]));
  TESSERA_RETURN_IF_ERROR(WriteTokenizer(tokenizer, directory, names));
  for (const std::string& name : names) {
    std::error_code error;
    const int64_t size_bytes = fs::file_size(Join(directory, name), error);
    if (error) return Named("cannot examine", name, ErrnoStatus(error.value()));
    summary.files.push_back({name, size_bytes});
  }
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& directory) {
  // The user may have named the folder by a symbolic link; "/." resolves it.
  const auto folder = FileDescriptor::OpenFolder(Join(directory, "."));
  return folder.ok() ? folder->Sync() : folder.status();
}

// Moves files from one folder to another, durably.
absl::Status MoveFiles(const std::vector<std::string>& names, const std::string& from,
                       const std::string& to) {
  std::error_code error;
  for (const std::string& name : names) {
    fs::rename(Join(from, name), Join(to, name), error);
    if (error) return Named("cannot write", Join(to, name), ErrnoStatus(error.value()));
  }
  return SyncFolder(to);
}

// Replaces the old files with the new ones:
// 1. dataset.json lists both sets and matches no request, so that a run that dies here is detected
//    and its files are known;
// 2. old files without a successor are removed, as are all old checksums;
// 3. new files are renamed into place and, once they are durable, their checksums: no token file
//    ever has another one's checksums;
// 4. dataset.json describes the new set.
absl::Status ExchangeFiles(const std::string& staging, const std::string& directory,
                           const DatasetSummary& old, const DatasetSummary& summary) {
  std::set<std::string> fresh;
  std::vector<std::string> fresh_files, fresh_checksums;
  for (const DatasetSummary::File& file : summary.files) {
    fresh.insert(file.name);
    (IsChecksumPath(file.name) ? fresh_checksums : fresh_files).push_back(file.name);
  }
  std::vector<std::string> stale;
  DatasetSummary both = summary;
  both.request.clear();
  for (const DatasetSummary::File& file : old.files) {
    if (!fresh.contains(file.name)) both.files.push_back(file);
    if (!fresh.contains(file.name) || IsChecksumPath(file.name)) stale.push_back(file.name);
  }
  TESSERA_RETURN_IF_ERROR(WriteDatasetSummary(both, directory));

  std::error_code error;
  for (const std::string& name : stale) {
    fs::remove(Join(directory, name), error);
    if (error) return Named("cannot remove", name, ErrnoStatus(error.value()));
  }
  TESSERA_RETURN_IF_ERROR(SyncFolder(directory));
  TESSERA_RETURN_IF_ERROR(MoveFiles(fresh_files, staging, directory));
  TESSERA_RETURN_IF_ERROR(MoveFiles(fresh_checksums, staging, directory));
  return WriteDatasetSummary(summary, directory);
}

// Turns increments of bytes into a total of bytes done.
BytesDone Phase(const PrepareProgress& progress, std::string_view name, int64_t total_bytes) {
  return [&progress, name, total_bytes, done_bytes = int64_t{0}](int64_t bytes) mutable {
    done_bytes += bytes;
    progress(name, done_bytes, total_bytes);
  };
}

}  // namespace

absl::StatusOr<int64_t> AddChecksums(const std::string& pattern, const PrepareProgress& progress) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> paths, Glob(pattern));
  std::erase_if(paths, [](const std::string& path) { return IsChecksumPath(path); });
  int64_t total_bytes = 0;
  std::vector<FileDescriptor> files;
  for (const std::string& path : paths) {
    // Old checksums, which may be the reason for this call, must not be compared.
    TESSERA_RETURN_IF_ERROR(RemoveTokenChecksums(path));
    if (const auto opened = TokenFile::Open(path); !opened.ok()) return opened.status();
    TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, FileDescriptor::OpenForReading(path));
    TESSERA_ASSIGN_OR_RETURN(const int64_t size_bytes, file.SizeBytes());
    total_bytes += size_bytes;
    files.push_back(std::move(file));
  }
  const BytesDone done = Phase(progress, "reading", total_bytes);
  done(0);
  for (size_t i = 0; i < files.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(TokenChecksums checksums, MakeTokenChecksums(paths[i], files[i]));
    checksums.modified_ns = 0;
    done(checksums.size_bytes);
    TESSERA_RETURN_IF_ERROR(WriteTokenChecksums(paths[i], checksums));
  }
  return static_cast<int64_t>(files.size());
}

absl::StatusOr<PrepareDataResult> PrepareData(const PrepareDataOptions& options,
                                              const PrepareProgress& progress) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  TESSERA_ASSIGN_OR_RETURN(Job job, PlanJob(options));
  std::vector<std::string> inputs = options.inputs;
  if (inputs.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::string pattern, DefaultCorpusPattern());
    inputs.push_back(pattern);
  }
  TESSERA_ASSIGN_OR_RETURN(const DocumentList list, FindDocuments(inputs));
  PrepareDataResult result;
  result.skipped = list.skipped;
  TESSERA_ASSIGN_OR_RETURN(const auto documents, ScanDocuments(list.paths, result.skipped,
                                                               Phase(progress, "reading", 0)));
  if (documents.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the input has no text: ", Counted(list.paths.size(), "file"), ", all empty"));
  }

  result.summary.request = RequestHash(job, documents);
  absl::StatusOr<DatasetSummary> old = ReadDatasetSummary(options.output_dir);
  if (old.ok() && old->request == result.summary.request &&
      AllFilesThere(*old, options.output_dir)) {
    result.summary = *std::move(old);
    result.up_to_date = true;
    return result;
  }
  // Without a readable description, no file is known to be written by this program.
  if (!old.ok()) old = DatasetSummary();
  if (absl::Status status = CheckForeignFiles(options.output_dir, *old); !status.ok())
    return status;
  TESSERA_ASSIGN_OR_RETURN(const auto staging, StagingFolder::Create(options.output_dir));

  TESSERA_ASSIGN_OR_RETURN(const CorpusSplit split,
                           SplitCorpus(documents, options.validation_fraction));
  int64_t train_bytes = 0, total_bytes = 0;
  for (const DocumentPart& part : split.train) train_bytes += part.size_bytes();
  for (const Document& document : documents) total_bytes += document.size_bytes;
  if (train_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("validation_fraction is ", options.validation_fraction,
                     ": it leaves none of the ", total_bytes, " bytes of text for training"));
  }
  if (job.tokenizer == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        auto trained,
        TrainOn(options, split.train, Phase(progress, "training the tokenizer", train_bytes)));
    job.tokenizer = std::move(trained);
  }
  TESSERA_RETURN_IF_ERROR(WriteFiles(job, split, *job.tokenizer, staging->path(),
                                     Phase(progress, "encoding", total_bytes), result.summary));
  TESSERA_RETURN_IF_ERROR(ExchangeFiles(staging->path(), options.output_dir, *old, result.summary));
  return result;
}

}  // namespace tessera
