#include "checkpoint/scan/verify.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/threads.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/elements/digest_elements.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/internal/read_lock.h"

namespace tessera::ckpt {

TensorDigests::TensorDigests(const Manifest& manifest, const FileMap& map, int workers)
    : boxes_(manifest.files_size()),
      sums_(workers, std::vector<LogicalDigest>(manifest.tensors_size())) {
  for (uint32_t f = 0; f < boxes_.size(); ++f) {
    for (const FileMap::Extent& extent : map.extents(f)) {
      const LogicalTensor& tensor = manifest.tensors(extent.tensor);
      const Box box = ShardBox(tensor, extent.shard);
      if (box.empty()) continue;
      if (std::optional<Damage> damage = FindCutElements(manifest, f, extent.begin, tensor)) {
        cut_.emplace_back(f, *std::move(damage));
        continue;
      }
      const Shape shape = GlobalShape(tensor);
      boxes_[f].push_back(
          {extent.begin, extent.end, extent.tensor, ElementSize(FromProto(tensor.dtype())),
           BoxRuns(box, box, std::vector<int64_t>(shape.size(), 0), ContiguousStrides(shape))});
    }
  }
}

void TensorDigests::Add(int worker, const FilePiece& chunk, const std::byte* data) {
  DigestStored(boxes_[chunk.file_index], chunk.begin, chunk.end, data, sums_[worker]);
}

LogicalDigest TensorDigests::Sum(int tensor) const {
  LogicalDigest sum;
  for (const std::vector<LogicalDigest>& sums : sums_) sum += sums[tensor];
  return sum;
}

namespace {

class Verifier {
 public:
  Verifier(Storage& storage, std::string_view directory, const Manifest& manifest,
           const VerifyOptions& options)
      : manifest_(manifest),
        options_(options),
        scanner_(storage, directory, manifest,
                 {.io_threads = options.io_threads,
                  .read_original = true,
                  .on_damage = [this](Damage damage) { Report(std::move(damage)); },
                  .is_cancelled = options.is_cancelled}) {}

  absl::Status Run() {
    for (const LogicalTensor& tensor : manifest_.tensors()) {
      if (!tensor.alias_of().empty()) continue;
      const absl::Status covered = ValidateCoverage(tensor);
      if (covered.ok()) continue;
      Report({std::string(kManifestFileName), 0, tensor.name(), std::string(covered.message())});
    }
    TESSERA_RETURN_IF_ERROR(scanner_.OpenAll());
    const size_t files = manifest_.files_size();
    TESSERA_RETURN_IF_ERROR(RunTasks(std::min<int>(options_.io_threads, 1 + files / 16), files,
                                     [this](int, size_t f) { return CheckHeader(f); }));
    return options_.contents ? ReadEverything() : absl::OkStatus();
  }

  VerifyReport Finish() && {
    std::ranges::stable_sort(report_.damage, {}, [](const Damage& d) {
      return std::pair(std::string_view(d.file), d.offset_bytes);
    });
    return std::move(report_);
  }

 private:
  void Report(Damage damage) {
    const MutexLock lock(&reporting_);
    report_.damage.push_back(std::move(damage));
  }

  // The file's own header must agree with the manifest, since other tools read it.
  absl::Status CheckHeader(uint32_t index) {
    const DataFile& description = manifest_.files(index);
    const ReadableFile* const file = scanner_.file(index);
    // A missing file and a wrong size were reported. A file without checksums, or with a header
    // that is not at its start, does not have this format.
    if (file == nullptr || !HasChecksums(description) ||
        file->size_bytes() != description.size_bytes() || file->size_bytes() < 8) {
      return absl::OkStatus();
    }
    const absl::StatusOr<SafetensorsHeader> header = ReadHeader(*file);
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
    const std::vector<FileMap::Extent>& extents = scanner_.map().extents(index);
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
      if (entry.key != key || entry.dtype != FromProto(tensor.dtype()) ||
          entry.shape != box.shape) {
        return absl::DataLossError(
            absl::StrCat("at offset ", extent.begin, ": expected ", key, " ",
                         DTypeProto_Name(tensor.dtype()), " ", ShapeToString(box.shape), ", found ",
                         entry.key, " ", ProtoName(entry.dtype), " ", ShapeToString(entry.shape)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadEverything() {
    std::optional<TensorDigests> digests;
    if (options_.digests) {
      digests.emplace(manifest_, scanner_.map(), options_.io_threads);
      for (const auto& [file, damage] : digests->cut()) {
        scanner_.ReportDamage(file, [&damage = damage] { return damage; });
      }
    }
    const std::vector<FilePiece> ranges = scanner_.WholeFiles();
    uint64_t total = 0;
    for (const FilePiece& range : ranges) total += range.size();
    Mutex mutex;
    TESSERA_RETURN_IF_ERROR(
        scanner_.Run(ranges, [&](int worker, const FilePiece& chunk, const std::byte* data) {
          if (digests.has_value()) digests->Add(worker, chunk, data);
          const MutexLock lock(&mutex);
          report_.bytes_read += chunk.size();
          if (options_.progress) options_.progress(report_.bytes_read, total);
          return absl::OkStatus();
        }));
    if (digests.has_value()) CompareDigests(*digests);
    return absl::OkStatus();
  }

  void CompareDigests(const TensorDigests& digests) {
    for (int t = 0; t < manifest_.tensors_size(); ++t) {
      const LogicalTensor& tensor = manifest_.tensors(t);
      if (!tensor.alias_of().empty()) continue;
      if (!tensor.has_digest() && ElementCount(GlobalShape(tensor)) > 0) {
        ++report_.digests_missing;
        continue;
      }
      const LogicalDigest expected = FromProto(tensor.digest());
      const LogicalDigest found = digests.Sum(t);
      if (found == expected) {
        ++report_.digests_verified;
        continue;
      }
      Report({std::string(kManifestFileName), 0, tensor.name(), DescribeMismatch(expected, found)});
    }
  }

  const Manifest& manifest_;
  const VerifyOptions& options_;
  Mutex reporting_;
  VerifyReport report_;
  Scanner scanner_;
};

}  // namespace

absl::StatusOr<VerifyReport> VerifyCheckpoint(Storage& storage, std::string_view checkpoint_dir,
                                              const VerifyOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckIoThreads(options.io_threads));
  const ReadLock reading(storage, checkpoint_dir);
  const absl::StatusOr<Manifest> manifest = ReadManifest(storage, checkpoint_dir);
  if (absl::IsDataLoss(manifest.status())) {
    VerifyReport report;
    report.damage.push_back(
        {std::string(kManifestFileName), 0, "", std::string(manifest.status().message())});
    return report;
  }
  TESSERA_RETURN_IF_ERROR(manifest.status());
  return VerifyFiles(storage, checkpoint_dir, *manifest, options);
}

absl::StatusOr<VerifyReport> VerifyFiles(Storage& storage, std::string_view checkpoint_dir,
                                         const Manifest& manifest, const VerifyOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckIoThreads(options.io_threads));
  const absl::Duration start = SteadyNow();
  Verifier verifier(storage, checkpoint_dir, manifest, options);
  TESSERA_RETURN_IF_ERROR(verifier.Run());
  VerifyReport report = std::move(verifier).Finish();
  report.duration = SteadyNow() - start;
  return report;
}

absl::Status VerifyParts(Storage& storage, std::string_view checkpoint_dir,
                         const Manifest& manifest, const std::vector<DamagedPart>& parts) {
  for (int f = 0; f < manifest.files_size(); ++f) {
    const DataFile& description = manifest.files(f);
    const uint64_t chunk_bytes = description.chunk_bytes();
    if (!HasChecksums(description) || chunk_bytes > kMaxChunkBytes) continue;
    std::vector<FilePiece> ranges;
    for (const DamagedPart& part : parts) {
      const uint64_t end = std::min<uint64_t>(part.end_bytes, description.size_bytes());
      if (part.file != description.path() || part.begin_bytes >= end) continue;
      ranges.push_back({static_cast<uint32_t>(f), RoundDown(part.begin_bytes, chunk_bytes),
                        std::min<uint64_t>(RoundUp(end, chunk_bytes), description.size_bytes())});
    }
    if (ranges.empty()) continue;
    Scanner scanner(storage, checkpoint_dir, manifest,
                    {.io_threads = 1, .staging_bytes = chunk_bytes, .read_original = true});
    TESSERA_RETURN_IF_ERROR(scanner.Open({&ranges.front().file_index, 1}));
    TESSERA_RETURN_IF_ERROR(scanner.Run(ranges, OnlyCheck));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> HasSavedBytes(Storage& storage, std::string_view checkpoint_dir,
                                   const Manifest& manifest, uint32_t file_index,
                                   ScanBuffers& buffers) {
  const DataFile& description = manifest.files(file_index);
  {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file,
                             storage.Open(JoinPath(checkpoint_dir, description.path())));
    if (file->size_bytes() != description.size_bytes()) return false;
  }
  // A disk that returns no bytes and one that returns wrong ones both end a scan with DataLoss, so
  // that the checksums are compared here.
  Scanner scanner(storage, checkpoint_dir, manifest, {.verify_checksums = false});
  TESSERA_RETURN_IF_ERROR(scanner.Open({&file_index, 1}));
  std::atomic<bool> differs = false;
  const auto compare = [&](int, const FilePiece& chunk, const std::byte* data) -> absl::Status {
    if (!HasChecksums(description)) return absl::OkStatus();
    const auto expected = description.chunk_crc32c(chunk.begin / description.chunk_bytes());
    uint32_t found = Crc32c({data, chunk.size()});
    std::vector<std::byte> reread;
    for (int again = 0; again < kChunkRereads && found != expected; ++again) {
      reread.resize(chunk.size());
      TESSERA_RETURN_IF_ERROR(scanner.file(file_index)->ReadAt(chunk.begin, reread));
      found = Crc32c(reread);
    }
    if (found == expected) return absl::OkStatus();
    differs = true;
    return absl::DataLossError("a wrong checksum");
  };
  const absl::Status read = scanner.Run(scanner.WholeFiles(), compare, &buffers);
  if (differs) return false;
  TESSERA_RETURN_IF_ERROR(read);
  return true;
}

StagedFiles DeleteDamagedStagedFiles(Storage& staging, std::string_view checkpoint_dir,
                                     const Manifest& manifest,
                                     std::span<const uint32_t> file_indices) {
  StagedFiles staged;
  ScanBuffers buffers;
  for (const uint32_t f : file_indices) {
    const absl::StatusOr<bool> intact =
        HasSavedBytes(staging, checkpoint_dir, manifest, f, buffers);
    const DataFile& file = manifest.files(f);
    absl::Status known = intact.status();
    if (intact.ok() && *intact) staged.intact_bytes += file.size_bytes();
    if (intact.ok() && !*intact) {
      known = staging.Delete(JoinPath(checkpoint_dir, file.path()));
      if (known.ok()) ++staged.deleted_files;
    }
    if (known.ok() || absl::IsNotFound(known)) continue;
    ++staged.unknown_files;
    staged.first_unknown.Update(known);
  }
  return staged;
}

}  // namespace tessera::ckpt
