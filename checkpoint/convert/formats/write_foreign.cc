#include "checkpoint/convert/formats/write_foreign.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/convert/dcp/read.h"
#include "checkpoint/convert/dcp/write.h"
#include "checkpoint/convert/formats/open_foreign.h"
#include "checkpoint/convert/hugging_face/read.h"
#include "checkpoint/convert/hugging_face/write.h"
#include "checkpoint/convert/llmc/read.h"
#include "checkpoint/convert/llmc/write.h"
#include "checkpoint/convert/megatron/parameters.h"
#include "checkpoint/convert/megatron/write.h"
#include "checkpoint/convert/torch/read.h"
#include "checkpoint/convert/torch/write.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/storage/by_name/open_storage.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {
namespace {

struct WrittenFormat {
  std::string_view name;
  absl::StatusOr<std::vector<OutputFile>> (*plan)(const Manifest& manifest,
                                                  const WriteForeignOptions& options);
};

constexpr WrittenFormat kFormats[] = {
    {kHuggingFace,
     [](const Manifest& manifest, const WriteForeignOptions& options) {
       return PlanHuggingFace(manifest, *options.rules,
                              {.dtype = options.dtype, .max_file_bytes = options.max_file_bytes});
     }},
    {kLlmc,
     [](const Manifest& manifest, const WriteForeignOptions& options) {
       return PlanLlmc(manifest, *options.rules,
                       {.dtype = options.dtype, .weights_only = options.weights_only});
     }},
    {kMegatron,
     [](const Manifest& manifest, const WriteForeignOptions& options) {
       return PlanMegatron(manifest, *options.rules,
                           {.dtype = options.dtype,
                            .weights_only = options.weights_only,
                            .max_file_bytes = options.max_file_bytes});
     }},
    {kTorch,
     [](const Manifest& manifest,
        const WriteForeignOptions& options) -> absl::StatusOr<std::vector<OutputFile>> {
       return PlanTorch(manifest, {.dtype = options.dtype, .weights_only = options.weights_only});
     }},
    {kDcp,
     [](const Manifest& manifest,
        const WriteForeignOptions& options) -> absl::StatusOr<std::vector<OutputFile>> {
       return PlanDcp(manifest,
                      {.tensors = {.dtype = options.dtype, .weights_only = options.weights_only},
                       .max_file_bytes = options.max_file_bytes});
     }},
};

// A folder and the one that it is in.
struct Place {
  std::unique_ptr<Storage> storage;  // the folder above
  std::string above;
  std::string name;
};

absl::StatusOr<Place> FindPlace(const std::string& folder) {
  const std::optional<std::string> local = LocalPathOfName(folder);
  if (!local.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": other formats are written to folders of this machine only"));
  }
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(*local, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "a/b/"
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    return absl::AlreadyExistsError(
        absl::StrCat(folder, " exists, and nothing is ever overwritten"));
  }
  Place place = {.above = path.parent_path().string(), .name = path.filename().string()};
  TESSERA_ASSIGN_OR_RETURN(place.storage, OpenStorage(place.above, {.create_root = true}));
  return place;
}

// Reads back what was written, as any other program would find it.
absl::Status CheckWritten(const std::string& folder, const DigestsByName& written,
                          const WriteForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ForeignStorage> storage,
                           OpenForeign(folder, {.format = options.format, .rules = options.rules}));
  TESSERA_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(*storage, ""));
  TESSERA_ASSIGN_OR_RETURN(const DigestsByName found,
                           ReadDigests({*storage, "", manifest}, {.io_threads = options.io_threads,
                                                                  .progress = options.progress}));
  for (const auto& [name, digest] : written) {
    const auto at = found.find(name);
    if (at != found.end() && at->second == digest) continue;
    return absl::DataLossError(absl::StrCat(
        folder, ": tensor ", name,
        at == found.end() ? ": is not in what was written" : ": reads otherwise than written"));
  }
  return absl::OkStatus();
}

// The number of tensors that have a digest of the same elements in the source. DataLoss where it
// differs.
absl::StatusOr<int64_t> CompareWithSource(const OutputSource& source,
                                          const std::vector<OutputFile>& files,
                                          const DigestsByName& written) {
  std::map<std::string, const LogicalTensor*> saved;
  for (const LogicalTensor& tensor : source.manifest.tensors()) saved[tensor.name()] = &tensor;
  int64_t compared = 0;
  for (const OutputFile& file : files) {
    for (const OutputTensor& tensor : file.tensors) {
      const auto at = saved.find(tensor.source_name);
      if (at == saved.end() || !at->second->has_digest() || at->second->dtype() != tensor.dtype) {
        continue;
      }
      const LogicalDigest expected = {at->second->digest().lo(), at->second->digest().hi()};
      if (written.at(tensor.name) != expected) {
        return absl::DataLossError(absl::StrCat(source.storage.Describe(source.directory),
                                                ": tensor ", tensor.source_name,
                                                ": its contents do not match its digest"));
      }
      ++compared;
    }
  }
  return compared;
}

absl::StatusOr<WriteForeignReport> WriteAndCheck(const OutputSource& source,
                                                 const std::vector<OutputFile>& files,
                                                 const Place& place, const std::string& temporary,
                                                 const WriteForeignOptions& options) {
  TESSERA_RETURN_IF_ERROR(place.storage->MakeDirectory(temporary));
  const OutputOptions output = {.io_threads = options.io_threads, .progress = options.progress};
  TESSERA_ASSIGN_OR_RETURN(const DigestsByName written,
                           WriteOutput(source, files, *place.storage, temporary, output));
  WriteForeignReport report = {.tensors = static_cast<int64_t>(written.size())};
  TESSERA_ASSIGN_OR_RETURN(report.digests_compared, CompareWithSource(source, files, written));
  TESSERA_RETURN_IF_ERROR(CheckWritten(JoinPath(place.above, temporary), written, options));
  TESSERA_RETURN_IF_ERROR(place.storage->Rename(temporary, place.name));
  TESSERA_RETURN_IF_ERROR(place.storage->SyncDirectory(""));
  for (const OutputFile& file : files) {
    report.files.push_back(file.name);
    report.bytes += file.size_bytes;
  }
  return report;
}

}  // namespace

std::vector<std::string> WrittenFormatNames() {
  std::vector<std::string> names;
  for (const WrittenFormat& format : kFormats) names.emplace_back(format.name);
  return names;
}

absl::StatusOr<WriteForeignReport> WriteForeign(const OutputSource& source,
                                                const std::string& folder,
                                                const WriteForeignOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto format = std::ranges::find(kFormats, options.format, &WrittenFormat::name);
  if (format == std::end(kFormats)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown format \"", options.format,
                                                   "\"; written are ",
                                                   absl::StrJoin(WrittenFormatNames(), ", ")));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<OutputFile> files,
                           format->plan(source.manifest, options));
  TESSERA_ASSIGN_OR_RETURN(const Place place, FindPlace(folder));
  const std::string temporary =
      absl::StrFormat("%s.unfinished-%08x", place.name, std::random_device()());
  absl::StatusOr<WriteForeignReport> report =
      WriteAndCheck(source, files, place, temporary, options);
  if (!report.ok()) {
    place.storage->DeleteTree(temporary).IgnoreError();
    return report.status();
  }
  report->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace tessera::ckpt::convert
