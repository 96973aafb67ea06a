#include "checkpoint/scan/scan.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/internal/damage.h"

namespace tessera::ckpt {
namespace {

constexpr size_t kMaxDamagePerFile = 100;

// The manifest says which path to open: a folder or a pipe in its place is damage.
bool IsDamage(const absl::Status& status) {
  return MayBeDamage(status) || absl::IsInvalidArgument(status);
}

// The pieces of a scan, which threads take in ascending order until one has failed.
class PieceProgress {
 public:
  explicit PieceProgress(size_t count) : count_(count), first_failed_(count) {}

  std::optional<size_t> Take() {
    const MutexLock lock(&mutex_);
    if (next_ == count_ || first_failed_ < count_) return std::nullopt;
    return next_++;
  }
  void End(size_t piece, absl::Status status) {
    const MutexLock lock(&mutex_);
    if (status.ok() || piece >= first_failed_) return;
    first_failed_ = piece;
    error_ = std::move(status);
  }
  // Returns the error of the first piece that failed.
  absl::Status error() const {
    const MutexLock lock(&mutex_);
    return error_;
  }

 private:
  const size_t count_;
  mutable Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t first_failed_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<const std::string> EdgeChunkCache::Find(const std::string& file,
                                                        const FilePiece& chunk) {
  const MutexLock lock(&mutex_);
  for (const Kept& kept : kept_) {
    if (kept.begin != chunk.begin || kept.bytes->size() != chunk.size() || kept.file != file) {
      continue;
    }
    found_bytes_ += chunk.size();
    return kept.bytes;
  }
  return nullptr;
}

void EdgeChunkCache::Keep(const std::string& file, const FilePiece& chunk, const std::byte* data) {
  if (chunk.size() > max_bytes_) return;
  std::shared_ptr<std::string> bytes;
  {
    const MutexLock lock(&mutex_);
    for (kept_bytes_ += chunk.size(); kept_bytes_ > max_bytes_ && !kept_.empty();
         kept_.pop_front()) {
      kept_bytes_ -= kept_.front().bytes->size();
      // Filling new memory costs more.
      if (kept_.front().bytes.use_count() == 1) bytes = std::move(kept_.front().bytes);
    }
  }
  if (bytes == nullptr) bytes = std::make_shared<std::string>();
  bytes->assign(reinterpret_cast<const char*>(data), chunk.size());
  const MutexLock lock(&mutex_);
  kept_.push_back({file, chunk.begin, std::move(bytes)});
}

uint64_t EdgeChunkCache::found_bytes() const {
  const MutexLock lock(&mutex_);
  return found_bytes_;
}

// What is wrong with the files that are being opened.
class Scanner::Problems {
 public:
  void Add(absl::StatusCode code, absl::string_view text, const std::string& file) {
    const bool is_damage = MayBeDamage(absl::Status(code, ""));
    // Keeps the code of the first problem that is not damage, or else of the first problem.
    if (texts_.empty() || (!is_damage && damaged_.size() == texts_.size())) code_ = code;
    if (is_damage) damaged_.push_back({.file = file});
    texts_.push_back(std::string(text));
  }
  absl::Status status() const {
    if (texts_.empty()) return absl::OkStatus();
    return WithDamagedParts(absl::Status(code_, absl::StrJoin(texts_, "\n")), damaged_);
  }

 private:
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::vector<std::string> texts_;
  std::vector<DamagedPart> damaged_;
};

Scanner::Scanner(Storage& storage, std::string_view checkpoint_dir, const Manifest& manifest,
                 ScanOptions options)
    : storage_(storage),
      directory_(checkpoint_dir),
      manifest_(manifest),
      options_(std::move(options)) {}

absl::Status Scanner::Open(std::span<const uint32_t> file_indices) {
  Problems problems;
  // A file server may take long for each; a few files are not worth a thread.
  std::vector<absl::StatusOr<std::unique_ptr<ReadableFile>>> opened(file_indices.size());
  TESSERA_RETURN_IF_ERROR(RunTasks(std::min<int>(options_.io_threads, 1 + opened.size() / 16),
                                   opened.size(), [&](int, size_t i) {
                                     opened[i] = storage_.Open(JoinPath(
                                         directory_, manifest_.files(file_indices[i]).path()));
                                     return absl::OkStatus();
                                   }));
  for (size_t i = 0; i < opened.size(); ++i) {
    AddFile(file_indices[i], std::move(opened[i]), problems);
  }
  return problems.status();
}

absl::Status Scanner::OpenAll() {
  std::vector<uint32_t> all(manifest_.files_size());
  std::iota(all.begin(), all.end(), 0);
  return Open(all);
}

void Scanner::AddFile(uint32_t file_index, absl::StatusOr<std::unique_ptr<ReadableFile>> file,
                      Problems& problems) {
  const DataFile& description = manifest_.files(file_index);
  const std::string path = JoinPath(directory_, description.path());
  if (const absl::Status& error = file.status(); !error.ok()) {
    if (options_.on_damage == nullptr || !IsDamage(error)) {
      problems.Add(absl::IsInvalidArgument(error) ? absl::StatusCode::kDataLoss : error.code(),
                   error.message(), description.path());
      return;
    }
    ReportDamage(file_index, [&]() -> Damage {
      // The damage names the file already.
      const std::string name = storage_.Describe(path);
      return {description.path(), 0, map().TensorsIn(file_index, 0, description.size_bytes()),
              absl::StrReplaceAll(error.message(), {{absl::StrCat("Open ", name, ": "), ""},
                                                    {absl::StrCat(name, ": "), ""}})};
    });
    return;
  }
  const uint64_t found = (*file)->size_bytes();
  uint64_t readable = std::min<uint64_t>(description.size_bytes(), found);
  const auto report = [&](Damage damage) {
    if (options_.on_damage != nullptr) {
      ReportDamage(file_index, [&] { return std::move(damage); });
      return;
    }
    damage.file = storage_.Describe(path);
    problems.Add(absl::StatusCode::kDataLoss, ToString(damage), description.path());
  };
  if (found != description.size_bytes()) {
    report(DescribeSizeError(manifest_, map(), file_index, found));
  }
  // A larger chunk would make the buffers unbounded.
  if (description.chunk_bytes() > kMaxChunkBytes && readable > kMaxChunkBytes) {
    report({description.path(), 0, "",
            absl::StrCat("checksum chunks of ", description.chunk_bytes(), " bytes, at most ",
                         kMaxChunkBytes, " can be read")});
    readable = 0;
  }
  files_[file_index] = {*std::move(file), readable};
}

const ReadableFile* Scanner::file(uint32_t file_index) const {
  const auto at = files_.find(file_index);
  return at == files_.end() ? nullptr : at->second.file.get();
}

std::vector<FilePiece> Scanner::WholeFiles() const {
  std::vector<FilePiece> ranges;
  for (const auto& [index, file] : files_) {
    if (file.readable_bytes > 0) ranges.push_back({index, 0, file.readable_bytes});
  }
  return ranges;
}

const FileMap& Scanner::map() const {
  const MutexLock lock(&mutex_);
  if (!map_.has_value()) map_.emplace(manifest_);
  return *map_;
}

void Scanner::ReportDamage(uint32_t file_index, const std::function<Damage()>& describe) const {
  size_t count;
  {
    const MutexLock lock(&mutex_);
    count = ++damage_per_file_[file_index];
  }
  if (count > kMaxDamagePerFile) return;
  Damage damage = describe();
  if (count == kMaxDamagePerFile) damage.message += kMoreDamage;
  const MutexLock lock(&mutex_);
  options_.on_damage(std::move(damage));
}

FilePiece Scanner::FirstChunk(const FilePiece& range) const {
  const uint64_t chunk_bytes = manifest_.files(range.file_index).chunk_bytes();
  return {range.file_index, range.begin, std::min(range.end, range.begin + chunk_bytes)};
}

FilePiece Scanner::LastChunk(const FilePiece& range) const {
  const uint64_t chunk_bytes = manifest_.files(range.file_index).chunk_bytes();
  return {range.file_index, RoundDown(range.end - 1, chunk_bytes), range.end};
}

absl::Status Scanner::TakeEnds(EdgeChunkCache& ends, const ChunkFunction& function,
                               FilePiece& range) const {
  const std::string& file = manifest_.files(range.file_index).path();
  const auto take = [&](const FilePiece& chunk) -> absl::StatusOr<bool> {
    const std::shared_ptr<const std::string> bytes = ends.Find(file, chunk);
    if (bytes == nullptr) return false;
    TESSERA_RETURN_IF_ERROR(function(0, chunk, reinterpret_cast<const std::byte*>(bytes->data())));
    return true;
  };
  TESSERA_ASSIGN_OR_RETURN(const bool first, take(FirstChunk(range)));
  if (first) range.begin = FirstChunk(range).end;
  if (range.begin == range.end) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const bool last, take(LastChunk(range)));
  if (last) range.end = LastChunk(range).begin;
  return absl::OkStatus();
}

void Scanner::AddPieces(const FilePiece& range, Pieces& to) const {
  const PieceLayout layout = LayOutPieces(manifest_.files(range.file_index).chunk_bytes(),
                                          options_.io_threads, options_.staging_bytes);
  to.workers = std::min(to.workers, layout.workers);
  for (uint64_t at = range.begin; at < range.end; at += layout.piece_bytes) {
    to.pieces.push_back({range.file_index, at, std::min(range.end, at + layout.piece_bytes)});
    to.largest = std::max(to.largest, to.pieces.back().size());
    to.room = std::max(to.room, OffsetInPage(to.pieces.back()));
  }
}

absl::Status Scanner::Run(std::span<const FilePiece> ranges, const ChunkFunction& function,
                          ScanBuffers* kept) const {
  ScanBuffers own;
  ScanBuffers& left = kept != nullptr ? *kept : own;
  EdgeChunkCache* const ends = left.ends;
  std::set<std::pair<uint32_t, uint64_t>> to_keep;  // files and beginnings of chunks
  const ChunkFunction keep = [&](int worker, const FilePiece& chunk, const std::byte* data) {
    if (to_keep.contains({chunk.file_index, chunk.begin})) {
      ends->Keep(manifest_.files(chunk.file_index).path(), chunk, data);
    }
    return function(worker, chunk, data);
  };
  Pieces pieces = {.workers = options_.io_threads};
  for (FilePiece range : ranges) {
    if (ends != nullptr && range.size() > 0) {
      TESSERA_RETURN_IF_ERROR(TakeEnds(*ends, function, range));
      if (range.size() == 0) continue;
      to_keep.emplace(range.file_index, FirstChunk(range).begin);
      to_keep.emplace(range.file_index, LastChunk(range).begin);
    }
    AddPieces(range, pieces);
  }
  return ReadPieces(pieces, left.buffers, ends != nullptr ? keep : function);
}

// Each thread has buffers of its own, which it uses in turn.
absl::Status Scanner::ReadPieces(const Pieces& all, std::vector<AlignedBuffer>& buffers,
                                 const ChunkFunction& function) const {
  const int workers = static_cast<int>(std::min<size_t>(all.workers, all.pieces.size()));
  const uint64_t affordable = options_.staging_bytes / std::max<uint64_t>(workers * all.largest, 1);
  const size_t each = std::clamp<uint64_t>(affordable, 1, kPiecesPerWorker);
  buffers.resize(std::max<size_t>(buffers.size(), workers * each));
  for (AlignedBuffer& buffer : std::span(buffers).first(workers * each)) {
    if (buffer.size_bytes() >= all.room + all.largest) continue;
    TESSERA_ASSIGN_OR_RETURN(buffer, AlignedBuffer::Allocate(all.room + all.largest));
  }
  struct Started {
    size_t index;
    std::byte* data;
    std::unique_ptr<PendingIo> io;
    absl::Status Wait() { return std::exchange(io, nullptr)->Wait(); }
  };
  PieceProgress progress(all.pieces.size());
  TESSERA_RETURN_IF_ERROR(RunTasks(workers, workers, [&](int worker, size_t) {
    size_t reads = 0;
    const auto start = [&](bool ahead) -> std::optional<Started> {
      const std::optional<size_t> index = ahead && each == 1 ? std::nullopt : progress.Take();
      if (!index.has_value()) return std::nullopt;
      const FilePiece& piece = all.pieces[*index];
      AlignedBuffer& buffer = buffers[worker * each + reads++ % each];
      std::byte* const data = buffer.data() + OffsetInPage(piece);
      return Started{*index, data, StartPiece(piece, data)};
    };
    ReadAhead(start, [&](const Started& read, const absl::Status& status) {
      progress.End(read.index, CatchExceptions("", [&] {
                     return FinishPiece(status, all.pieces[read.index], read.data, worker,
                                        function);
                   }));
    });
    return absl::OkStatus();
  }));
  return progress.error();
}

size_t Scanner::OffsetInPage(const FilePiece& piece) const {
  return files_.at(piece.file_index).file->OffsetInPage(piece.begin);
}

std::unique_ptr<PendingIo> Scanner::StartPiece(const FilePiece& piece, std::byte* buffer) const {
  return files_.at(piece.file_index)
      .file->StartReadAt(piece.begin, {buffer, piece.size()}, options_.read_original);
}

absl::Status Scanner::FinishPiece(const absl::Status& read, const FilePiece& piece,
                                  std::byte* buffer, int worker,
                                  const ChunkFunction& function) const {
  if (options_.is_cancelled && options_.is_cancelled()) {
    return absl::CancelledError("the caller has ended it");
  }
  const DataFile& description = manifest_.files(piece.file_index);
  const std::span bytes(buffer, piece.size());
  if (!read.ok()) {
    if (options_.on_damage == nullptr || !IsDamage(read)) {
      return WithDamagedParts(read, {{description.path(), piece.begin, piece.end}});
    }
    ReportDamage(piece.file_index, [&]() -> Damage {
      return {description.path(), piece.begin,
              map().TensorsIn(piece.file_index, piece.begin, piece.end),
              std::string(read.message())};
    });
    return absl::OkStatus();
  }
  const uint64_t chunk_bytes = description.chunk_bytes();
  for (uint64_t at = piece.begin; at < piece.end; at += chunk_bytes) {
    const FilePiece chunk = {piece.file_index, at, std::min(piece.end, at + chunk_bytes)};
    const std::span data = bytes.subspan(at - piece.begin, chunk.size());
    if (options_.verify_checksums && HasChecksums(description)) {
      TESSERA_RETURN_IF_ERROR(
          WithDamagedParts(CheckChunk(chunk, data), {{description.path(), at, chunk.end}}));
    }
    TESSERA_RETURN_IF_ERROR(function(worker, chunk, data.data()));
  }
  return absl::OkStatus();
}

absl::Status Scanner::CheckChunk(const FilePiece& chunk, std::span<std::byte> data) const {
  const DataFile& description = manifest_.files(chunk.file_index);
  const uint64_t index = chunk.begin / description.chunk_bytes();
  const uint64_t begin = index * description.chunk_bytes();
  const uint64_t end =
      std::min<uint64_t>(begin + description.chunk_bytes(), description.size_bytes());
  if (chunk.begin != begin || chunk.end != end) {
    // The rest of a truncated file's last chunk is missing, which was already reported.
    if (options_.on_damage != nullptr) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(description.path(), ": bytes [", chunk.begin, ", ",
                                            chunk.end, ") are not a chunk, and have no checksum"));
  }
  const uint32_t expected = description.chunk_crc32c(index);
  uint32_t found = Crc32c(data);
  const auto describe = [&] {
    return DescribeChecksumError(manifest_, map(), chunk.file_index, index, found);
  };
  if (options_.on_damage != nullptr) {
    if (found != expected) ReportDamage(chunk.file_index, describe);
    return absl::OkStatus();
  }
  absl::Status read;
  for (int again = 0; again < kChunkRereads && (found != expected || !read.ok()); ++again) {
    read = files_.at(chunk.file_index).file->ReadOriginalAt(chunk.begin, data);
    if (read.ok()) found = Crc32c(data);
  }
  TESSERA_RETURN_IF_ERROR(read);
  if (found == expected) return absl::OkStatus();
  Damage damage = describe();
  damage.file = storage_.Describe(JoinPath(directory_, description.path()));
  return absl::DataLossError(ToString(damage));
}

std::optional<Damage> FindCutElements(const Manifest& manifest, uint32_t file_index,
                                      uint64_t shard_begin, const LogicalTensor& tensor) {
  const DataFile& file = manifest.files(file_index);
  const size_t size = ElementSize(FromProto(tensor.dtype()));
  if (shard_begin % size == 0 && file.chunk_bytes() % size == 0) return std::nullopt;
  return Damage{file.path(), shard_begin, tensor.name(),
                absl::StrCat("elements of ", size, " bytes are not aligned, or checksum chunks of ",
                             file.chunk_bytes(), " bytes cut them")};
}

}  // namespace tessera::ckpt
