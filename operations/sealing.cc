#include "operations/sealing.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/errors.h"
#include "base/mutex.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/include/manifest.h"
#include "convert/source_place.h"

namespace tessera::ckpt::convert {
namespace {

std::string SealPath(const std::string& file) {
  return file.empty() ? std::string(kSealFileName) : absl::StrCat(file, ".", kSealFileName);
}

bool IsSealName(std::string_view name) {
  return name.ends_with(kSealFileName) || name.ends_with(absl::StrCat(kSealFileName, ".sig"));
}

// A file need not be there for its seal to be found.
absl::StatusOr<SourcePlace> PlaceOfSeal(std::string_view name, const OpenStorageOptions& stores) {
  const std::optional<std::string> local = LocalPathOfName(name);
  std::error_code error;
  return local.has_value() && std::filesystem::is_regular_file(SealPath(*local), error)
             ? PlaceOfLocalFile(*local)
             : FindPlace(name, stores);
}

// Adds all files in and below a directory except seals.
absl::Status AddFilesBelow(Storage& storage, const std::string& directory,
                           std::set<std::string>& files) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(directory));
  for (std::string name : names) {
    const bool is_directory = name.ends_with('/');
    if (is_directory) name.pop_back();
    std::string path = JoinPath(directory, name);
    if (!is_directory) {
      if (!IsSealName(name)) files.insert(std::move(path));
    } else if (!storage.IsLink(path)) {
      TESSERA_RETURN_IF_ERROR(AddFilesBelow(storage, path, files));
    }
  }
  return absl::OkStatus();
}

void DigestChunk(const std::byte* data, size_t size, unsigned char* sha256) {
  EVP_Digest(data, size, sha256, nullptr, EVP_sha256(), nullptr);
}

absl::Status AddChecksums(Storage& storage, const IoOptions& options, Seal& seal) {
  struct Chunks {
    uint32_t* crc32c;
    unsigned char* sha256;
  };
  Manifest described;
  for (const SealedFile& file : seal.files()) *described.add_files() = file.file();
  std::vector<Chunks> chunks;
  for (SealedFile& file : *seal.mutable_files()) {
    const uint64_t count = CeilDivide(file.file().size_bytes(), file.file().chunk_bytes());
    auto& crc32c = *file.mutable_file()->mutable_chunk_crc32c();
    crc32c.Resize(static_cast<int>(count), 0);
    file.mutable_chunk_sha256()->resize(count * kSha256Bytes);
    chunks.push_back({crc32c.mutable_data(),
                      reinterpret_cast<unsigned char*>(file.mutable_chunk_sha256()->data())});
  }
  ByteProgress progress(options.progress, BytesOfFiles(described));
  return ScanFiles(storage, "", described, {.io_threads = options.io_threads},
                   [&](int, const FilePiece& chunk, const std::byte* data) {
                     const uint64_t index = chunk.begin / kSealChunkBytes;
                     const Chunks& file = chunks[chunk.file_index];
                     file.crc32c[index] = Crc32c(std::span(data, chunk.size()));
                     DigestChunk(data, chunk.size(), file.sha256 + index * kSha256Bytes);
                     progress.Add(chunk.size());
                     return absl::OkStatus();
                   });
}

absl::Status AddFiles(Storage& storage, const std::set<std::string>& names, Seal& seal) {
  for (const std::string& name : names) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, storage.Open(name));
    DataFile& described = *seal.add_files()->mutable_file();
    described.set_path(name);
    described.set_size_bytes(file->size_bytes());
    described.set_chunk_bytes(kSealChunkBytes);
  }
  return absl::OkStatus();
}

void AddTensors(const Manifest& manifest, const DigestsByName& digests,
                std::vector<ForeignStorage::Extent> extents, Seal& seal) {
  std::map<std::string_view, uint32_t> files;
  for (int f = 0; f < seal.files_size(); ++f) files[seal.files(f).file().path()] = f;
  std::map<std::string_view, SealedTensor*> tensors;
  for (const LogicalTensor& tensor : manifest.tensors()) {
    SealedTensor& sealed = *seal.add_tensors();
    sealed.set_name(tensor.name());
    sealed.set_role(tensor.role());
    sealed.set_dtype(tensor.dtype());
    *sealed.mutable_global_shape() = tensor.global_shape();
    sealed.set_alias_of(tensor.alias_of());
    if (!tensor.alias_of().empty() || ElementCount(GlobalShape(tensor)) == 0) continue;
    *sealed.mutable_digest() = ToProto(digests.at(tensor.name()));
    tensors[sealed.name()] = &sealed;
  }
  std::ranges::sort(extents, {}, [](const ForeignStorage::Extent& extent) {
    return std::tuple(std::string_view(extent.tensor), std::string_view(extent.file),
                      extent.bytes.begin, extent.bytes.end);
  });
  for (const ForeignStorage::Extent& extent : extents) {
    SealedTensor& tensor = *tensors.at(extent.tensor);
    const uint32_t file = files.at(extent.file);
    const int last = tensor.file_index_size() - 1;
    if (last >= 0 && tensor.file_index(last) == file && tensor.end(last) >= extent.bytes.begin) {
      tensor.set_end(last, std::max(tensor.end(last), extent.bytes.end));
      continue;
    }
    tensor.add_file_index(file);
    tensor.add_begin(extent.bytes.begin);
    tensor.add_end(extent.bytes.end);
  }
}

absl::Status AlreadyThere(const Storage& storage, const std::string& path) {
  return AlreadyExists(storage.Describe(path), " exists; --overwrite replaces it");
}

// Checks that a seal can be written there, before much is read.
absl::Status CheckPlaceOfSeal(const FoundSeal& place, bool is_there, bool overwrite) {
  if (is_there && !overwrite) return AlreadyThere(*place.folder, place.path);
  const std::optional<std::string> local = place.folder->LocalPath(place.path);
  return local.has_value() ? FileReplacement::Create(*local).status() : absl::OkStatus();
}

// Replaces a seal, and takes away the signature of the one before.
absl::Status ReplaceSeal(const FoundSeal& place, std::string_view bytes, bool* removed_signature) {
  const absl::Status removed = place.folder->Delete(absl::StrCat(place.path, ".sig"));
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  *removed_signature = removed.ok();
  return PutBeside(*place.folder, place.path, bytes, /*overwrite=*/true);
}

}  // namespace

absl::Status PutBeside(Storage& storage, const std::string& path, std::string_view bytes,
                       bool overwrite) {
  const std::optional<std::string> local = storage.LocalPath(path);
  if (!overwrite) {
    const absl::Status written = storage.Write(path, bytes, {}).status();
    return absl::IsAlreadyExists(written) ? AlreadyThere(storage, path) : written;
  }
  if (local.has_value()) return ReplaceFile(*local, bytes);
  TESSERA_RETURN_IF_ERROR(WriteAll(storage, path, bytes));
  return storage.SyncDirectory(FolderOf(path));
}

absl::StatusOr<std::optional<FoundSeal>> FindSeal(std::string_view name,
                                                  const OpenStorageOptions& stores) {
  absl::StatusOr<SourcePlace> place = PlaceOfSeal(name, stores);
  if (absl::IsNotFound(place.status()) || absl::IsInvalidArgument(place.status())) {
    return std::nullopt;
  }
  TESSERA_RETURN_IF_ERROR(place.status());
  FoundSeal found = {.folder = std::move(place->storage),
                     .path = SealPath(place->file),
                     .file = std::move(place->file),
                     .seal = Seal()};
  absl::StatusOr<std::string> bytes = ReadAll(*found.folder, found.path, kMaxSealBytes);
  if (absl::IsNotFound(bytes.status())) return std::nullopt;
  if (bytes.ok()) found.bytes = *std::move(bytes);
  found.seal = bytes.ok() ? DecodeSeal(found.bytes) : bytes.status();
  const absl::Status& status = found.seal.status();
  const bool is_damage = absl::IsResourceExhausted(status) || absl::IsInvalidArgument(status);
  if (!status.ok()) {
    found.seal = absl::Status(is_damage ? absl::StatusCode::kDataLoss : status.code(),
                              absl::StrCat(found.Describe(), ": ", status.message()));
  }
  return found;
}

absl::StatusOr<WriteSealReport> WriteSeal(std::string_view name, const Checkpoint& checkpoint,
                                          const ForeignStorage& files,
                                          const WriteSealOptions& options) {
  const absl::Duration start = SteadyNow();
  TESSERA_ASSIGN_OR_RETURN(const std::optional<FoundSeal> old, FindSeal(name, options.stores));
  TESSERA_ASSIGN_OR_RETURN(SourcePlace source, FindPlace(name, options.stores));
  const FoundSeal place = {.folder = std::move(source.storage),
                           .path = SealPath(source.file),
                           .file = source.file,
                           .seal = Seal()};
  TESSERA_RETURN_IF_ERROR(CheckPlaceOfSeal(place, old.has_value(), options.overwrite));
  if (!files.mismatch().empty()) return DataLoss(files.mismatch());
  TESSERA_ASSIGN_OR_RETURN(const DigestsByName digests, ReadDigests(checkpoint, options.io));
  for (const absl::Status& damaged : files.CheckOtherRecords()) return damaged;
  Seal seal;
  seal.set_format(files.format());
  const std::vector<ForeignStorage::Extent> extents = files.Extents();
  std::set<std::string> names;
  for (const ForeignStorage::Extent& extent : extents) names.insert(extent.file);
  if (place.file.empty()) {
    TESSERA_RETURN_IF_ERROR(AddFilesBelow(*place.folder, "", names));
  } else {
    names.insert(place.file);
  }
  TESSERA_RETURN_IF_ERROR(AddFiles(*place.folder, names, seal));
  AddTensors(checkpoint.manifest(), digests, extents, seal);
  TESSERA_RETURN_IF_ERROR(AddChecksums(*place.folder, options.io, seal));
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, EncodeSeal(seal));
  WriteSealReport report = {.path = place.Describe(), .files = seal.files_size()};
  if (!old.has_value()) {
    TESSERA_RETURN_IF_ERROR(PutBeside(*place.folder, place.path, bytes, /*overwrite=*/false));
  } else if (bytes != old->bytes) {
    TESSERA_RETURN_IF_ERROR(ReplaceSeal(place, bytes, &report.removed_signature));
  }
  for (const SealedFile& file : seal.files()) report.bytes += file.file().size_bytes();
  for (const SealedTensor& tensor : seal.tensors()) report.tensors += tensor.has_digest();
  report.duration = SteadyNow() - start;
  return report;
}

absl::StatusOr<VerifyReport> VerifySealed(const FoundSeal& found, const VerifyOptions& options) {
  const absl::Duration start = SteadyNow();
  TESSERA_RETURN_IF_ERROR(CheckIoThreads(options.io_threads));
  const Seal& seal = *found.seal;
  const Manifest manifest = ToScannedManifest(seal);
  const FileMap map(manifest);
  const uint64_t total = BytesOfFiles(manifest);
  VerifyReport report;
  Mutex mutex;
  const ScanOptions scan = {
      .io_threads = options.io_threads, .read_original = true, .on_damage = [&](Damage damage) {
        const MutexLock lock(&mutex);
        report.damage.push_back(std::move(damage));
      }};
  const ChunkFunction check_chunk = [&](int, const FilePiece& chunk, const std::byte* data) {
    const DataFile& file = manifest.files(static_cast<int>(chunk.file_index));
    const auto index = static_cast<int>(chunk.begin / file.chunk_bytes());
    const uint64_t end = std::min<uint64_t>(chunk.begin + file.chunk_bytes(), file.size_bytes());
    unsigned char sha256[kSha256Bytes];
    DigestChunk(data, chunk.size(), sha256);
    const std::string& expected = seal.files(static_cast<int>(chunk.file_index)).chunk_sha256();
    // A wrong CRC-32C was reported, as was the end of a file that was cut short.
    const bool differs =
        chunk.end == end &&
        std::memcmp(sha256, expected.data() + index * kSha256Bytes, kSha256Bytes) != 0 &&
        Crc32c(std::span(data, chunk.size())) == file.chunk_crc32c(index);
    const MutexLock lock(&mutex);
    if (differs) {
      report.damage.push_back(
          {file.path(), chunk.begin, map.TensorsIn(chunk.file_index, chunk.begin, chunk.end),
           absl::StrCat("SHA-256 of bytes [", chunk.begin, ", ", chunk.end,
                        ") is another one, with the same CRC-32C: they were forged")});
    }
    report.bytes_read += chunk.size();
    if (options.progress) options.progress(report.bytes_read, total);
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(
      ScanFiles(*found.folder, "", manifest, scan, options.contents ? check_chunk : nullptr));
  if (found.file.empty()) {
    std::set<std::string> files;
    TESSERA_RETURN_IF_ERROR(AddFilesBelow(*found.folder, "", files));
    for (const SealedFile& file : seal.files()) files.erase(file.file().path());
    for (const std::string& file : files) {
      report.damage.push_back({file, 0, "", "not in the seal: this file was added afterwards"});
    }
  }
  std::ranges::stable_sort(report.damage, {}, [](const Damage& damage) {
    return std::pair(std::string_view(damage.file), damage.offset_bytes);
  });
  report.duration = SteadyNow() - start;
  return report;
}

}  // namespace tessera::ckpt::convert
