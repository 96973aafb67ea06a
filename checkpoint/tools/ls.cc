#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tools/commands.h"
#include "checkpoint/tools/report.h"
#include "checkpoint/tools/summary.h"
#include "checkpoint/tools/table.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt {

int RunLs(const CommandOptions& options, const CommandOutput& output) {
  const auto fail = [&](const absl::Status& status) {
    return Fail(output, options, "ckpt ls", status);
  };
  const auto storage = OpenStorage(options.paths[0]);
  if (!storage.ok()) return fail(storage.status());
  std::vector<UnreadableCheckpoint> unreadable;
  const auto checkpoints = List(**storage, "", &unreadable);
  if (!checkpoints.ok()) return fail(checkpoints.status());
  if (checkpoints->empty() && unreadable.empty()) {
    const absl::Status itself = Checkpoint::Open(**storage, "").status();
    if (itself.ok() || absl::IsDataLoss(itself)) {
      return fail(absl::InvalidArgumentError(absl::StrCat(
          options.paths[0], " is itself a checkpoint, no folder of them; see ckpt inspect")));
    }
  }
  Table table({{"step", Table::Align::kRight},
               {"directory"},
               {"bytes", Table::Align::kRight},
               {"tensors", Table::Align::kRight},
               {"topology"},
               {"written"}});
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  int exit_code = kExitOk;
  for (const UnreadableCheckpoint& checkpoint : unreadable) {
    exit_code = kExitDifferent;
    output.err << "ckpt ls: " << checkpoint.status.message() << "\n";
    table.AddRow(
        {absl::StrCat(checkpoint.step), checkpoint.directory, "-", "-", "-", "unreadable"});
    json.push_back({{"step", checkpoint.step},
                    {"directory", checkpoint.directory},
                    {"error", std::string(checkpoint.status.message())}});
  }
  for (const CheckpointInfo& info : *checkpoints) {
    const auto manifest = ReadManifest(**storage, info.directory);
    nlohmann::ordered_json entry = {{"step", info.step}, {"directory", info.directory}};
    if (!manifest.ok()) {
      exit_code = kExitDifferent;
      entry["error"] = std::string(manifest.status().message());
      output.err << "ckpt ls: " << manifest.status().message() << "\n";
      table.AddRow({absl::StrCat(info.step), info.directory, "-", "-", "-", "damaged manifest"});
    } else {
      const int64_t written = manifest->producer().created_unix_ms();
      entry["bytes"] = DataBytes(*manifest);
      entry["tensors"] = manifest->tensors_size();
      entry["topology"] = TopologyText(manifest->topology());
      entry["created_unix_ms"] = written;
      table.AddRow({absl::StrCat(info.step), info.directory, HumanBytes(DataBytes(*manifest)),
                    absl::StrCat(manifest->tensors_size()), TopologyText(manifest->topology()),
                    TimeText(written)});
    }
    json.push_back(std::move(entry));
  }
  if (options.json) {
    PrintJson(json, output.out);
  } else if (checkpoints->empty() && unreadable.empty()) {
    output.out << "no checkpoints in " << options.paths[0] << "\n";
  } else {
    output.out << table.ToString();
  }
  return exit_code;
}

}  // namespace tessera::ckpt
