#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/layout_proto.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/include/open_storage.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/reshard/rewrite.h"
#include "convert/core/read_digests.h"
#include "layout/topology.h"
#include "nlohmann/json.hpp"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/named_checkpoint.h"
#include "tools/ckpt/progress_bar.h"
#include "tools/ckpt/rank_layout.h"
#include "tools/ckpt/report.h"
#include "tools/ckpt/summary.h"
#include "tools/ckpt/table.h"

namespace tessera::ckpt {
namespace {

using Json = nlohmann::ordered_json;

// The destination of the new checkpoint.
struct Destination {
  std::string folder;     // of checkpoints
  std::string directory;  // in it

  std::string path() const {
    return absl::StrCat(folder, folder.ends_with('/') ? "" : "/", directory);
  }
};

// Whether a checkpoint is committed in the directory of that name.
absl::StatusOr<bool> HoldsCheckpoint(const std::string& name, const std::string& s3_endpoint) {
  const absl::StatusOr<std::unique_ptr<Storage>> storage =
      OpenStorage(name, {.s3_endpoint = s3_endpoint});
  // No directory, which is found out when it is opened for writing.
  if (absl::IsNotFound(storage.status()) || absl::IsInvalidArgument(storage.status())) return false;
  TESSERA_RETURN_IF_ERROR(storage.status());
  return IsCommitted(**storage, "");
}

// `name` is the folder, or the checkpoint's directory in it, which must be named for its step.
absl::StatusOr<Destination> FindPlace(const std::string& name, int64_t step,
                                      const std::string& s3_endpoint) {
  std::string_view folder = name;
  while (folder.size() > 1 && folder.ends_with('/')) folder.remove_suffix(1);  // "a/b/"
  Destination place = {name, StepDirectoryName(step)};
  if (folder == place.directory) {
    place.folder = ".";
  } else if (folder.ends_with(absl::StrCat("/", place.directory))) {
    place.folder = folder.substr(0, folder.size() - place.directory.size() - 1);
    if (place.folder.empty()) place.folder = "/";
  }
  TESSERA_ASSIGN_OR_RETURN(const bool exists, HoldsCheckpoint(place.path(), s3_endpoint));
  if (exists) {
    return absl::AlreadyExistsError(
        absl::StrCat(place.path(), " is a committed checkpoint, which is never overwritten"));
  }
  TESSERA_ASSIGN_OR_RETURN(const bool is_checkpoint, HoldsCheckpoint(place.folder, s3_endpoint));
  if (is_checkpoint) {
    return absl::AlreadyExistsError(
        absl::StrCat(place.folder, " is a checkpoint, expected the folder for the new one"));
  }
  return place;
}

struct Work {
  NamedCheckpoint source;
  Destination place;
  Topology topology;
  RankLayout layout;
  SavePlan plan;
};

absl::StatusOr<Work> Plan(const CommandOptions& options) {
  Work work;
  TESSERA_ASSIGN_OR_RETURN(work.topology, ParseTopology(options.reshard.topology));
  TESSERA_ASSIGN_OR_RETURN(work.source, FindCheckpoint(options.paths[0], options.source));
  TESSERA_RETURN_IF_ERROR(work.source.opened.status());
  TESSERA_ASSIGN_OR_RETURN(work.place, FindPlace(options.paths[1], work.source.opened->step(),
                                                 options.source.s3_endpoint));
  TESSERA_ASSIGN_OR_RETURN(work.layout, LayOutRanks(work.source.opened->manifest(), work.topology,
                                                    options.reshard.layout));
  TESSERA_ASSIGN_OR_RETURN(work.plan, PlanSave(work.layout.ranks, SavePlanOptions()));
  return work;
}

Manifest NewMetadata(const Work& work) {
  Manifest metadata = work.source.opened->manifest();
  metadata.clear_tensors();
  metadata.clear_files();
  *metadata.mutable_topology() = ToProto(work.topology);
  metadata.mutable_producer()->set_program("ckpt reshard");
  metadata.mutable_producer()->set_created_unix_ms(absl::ToUnixMillis(absl::Now()));
  return metadata;
}

uint64_t MemoryBytes(const CommandOptions& options) {
  const bool converts = !options.convert.format.empty();
  return options.reshard.memory_bytes.value_or(uint64_t{1} << (converts ? 27 : 30));
}

absl::StatusOr<RewriteReport> Write(const Work& work, const CommandOptions& options,
                                    const CommandOutput& output) {
  TESSERA_RETURN_IF_ERROR(work.source.CheckOtherRecords());
  const std::optional<std::string> local = LocalPathOfName(work.place.folder);
  std::error_code error;
  const bool is_new = local.has_value() && !std::filesystem::exists(*local, error);
  const auto write = [&]() -> absl::StatusOr<RewriteReport> {
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<Storage> storage,
        OpenStorage(work.place.folder,
                    {.create_root = true, .s3_endpoint = options.source.s3_endpoint}));
    ProgressBar bar(output.progress);
    return Rewrite(*work.source.opened, {work.layout.ranks, work.plan}, *storage, "",
                   NewMetadata(work),
                   {.memory_bytes = MemoryBytes(options),
                    .io_threads = options.threads,
                    .progress = [&](uint64_t done, uint64_t total) { bar.Update(done, total); }});
  };
  absl::StatusOr<RewriteReport> report = write();
  // The folder is still empty.
  if (!report.ok() && is_new) rmdir(local->c_str());
  return report;
}

// One sentence on what was, or would be, written.
std::string Summary(const Work& work, const char* verb) {
  const size_t files = work.plan.manifest.files_size();
  return absl::StrCat(work.place.path(), ": ", verb, " for ", ToString(work.topology), ", ",
                      HumanBytes(DataBytes(work.plan.manifest)), " in ", files,
                      files == 1 ? " file" : " files");
}

// What to do where the checkpoint does not say how its tensors may be cut.
void PrintGuesses(const Work& work, std::ostream& out) {
  if (work.layout.guessed == 0) return;
  out << work.layout.guessed
      << " of its parameters do not say how they may be cut, or where in the "
      << "model they stand: cut along the first of two or more dims, on the first pipeline stage; "
      << "--split says it, see ckpt --help\n";
}

void PrintPlan(const Work& work, std::ostream& out) {
  Table table({{"file"},
               {"rank", Table::Align::kRight},
               {"bytes", Table::Align::kRight},
               {"shards", Table::Align::kRight}});
  std::vector<std::vector<std::string>> rows(work.plan.manifest.files_size());
  for (size_t r = 0; r < work.plan.ranks.size(); ++r) {
    for (const FilePlan& file : work.plan.ranks[r].files()) {
      rows[file.file_index()] = {file.path(), absl::StrCat(r), HumanBytes(file.size_bytes()),
                                 absl::StrCat(file.items_size())};
    }
  }
  for (std::vector<std::string>& row : rows) table.AddRow(std::move(row));
  out << table.ToString() << Summary(work, "would be written") << "\n";
  PrintGuesses(work, out);
  PrintNotes(work.source.notes, out);
}

Json PlanJson(const Work& work) {
  Json json = {{"source", work.source.Describe()},
               {"checkpoint", work.place.path()},
               {"topology", ToString(work.topology)},
               {"bytes", DataBytes(work.plan.manifest)},
               {"guessed", work.layout.guessed},
               {"notes", work.source.notes},
               {"files", Json::array()}};
  for (const DataFile& file : work.plan.manifest.files()) {
    json["files"].push_back({{"path", file.path()}, {"bytes", file.size_bytes()}});
  }
  for (size_t r = 0; r < work.plan.ranks.size(); ++r) {
    for (const FilePlan& file : work.plan.ranks[r].files()) {
      json["files"][file.file_index()]["rank"] = r;
      json["files"][file.file_index()]["shards"] = file.items_size();
    }
  }
  return json;
}

// Another framework's files have no digests: reads them once more, and compares their digests with
// those of what was written. Returns the number of tensors; DataLoss, naming the tensor.
absl::StatusOr<int64_t> CompareWithForeign(const Work& work, const CommandOptions& options,
                                           const CommandOutput& output) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Storage> storage,
      OpenStorage(work.place.path(), {.s3_endpoint = options.source.s3_endpoint}));
  TESSERA_ASSIGN_OR_RETURN(const Manifest written, ReadManifest(*storage, ""));
  ProgressBar bar(output.progress);
  TESSERA_ASSIGN_OR_RETURN(
      const convert::DigestsByName read,
      convert::ReadDigests(*work.source.opened, {.io_threads = options.threads,
                                                 .progress = [&](uint64_t done, uint64_t total) {
                                                   bar.Update(done, total);
                                                 }}));
  int64_t compared = 0;
  for (const LogicalTensor& tensor : written.tensors()) {
    if (!tensor.has_digest()) continue;
    const LogicalDigest digest = {tensor.digest().lo(), tensor.digest().hi()};
    const auto at = read.find(tensor.name());
    if (at == read.end() || at->second != digest) {
      return absl::DataLossError(absl::StrCat(work.place.path(), ": tensor ", tensor.name(),
                                              " is not that of ", work.source.Describe()));
    }
    ++compared;
  }
  return compared;
}

void PrintReport(const Work& work, const RewriteReport& report, std::ostream& out) {
  out << Summary(work, "written") << " in " << HumanSeconds(report.seconds) << " ("
      << HumanRate(report.bytes_written, report.seconds) << ", " << HumanBytes(report.bytes_read)
      << " read)\n"
      << "the digests of all " << report.digests_compared
      << " tensors, taken from what was written, are those of " << work.source.Describe() << "\n";
  if (report.digests_new > 0) {
    out << report.digests_new
        << " more tensors had no digest there; only the checksums of what was "
        << "read are proven\n";
  }
  PrintGuesses(work, out);
  PrintNotes(work.source.notes, out);
}

}  // namespace

int RunReshard(const CommandOptions& options, const CommandOutput& output) {
  const auto fail = [&](const absl::Status& status) {
    return Fail(output, options, "ckpt reshard", status);
  };
  const absl::StatusOr<Work> work = Plan(options);
  if (!work.ok()) return fail(work.status());
  Json json = options.json ? PlanJson(*work) : Json();
  if (options.reshard.dry_run) {
    if (options.json) {
      PrintJson(json, output.out);
    } else {
      PrintPlan(*work, output.out);
    }
    return kExitOk;
  }
  absl::StatusOr<RewriteReport> report = Write(*work, options, output);
  if (!report.ok()) return fail(report.status());
  if (!work->source.format.empty()) {
    const absl::StatusOr<int64_t> compared = CompareWithForeign(*work, options, output);
    if (!compared.ok()) return fail(compared.status());
    report->digests_compared = *compared;
    report->digests_new = 0;
  }
  if (options.json) {
    json["bytes_read"] = report->bytes_read;
    json["seconds"] = report->seconds;
    json["digests_compared"] = report->digests_compared;
    json["digests_new"] = report->digests_new;
    PrintJson(json, output.out);
  } else {
    PrintReport(*work, *report, output.out);
  }
  return kExitOk;
}

}  // namespace tessera::ckpt
