#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/source_place.h"
#include "nlohmann/json.hpp"
#include "operations/named_checkpoint.h"
#include "operations/summary.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {
namespace {

class Listing {
 public:
  Listing(Storage& storage, const CommandOutput& output) : storage_(storage), output_(output) {}

  void AddUnreadable(const CheckpointInfo& checkpoint) {
    AddProblem({{"step", checkpoint.step}, {"directory", checkpoint.directory}},
               absl::StrCat(checkpoint.step), checkpoint.directory, checkpoint.readable);
  }

  void Add(const CheckpointInfo& info) {
    const auto manifest = ReadManifest(storage_, info.directory);
    Json entry = {{"step", info.step}, {"directory", info.directory}};
    if (manifest.ok()) return AddManifest(*manifest, info.directory, std::move(entry));
    if (absl::IsNotFound(manifest.status()) && !IsListed(info.directory)) return;
    AddProblem(std::move(entry), absl::StrCat(info.step), info.directory, manifest.status());
  }

  // The storage's root is a checkpoint. `name`: the path that it was given by. `format`: that of
  // another framework, or empty.
  void AddRoot(const absl::StatusOr<Checkpoint>& checkpoint, const std::string& name,
               const std::string& format = "") {
    const std::string shown = format.empty() ? name : absl::StrCat(name, " (", format, ")");
    Json entry = {{"directory", name}};
    if (checkpoint.ok()) {
      const bool is_known = format.empty() || convert::TellsStep(checkpoint->manifest());
      entry = {{"step", KnownOrNull(is_known, checkpoint->step())}, {"directory", name}};
    }
    if (!format.empty()) entry["format"] = format;
    if (!checkpoint.ok()) {
      return AddProblem(std::move(entry), "-", shown, checkpoint.status());
    }
    AddManifest(checkpoint->manifest(), shown, std::move(entry));
  }

  void Print(bool json) const {
    if (json) {
      PrintJson(json_, output_.out);
    } else {
      output_.out << table_.ToString();
    }
  }

  bool empty() const { return json_.empty(); }
  int exit_code() const { return exit_code_; }

 private:
  using Json = nlohmann::ordered_json;

  // Returns whether a checkpoint has not been deleted since it was listed.
  bool IsListed(const std::string& directory) const {
    const auto names = storage_.List(directory);
    return names.ok() && std::ranges::find(*names, kManifestFileName) != names->end();
  }

  void AddManifest(const Manifest& manifest, const std::string& directory, Json entry) {
    const int64_t written = manifest.producer().created_unix_ms();
    entry["bytes"] = BytesOfFiles(manifest);
    entry["tensors"] = manifest.tensors_size();
    entry["topology"] = TopologyText(manifest.topology());
    entry["created_unix_ms"] = KnownOrNull(written != 0, written);
    table_.AddRow({entry["step"].is_null() ? "-" : entry["step"].dump(), directory,
                   HumanBytes(BytesOfFiles(manifest)), absl::StrCat(manifest.tensors_size()),
                   TopologyText(manifest.topology()), TimeText(written)});
    json_.push_back(std::move(entry));
  }

  void AddProblem(Json entry, const std::string& step, const std::string& directory,
                  const absl::Status& status) {
    exit_code_ = kExitDifferent;
    output_.err << "ckpt ls: " << status.message() << "\n";
    table_.AddRow({step, directory, "-", "-", "-",
                   absl::IsDataLoss(status) ? "damaged manifest" : "unreadable"});
    entry["error"] = std::string(status.message());
    json_.push_back(std::move(entry));
  }

  Storage& storage_;
  const CommandOutput& output_;
  Table table_{{{"step", Table::Align::kRight},
                {"directory"},
                {"bytes", Table::Align::kRight},
                {"tensors", Table::Align::kRight},
                {"topology"},
                {"written"}}};
  Json json_ = Json::array();
  int exit_code_ = kExitOk;
};

// Returns whether a folder without a manifest holds files of a save that did not finish.
absl::StatusOr<bool> IsIncompleteSave(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  return std::ranges::any_of(
      names, [](const std::string& name) { return name.ends_with(".safetensors"); });
}

// Lists a checkpoint of another framework; NotFound if there is no such checkpoint.
absl::StatusOr<int> ListForeign(const CommandOptions& options, const CommandOutput& output) {
  TESSERA_ASSIGN_OR_RETURN(const NamedCheckpoint named,
                           FindCheckpoint(options.paths[0], options.source));
  Listing listing(*named.storage, output);
  listing.AddRoot(named.opened, options.paths[0], named.format);
  listing.Print(options.json);
  return listing.exit_code();
}

}  // namespace

absl::StatusOr<int> RunLs(const CommandOptions& options, const CommandOutput& output) {
  const std::string& path = options.paths[0];
  if (IsForeignName(path, options.source)) return ListForeign(options, output);
  TESSERA_ASSIGN_OR_RETURN(const auto storage, OpenStorage(path, options.source.stores));
  std::vector<CheckpointInfo> unreadable;
  TESSERA_ASSIGN_OR_RETURN(auto checkpoints, ListForResume(*storage, &unreadable));
  std::ranges::reverse(checkpoints);
  Listing listing(*storage, output);
  for (const CheckpointInfo& checkpoint : unreadable) listing.AddUnreadable(checkpoint);
  for (const CheckpointInfo& info : checkpoints) listing.Add(info);
  if (listing.empty()) {
    const auto itself = Checkpoint::Open(*storage, "");
    if (itself.ok() || absl::IsDataLoss(itself.status())) listing.AddRoot(itself, path);
  }
  if (listing.empty()) {
    const absl::StatusOr<int> listed = ListForeign(options, output);
    if (!absl::IsNotFound(listed.status())) return listed;
  }
  if (listing.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const bool incomplete, IsIncompleteSave(*storage));
    if (incomplete) return NotFound(path, " is a save that was never completed (no manifest.pb)");
  }
  if (listing.empty() && !options.json) {
    output.out << "no checkpoints in " << path << ": " << convert::DescribeContents(*storage)
               << "\n";
  } else {
    listing.Print(options.json);
  }
  return listing.exit_code();
}

}  // namespace tessera::ckpt
