#include "operations/reshard.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"
#include "checkpoint/include/manifest.h"
#include "nlohmann/json.hpp"
#include "operations/summary.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {
namespace {

using Json = nlohmann::ordered_json;

ReshardRequest RequestOf(const CommandOptions& options) {
  const bool converts = !options.convert.format.empty();
  return {.source = options.paths[0],
          .destination = options.paths[1],
          .open = options.source,
          .topology = options.reshard.topology,
          .layout = options.reshard.layout,
          .program = converts ? "ckpt convert" : "ckpt reshard",
          .memory_bytes = options.reshard.memory_bytes.value_or(converts ? kConversionMemoryBytes
                                                                         : kReshardMemoryBytes),
          .io_threads = options.threads};
}

// One sentence on what was, or would be, written.
std::string Summary(const ReshardPlan& work, const char* verb) {
  return absl::StrCat(work.place.path(), ": ", verb, " for ", ToString(work.topology), ", ",
                      HumanBytes(BytesOfFiles(work.plan.manifest)), " in ",
                      Counted(work.plan.manifest.files_size(), "file"));
}

// Prints what to do if the checkpoint does not say how its tensors may be cut.
void PrintGuesses(const ReshardPlan& work, std::ostream& out) {
  if (work.layout.guessed == 0) return;
  out << work.layout.guessed
      << " of its parameters do not say how they may be cut, or where in the "
      << "model they stand: cut along the first of two or more dims, on the first pipeline stage; "
      << "--split says it, see ckpt reshard --help\n";
}

void PrintPlan(const ReshardPlan& work, std::ostream& out) {
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

Json PlanJson(const ReshardPlan& work) {
  Json json = {{"source", work.source.Describe()},
               {"checkpoint", work.place.path()},
               {"topology", ToString(work.topology)},
               {"bytes", BytesOfFiles(work.plan.manifest)},
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

void PrintReport(const ReshardPlan& work, const RewriteReport& report, std::ostream& out) {
  const double seconds = absl::ToDoubleSeconds(report.duration);
  out << Summary(work, "written") << " in " << HumanSeconds(seconds) << " ("
      << HumanRate(report.bytes_written, seconds) << ", " << HumanBytes(report.bytes_read)
      << " read)\n"
      << (report.digests_compared == 1
              ? "the digest of its tensor, taken from what was written, is that of "
              : absl::StrCat("the digests of all ", report.digests_compared,
                             " tensors, taken from what was written, are those of "))
      << work.source.Describe() << "\n";
  if (report.digests_new > 0) {
    out << Counted(report.digests_new, "more tensor")
        << " had no digest there; only the checksums of what was "
        << "read are proven\n";
  }
  PrintGuesses(work, out);
  PrintNotes(work.source.notes, out);
}

}  // namespace

absl::StatusOr<int> RunReshard(const CommandOptions& options, const CommandOutput& output) {
  ReshardRequest request = RequestOf(options);
  TESSERA_ASSIGN_OR_RETURN(const auto work, PlanReshard(request));
  Json json = options.json ? PlanJson(work) : Json();
  if (options.reshard.dry_run) {
    if (options.json) {
      PrintJson(json, output.out);
    } else {
      PrintPlan(work, output.out);
    }
    return kExitOk;
  }
  absl::StatusOr<RewriteReport> written;
  {
    ProgressBar bar(output.progress);
    request.progress = bar.callback();
    written = Reshard(work, request);
  }
  TESSERA_ASSIGN_OR_RETURN(const RewriteReport report, std::move(written));
  if (options.json) {
    json["bytes_read"] = report.bytes_read;
    json["seconds"] = absl::ToDoubleSeconds(report.duration);
    json["digests_compared"] = report.digests_compared;
    json["digests_new"] = report.digests_new;
    PrintJson(json, output.out);
  } else {
    PrintReport(work, report, output.out);
  }
  return kExitOk;
}

}  // namespace tessera::ckpt
