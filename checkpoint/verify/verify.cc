#include "checkpoint/verify/verify.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/workers.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/directory/read_lock.h"
#include "checkpoint/elements/box_runs.h"
#include "checkpoint/elements/digest_runs.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/storage/aligned_buffer.h"
#include "checkpoint/storage/pieces.h"

namespace tessera::ckpt {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{64} << 20;
// Damage that extends over a whole file is reported once, not a million times.
constexpr size_t kMaxDamagePerFile = 100;

// Whether a file that cannot be opened is missing, or something else in its place, or its bytes are
// lost.
bool IsDamage(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
}

struct ReadPiece {
  uint32_t file_index;
  uint64_t begin;
  uint64_t end;
};

// A saved shard that contributes to the digest of its tensor.
struct DigestSource {
  uint32_t tensor;
  uint64_t begin;
  uint64_t end;
  size_t element_bytes;
  BoxRuns global;  // file <-> row-major indices of the logical tensor
};

class Verifier {
 public:
  Verifier(Storage& storage, std::string_view directory, const Manifest& manifest,
           const VerifyOptions& options)
      : storage_(storage),
        directory_(directory),
        manifest_(manifest),
        map_(manifest),
        options_(options),
        files_(manifest.files_size()),
        damage_per_file_(manifest.files_size()) {}

  absl::Status Run() {
    CheckCoverage();
    for (int f = 0; f < manifest_.files_size(); ++f) TESSERA_RETURN_IF_ERROR(OpenFile(f));
    if (!options_.contents) return absl::OkStatus();
    if (options_.digests) PrepareDigests();
    TESSERA_RETURN_IF_ERROR(ReadEverything());
    if (options_.digests) CompareDigests();
    return absl::OkStatus();
  }

  VerifyReport Finish() && {
    const MutexLock lock(&mutex_);
    std::ranges::stable_sort(report_.damage, {}, [](const Damage& d) {
      return std::pair(std::string_view(d.file), d.offset_bytes);
    });
    return std::move(report_);
  }

 private:
  void Report(Damage damage) {
    const MutexLock lock(&mutex_);
    report_.damage.push_back(std::move(damage));
  }

  // Adds damage of a data file, up to a limit. A description that is not reported is not created.
  template <typename MakeDamage>
  void ReportInFile(uint32_t file_index, const MakeDamage& make_damage) {
    size_t count;
    {
      const MutexLock lock(&mutex_);
      count = ++damage_per_file_[file_index];
    }
    if (count > kMaxDamagePerFile) return;
    Damage damage = make_damage();
    if (count == kMaxDamagePerFile) damage.message += "; more of this file is not reported";
    Report(std::move(damage));
  }

  void CheckCoverage() {
    for (const LogicalTensor& tensor : manifest_.tensors()) {
      if (!tensor.alias_of().empty()) continue;
      const absl::Status covered = ValidateCoverage(tensor);
      if (covered.ok()) continue;
      Report({std::string(kManifestFileName), 0, tensor.name(), std::string(covered.message())});
    }
  }

  absl::Status OpenFile(uint32_t index) {
    const DataFile& description = manifest_.files(index);
    absl::StatusOr<std::unique_ptr<ReadableFile>> file =
        storage_.Open(JoinPath(directory_, description.path()));
    if (!file.ok()) {
      if (!IsDamage(file.status())) return file.status();
      // The report names the file already.
      const std::string name = storage_.Describe(JoinPath(directory_, description.path()));
      Report({description.path(), 0, map_.TensorsIn(index, 0, description.size_bytes()),
              absl::StrReplaceAll(file.status().message(), {{absl::StrCat("Open ", name, ": "), ""},
                                                            {absl::StrCat(name, ": "), ""}})});
      return absl::OkStatus();
    }
    const uint64_t found = (*file)->size_bytes();
    if (found != description.size_bytes()) {
      Report(DescribeSizeError(manifest_, map_, index, found));
    }
    files_[index] = *std::move(file);
    // Without checksums it is no file of this format, and has another header or none.
    return HasChecksums(description) ? CheckHeader(index) : absl::OkStatus();
  }

  // The file's own header must agree with the manifest, since other tools read it.
  absl::Status CheckHeader(uint32_t index) {
    const DataFile& description = manifest_.files(index);
    const ReadableFile& file = *files_[index];
    // A wrong size, or a header that is not at the start of a safetensors file, is reported
    // elsewhere.
    if (file.size_bytes() != description.size_bytes() || file.size_bytes() < 8) {
      return absl::OkStatus();
    }
    const absl::StatusOr<SafetensorsHeader> header = ReadHeader(file);
    const absl::Status checked = header.ok() ? CompareHeader(index, *header) : header.status();
    if (checked.ok()) return absl::OkStatus();
    if (!absl::IsDataLoss(checked)) return checked;
    Report({description.path(), 0, "", absl::StrCat("header: ", checked.message())});
    return absl::OkStatus();
  }

  static absl::StatusOr<SafetensorsHeader> ReadHeader(const ReadableFile& file) {
    char length[8];
    TESSERA_RETURN_IF_ERROR(file.ReadOriginalAt(0, std::as_writable_bytes(std::span(length))));
    TESSERA_ASSIGN_OR_RETURN(
        const uint64_t bytes,
        SafetensorsHeaderBytes(std::string_view(length, 8), file.size_bytes()));
    std::string text(bytes, '\0');
    TESSERA_RETURN_IF_ERROR(file.ReadOriginalAt(0, std::as_writable_bytes(std::span(text))));
    return ParseSafetensorsHeader(text, file.size_bytes());
  }

  absl::Status CompareHeader(uint32_t index, const SafetensorsHeader& header) const {
    const std::vector<FileMap::Extent>& extents = map_.extents(index);
    std::map<uint64_t, const SafetensorsEntry*> by_offset;
    size_t not_empty = 0;
    for (const SafetensorsEntry& entry : header.entries) {
      if (entry.length_bytes == 0) continue;
      by_offset[entry.file_offset] = &entry;
      ++not_empty;
    }
    if (not_empty != extents.size()) {
      return absl::DataLossError(
          absl::StrCat("expected ", extents.size(), " tensors, found ", not_empty));
    }
    for (const FileMap::Extent& extent : extents) {
      const LogicalTensor& tensor = manifest_.tensors(extent.tensor);
      const Box box = ShardBox(tensor, extent.shard);
      const std::string key = ShardKey(tensor.name(), GlobalShape(tensor), box);
      const auto at = by_offset.find(extent.begin);
      if (at == by_offset.end()) {
        return absl::DataLossError(
            absl::StrCat("nothing at offset ", extent.begin, ", expected ", key));
      }
      const SafetensorsEntry& entry = *at->second;
      if (entry.key != key || entry.dtype != tensor.dtype() || entry.shape != box.shape) {
        return absl::DataLossError(
            absl::StrCat("at offset ", extent.begin, ": expected ", key, " ",
                         DType_Name(tensor.dtype()), " ", ShapeToString(box.shape), ", found ",
                         entry.key, " ", DType_Name(entry.dtype), " ", ShapeToString(entry.shape)));
      }
    }
    return absl::OkStatus();
  }

  void PrepareDigests() {
    {
      const MutexLock lock(&mutex_);
      sums_.resize(manifest_.tensors_size());
    }
    sources_.resize(manifest_.files_size());
    for (int f = 0; f < manifest_.files_size(); ++f) {
      for (const FileMap::Extent& extent : map_.extents(f)) {
        const LogicalTensor& tensor = manifest_.tensors(extent.tensor);
        const Box box = ShardBox(tensor, extent.shard);
        if (box.empty()) continue;
        const size_t element_bytes = DTypeSize(tensor.dtype());
        if (extent.begin % element_bytes != 0 ||
            manifest_.files(f).chunk_bytes() % element_bytes != 0) {
          ReportInFile(f, [&]() -> Damage {
            return {manifest_.files(f).path(), extent.begin, tensor.name(),
                    absl::StrCat("elements of ", element_bytes,
                                 " bytes are not aligned, or checksum chunks of ",
                                 manifest_.files(f).chunk_bytes(), " bytes cut them")};
          });
          continue;
        }
        const Shape shape = GlobalShape(tensor);
        sources_[f].push_back(
            {extent.tensor, extent.begin, extent.end, element_bytes,
             BoxRuns(box, box, std::vector<int64_t>(shape.size(), 0), ContiguousStrides(shape))});
      }
    }
  }

  absl::Status ReadEverything() {
    std::vector<ReadPiece> pieces;
    uint64_t total = 0, largest = 0;
    int workers = options_.io_threads;
    for (int f = 0; f < manifest_.files_size(); ++f) {
      if (files_[f] == nullptr) continue;
      const DataFile& description = manifest_.files(f);
      const uint64_t size = std::min(description.size_bytes(), files_[f]->size_bytes());
      if (description.chunk_bytes() > kMaxChunkBytes && size > kMaxChunkBytes) {
        Report({description.path(), 0, "",
                absl::StrCat("checksum chunks of ", description.chunk_bytes(), " bytes, at most ",
                             kMaxChunkBytes, " can be read")});
        continue;
      }
      const PieceLayout layout =
          LayOutPieces(description.chunk_bytes(), options_.io_threads, kStagingBytes);
      workers = std::min(workers, layout.workers);
      for (uint64_t at = 0; at < size; at += layout.piece_bytes) {
        const uint64_t end = std::min(size, at + layout.piece_bytes);
        pieces.push_back({static_cast<uint32_t>(f), at, end});
        largest = std::max(largest, end - at);
        total += end - at;
      }
    }
    workers = static_cast<int>(std::min<size_t>(workers, pieces.size()));
    std::vector<AlignedBuffer> buffers;
    for (int w = 0; w < workers; ++w) {
      TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(largest));
      buffers.push_back(std::move(buffer));
    }
    return RunTasks(workers, pieces.size(), [&](int worker, size_t i) {
      return VerifyPiece(pieces[i], buffers[worker].data(), total);
    });
  }

  absl::Status VerifyPiece(const ReadPiece& piece, std::byte* buffer, uint64_t total) {
    const DataFile& description = manifest_.files(piece.file_index);
    const absl::Status read =
        files_[piece.file_index]->ReadOriginalAt(piece.begin, {buffer, piece.end - piece.begin});
    if (!read.ok() && !IsDamage(read)) return read;
    if (!read.ok()) {
      ReportInFile(piece.file_index, [&]() -> Damage {
        return {description.path(), piece.begin,
                map_.TensorsIn(piece.file_index, piece.begin, piece.end),
                std::string(read.message())};
      });
      return absl::OkStatus();
    }
    const uint64_t chunk_bytes = description.chunk_bytes();
    for (uint64_t at = piece.begin; at < piece.end; at += chunk_bytes) {
      const uint64_t end = std::min(piece.end, at + chunk_bytes);
      const std::byte* const data = buffer + (at - piece.begin);
      // The rest of a truncated file's last chunk is missing, which was already reported.
      const bool whole = end == std::min<uint64_t>(at + chunk_bytes, description.size_bytes());
      if (whole) CheckChunk(piece.file_index, at / chunk_bytes, {data, end - at});
      if (options_.digests) AddToDigests(piece.file_index, at, end, data);
    }
    const MutexLock lock(&mutex_);
    report_.bytes_read += piece.end - piece.begin;
    if (options_.progress) options_.progress(report_.bytes_read, total);
    return absl::OkStatus();
  }

  void CheckChunk(uint32_t file_index, uint64_t chunk, std::span<const std::byte> data) {
    if (!HasChecksums(manifest_.files(static_cast<int>(file_index)))) return;
    const uint32_t found = Crc32c(data);
    if (found == manifest_.files(file_index).chunk_crc32c(static_cast<int>(chunk))) return;
    ReportInFile(file_index,
                 [&] { return DescribeChecksumError(manifest_, map_, file_index, chunk, found); });
  }

  void AddToDigests(uint32_t file_index, uint64_t begin, uint64_t end, const std::byte* data) {
    const std::vector<DigestSource>& sources = sources_[file_index];
    auto source = std::ranges::upper_bound(sources, begin, {}, &DigestSource::end);
    for (; source != sources.end() && source->begin < end; ++source) {
      const int64_t size = source->element_bytes;
      const uint64_t first_byte = std::max(begin, source->begin);
      const int64_t first = (first_byte - source->begin) / size;
      const int64_t last = (std::min(end, source->end) - source->begin) / size;
      const std::byte* const from = data + (first_byte - begin);
      const LogicalDigest digest = DigestRuns(source->global, first, last, from, size);
      const MutexLock lock(&mutex_);
      sums_[source->tensor] += digest;
    }
  }

  void CompareDigests() {
    const MutexLock lock(&mutex_);
    for (int t = 0; t < manifest_.tensors_size(); ++t) {
      const LogicalTensor& tensor = manifest_.tensors(t);
      if (!tensor.alias_of().empty()) continue;
      if (!tensor.has_digest() && ElementCount(GlobalShape(tensor)) > 0) {
        ++report_.digests_missing;
        continue;
      }
      const LogicalDigest expected = {tensor.digest().lo(), tensor.digest().hi()};
      if (sums_[t] == expected) {
        ++report_.digests_verified;
        continue;
      }
      report_.damage.push_back(
          {std::string(kManifestFileName), 0, tensor.name(),
           absl::StrFormat("logical digest: expected %016x%016x, found %016x%016x", expected.hi,
                           expected.lo, sums_[t].hi, sums_[t].lo)});
    }
  }

  Storage& storage_;
  const std::string directory_;
  const Manifest& manifest_;
  const FileMap map_;
  const VerifyOptions& options_;
  std::vector<std::unique_ptr<ReadableFile>> files_;  // null where a file is missing
  std::vector<std::vector<DigestSource>> sources_;    // by file, ascending
  Mutex mutex_;
  std::vector<LogicalDigest> sums_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> damage_per_file_ ABSL_GUARDED_BY(mutex_);
  VerifyReport report_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<VerifyReport> VerifyCheckpoint(Storage& storage, std::string_view checkpoint_dir,
                                              const VerifyOptions& options) {
  if (options.io_threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("io_threads must be at least 1, not ", options.io_threads));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto finish = [&](VerifyReport report) {
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
  };
  const ReadLock reading(storage, checkpoint_dir);
  const absl::StatusOr<Manifest> manifest = ReadManifest(storage, checkpoint_dir);
  if (absl::IsDataLoss(manifest.status())) {
    VerifyReport report;
    report.damage.push_back(
        {std::string(kManifestFileName), 0, "", std::string(manifest.status().message())});
    return finish(std::move(report));
  }
  TESSERA_RETURN_IF_ERROR(manifest.status());
  Verifier verifier(storage, checkpoint_dir, *manifest, options);
  TESSERA_RETURN_IF_ERROR(verifier.Run());
  return finish(std::move(verifier).Finish());
}

}  // namespace tessera::ckpt
