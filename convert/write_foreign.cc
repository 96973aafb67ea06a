#include "convert/write_foreign.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/include/open_storage.h"
#include "checkpoint/include/storage.h"
#include "convert/core/models.h"
#include "convert/core/read_digests.h"
#include "convert/dcp/read.h"
#include "convert/dcp/write.h"
#include "convert/hugging_face/hugging_face.h"
#include "convert/llmc/llmc.h"
#include "convert/local_folder.h"
#include "convert/megatron/megatron.h"
#include "convert/open_foreign.h"
#include "convert/torch/read.h"
#include "convert/torch/write.h"
#include "convert/unpublished_folder.h"

namespace tessera::ckpt::convert {
namespace {

// The order of the model's modules; empty where the model is not known.
std::vector<std::string> ModuleOrder(const Manifest& manifest) {
  if (manifest.model().text().empty()) return {};
  const absl::StatusOr<std::string> config = WriteHuggingFaceConfig(manifest.model(), DType::kF32);
  if (!config.ok()) return {};
  absl::StatusOr<HuggingFaceDescription> description =
      ReadHuggingFaceConfig(*config, manifest.tensors_size());
  return description.ok() ? std::move(description->order) : std::vector<std::string>();
}

// A format that is written.
struct WrittenFormat {
  std::string_view name;
  absl::StatusOr<std::vector<OutputFile>> (*plan)(const Manifest& manifest,
                                                  const PlanOptions& options);
};

constexpr WrittenFormat kWrittenFormats[] = {
    {kHuggingFace, PlanHuggingFace},
    {kLlmc, PlanLlmc},
    {kMegatron, PlanMegatron},
    {kTorch,
     [](const Manifest& manifest,
        const PlanOptions& options) -> absl::StatusOr<std::vector<OutputFile>> {
       return PlanTorch(manifest, {.dtype = options.dtype,
                                   .weights_only = options.weights_only,
                                   .module_order = ModuleOrder(manifest)});
     }},
    {kDcp,
     [](const Manifest& manifest,
        const PlanOptions& options) -> absl::StatusOr<std::vector<OutputFile>> {
       return PlanDcp(manifest,
                      {.tensors = {.dtype = options.dtype, .weights_only = options.weights_only},
                       .max_file_bytes = options.max_file_bytes});
     }},
};

// Keeps two writers to one place of an object store apart.
constexpr std::string_view kUnfinished = "unfinished";

absl::Status Exists(const std::string& folder) {
  return absl::AlreadyExistsError(absl::StrCat(folder, " exists, and nothing is ever overwritten"));
}

absl::Status ExistsUnfinished(const std::string& folder) {
  return absl::AlreadyExistsError(absl::StrCat(
      folder, " has an object \"", std::string(kUnfinished),
      "\": another conversion is writing there, or was killed; where none is, delete all objects "
      "below ",
      folder, "/ (for example: aws s3 rm --recursive) and try again"));
}

// Reads back what was written, as any other program would find it.
absl::Status CheckWritten(std::shared_ptr<Storage> folder, const DigestsByName& written,
                          const WriteForeignOptions& options) {
  const std::string place = folder->Describe("");
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ForeignStorage> storage,
                           OpenForeignFolder(std::move(folder), {.format = options.format}));
  TESSERA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(*storage, ""));
  TESSERA_ASSIGN_OR_RETURN(
      const DigestsByName found,
      ReadDigests(checkpoint, {.io_threads = options.io_threads, .progress = options.progress}));
  for (const auto& [name, digest] : written) {
    const auto at = found.find(name);
    if (at != found.end() && at->second == digest) continue;
    return absl::DataLossError(absl::StrCat(
        place, ": tensor ", name,
        at == found.end() ? ": is not in what was written" : ": reads otherwise than written"));
  }
  return absl::OkStatus();
}

// The number of tensors that have a digest of the same elements in the source. DataLoss where it
// differs.
absl::StatusOr<int64_t> CompareWithSource(const Checkpoint& source,
                                          const std::vector<OutputFile>& files,
                                          const DigestsByName& written) {
  std::map<std::string, const LogicalTensor*> saved;
  for (const LogicalTensor& tensor : source.manifest().tensors()) saved[tensor.name()] = &tensor;
  std::set<std::string_view> compared;  // a tensor may be written in several parts
  for (const OutputFile& file : files) {
    for (const OutputTensor& tensor : file.tensors) {
      const auto at = saved.find(tensor.source_name);
      if (at == saved.end() || !at->second->has_digest() ||
          FromProto(at->second->dtype()) != tensor.dtype) {
        continue;
      }
      const LogicalDigest expected = {at->second->digest().lo(), at->second->digest().hi()};
      if (written.at(tensor.name) != expected) {
        return absl::DataLossError(absl::StrCat(source.storage().Describe(source.directory()),
                                                ": tensor ", tensor.source_name,
                                                ": its contents do not match its digest"));
      }
      compared.insert(tensor.name);
    }
  }
  return static_cast<int64_t>(compared.size());
}

absl::StatusOr<WriteForeignReport> WriteAndCheck(const Checkpoint& source,
                                                 const std::vector<OutputFile>& files,
                                                 LocalFolder& place,
                                                 const WriteForeignOptions& options) {
  const OutputOptions output = {.io_threads = options.io_threads, .progress = options.progress};
  TESSERA_ASSIGN_OR_RETURN(const DigestsByName written,
                           WriteOutput(source, files, place.storage(), place.temporary(), output));
  WriteForeignReport report = {.tensors = static_cast<int64_t>(written.size())};
  TESSERA_ASSIGN_OR_RETURN(report.digests_compared, CompareWithSource(source, files, written));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> folder, OpenStorage(place.temporary_path()));
  TESSERA_RETURN_IF_ERROR(CheckWritten(std::move(folder), written, options));
  TESSERA_RETURN_IF_ERROR(place.Publish());
  report.removed = place.removed();
  return report;
}

absl::StatusOr<WriteForeignReport> WriteLocal(const Checkpoint& source,
                                              const std::vector<OutputFile>& files,
                                              const std::string& folder, const std::string& local,
                                              const WriteForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(LocalFolder place, LocalFolder::Create(local, folder));
  absl::StatusOr<WriteForeignReport> report = WriteAndCheck(source, files, place, options);
  if (!report.ok()) place.Abandon();
  return report;
}

// Names cannot be given to folders of an object store: everything is written in its place, and the
// files that make it a checkpoint last.
absl::StatusOr<WriteForeignReport> WriteObjects(const Checkpoint& source,
                                                const std::vector<OutputFile>& files,
                                                const std::shared_ptr<Storage>& storage,
                                                const WriteForeignOptions& options) {
  std::vector<OutputFile> first;
  std::map<std::string, std::string> last;
  for (const OutputFile& file : files) {
    if (file.commits) {
      last[file.name] = file.header;
    } else {
      first.push_back(file);
    }
  }
  const OutputOptions output = {.io_threads = options.io_threads, .progress = options.progress};
  TESSERA_ASSIGN_OR_RETURN(const DigestsByName written,
                           WriteOutput(source, first, *storage, "", output));
  WriteForeignReport report = {.tensors = static_cast<int64_t>(written.size())};
  TESSERA_ASSIGN_OR_RETURN(report.digests_compared, CompareWithSource(source, files, written));
  TESSERA_RETURN_IF_ERROR(
      CheckWritten(std::make_shared<UnpublishedFolder>(storage, last), written, options));
  for (const auto& [name, contents] : last) {
    TESSERA_RETURN_IF_ERROR(storage->Publish(name, contents, nullptr));
  }
  return report;
}

absl::StatusOr<WriteForeignReport> WriteToStore(const Checkpoint& source,
                                                const std::vector<OutputFile>& files,
                                                const std::string& folder,
                                                const WriteForeignOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::shared_ptr<Storage> storage,
      OpenStorage(folder, {.create_root = true, .s3_endpoint = options.s3_endpoint}));
  const absl::StatusOr<std::vector<std::string>> names = storage->List("");
  if (!absl::IsNotFound(names.status())) {
    TESSERA_RETURN_IF_ERROR(names.status());
    if (std::ranges::count(*names, kUnfinished) > 0) return ExistsUnfinished(folder);
    if (!names->empty()) return Exists(folder);
  }
  const absl::Status alone = storage->Publish(kUnfinished, "", nullptr);
  if (absl::IsAlreadyExists(alone)) return ExistsUnfinished(folder);
  TESSERA_RETURN_IF_ERROR(alone);
  absl::StatusOr<WriteForeignReport> report = WriteObjects(source, files, storage, options);
  if (!report.ok()) {
    for (const OutputFile& file : files) storage->Delete(file.name).IgnoreError();
  }
  const absl::Status finished = storage->Delete(kUnfinished);
  if (report.ok()) TESSERA_RETURN_IF_ERROR(finished);
  return report;
}

}  // namespace

std::vector<std::string> WrittenFormatNames() {
  std::vector<std::string> names;
  for (const WrittenFormat& format : kWrittenFormats) names.emplace_back(format.name);
  return names;
}

absl::StatusOr<WriteForeignReport> WriteForeign(const Checkpoint& source, const std::string& folder,
                                                const WriteForeignOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto format = std::ranges::find(kWrittenFormats, options.format, &WrittenFormat::name);
  if (format == std::end(kWrittenFormats)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown format \"", options.format,
                                                   "\"; written are ",
                                                   absl::StrJoin(WrittenFormatNames(), ", ")));
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<OutputFile> files,
      format->plan(source.manifest(), {.dtype = options.dtype,
                                       .weights_only = options.weights_only,
                                       .max_file_bytes = options.max_file_bytes}));
  for (const PlainFile& file : options.plain_files) {
    files.push_back(PlainOutputFile(file.name, file.contents));
  }
  const std::optional<std::string> local = LocalPathOfName(folder);
  TESSERA_ASSIGN_OR_RETURN(WriteForeignReport report,
                           local.has_value() ? WriteLocal(source, files, folder, *local, options)
                                             : WriteToStore(source, files, folder, options));
  for (const OutputFile& file : files) {
    report.files.push_back(file.name);
    report.bytes += file.size_bytes;
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace tessera::ckpt::convert
