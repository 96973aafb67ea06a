#include "operations/verify.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "convert/source_place.h"
#include "nlohmann/json.hpp"
#include "operations/named_checkpoint.h"
#include "operations/signature.h"
#include "tools/ckpt/commands.h"
#include "tools/ckpt/report.h"

namespace tessera::ckpt {
namespace {

// Returns "good, 1.2 GiB read in 0.7 s (1.7 GiB/s)"
std::string Verdict(const VerifyReport& report) {
  const double seconds = absl::ToDoubleSeconds(report.duration);
  const size_t places = report.damage.size();
  return (places == 0 ? std::string("good") : "DAMAGED in " + Counted(places, "place")) + ", " +
         HumanBytes(report.bytes_read) + " read in " + HumanSeconds(seconds) + " (" +
         HumanRate(report.bytes_read, seconds) + ")";
}

// Says that a folder holds more than the checkpoint that was looked at. Empty if it does not.
std::string OthersText(const NamedCheckpoint& named, bool is_good) {
  if (named.directory.empty()) return "";
  const auto checkpoints = ListForResume(*named.storage);
  if (!checkpoints.ok() || checkpoints->size() < 2) return "";
  const std::string which = named.notes.empty() ? "the newest of " : "one of ";
  return which + std::to_string(checkpoints->size()) +
         (is_good ? " checkpoints; --all checks every one\n"
                  : " checkpoints is damaged; --all shows which of the others are good\n");
}

void PrintVerdict(const NamedCheckpoint& named, const VerifyReport& report, bool digests,
                  std::ostream& out) {
  PrintDamage(report.damage, "", out);
  out << named.Describe() << ": " << Verdict(report) << "\n";
  if (report.damage.empty()) out << Proof(named, report, digests) << "\n";
  PrintNotes(named.notes, out);
}

// Calls verify(VerifyOptions), with a bar.
absl::StatusOr<VerifyReport> VerifyWithBar(const CommandOptions& options,
                                           const CommandOutput& output, const auto& verify) {
  return verify(VerifyOptions{.digests = options.digests,
                              .io_threads = options.threads,
                              .progress = ProgressBar(output.progress).callback()});
}

// Every committed checkpoint of a folder, a line each.
class FolderVerifier {
 public:
  FolderVerifier(const CommandOptions& options, const CommandOutput& output)
      : options_(options), output_(output) {}

  absl::StatusOr<int> Run() {
    TESSERA_ASSIGN_OR_RETURN(const auto storage,
                             OpenStorage(options_.paths[0], options_.source.stores));
    std::vector<CheckpointInfo> unreadable;
    TESSERA_ASSIGN_OR_RETURN(auto checkpoints, ListForResume(*storage, &unreadable));
    std::ranges::reverse(checkpoints);
    if (checkpoints.empty() && unreadable.empty()) {
      return NotFound("no checkpoints in ", options_.paths[0], ": ",
                      convert::DescribeContents(*storage));
    }
    for (const CheckpointInfo& checkpoint : unreadable) {
      Add(checkpoint.directory, checkpoint.readable);
    }
    const std::shared_ptr<Storage> shared(std::shared_ptr<Storage>(), storage.get());
    for (const CheckpointInfo& info : checkpoints) {
      const SignedFile manifest = SignedManifest(shared, info.directory);
      const absl::Status held =
          options_.key.empty() ? absl::OkStatus() : CheckSignature(manifest, options_.key).status();
      if (absl::IsDataLoss(held)) {
        Add(info.directory, VerifyReport{.damage = {{manifest.signature_path, 0, "",
                                                     std::string(held.message())}}});
        continue;
      }
      TESSERA_RETURN_IF_ERROR(held);
      Add(info.directory, VerifyWithBar(options_, output_, [&](const VerifyOptions& verify) {
            return CheckpointFolder(*storage).Verify(info.directory, verify);
          }));
    }
    if (options_.json) {
      PrintJson(json_, output_.out);
    } else if (good_ == 0) {
      output_.out << "no checkpoint here is good: restore one from a copy; --load-tensors of the "
                     "trainer still loads tensors that are whole\n";
    }
    return worst_;
  }

 private:
  void Add(const std::string& name, const absl::StatusOr<VerifyReport>& report) {
    if (!report.ok()) {
      const std::string problem(report.status().message());
      worst_ = std::max(worst_, kExitUsage);
      json_.push_back({{"checkpoint", name}, {"error", problem}});
      if (!options_.json) output_.out << name << ": UNREADABLE: " << problem << "\n";
      return;
    }
    if (report->damage.empty()) ++good_;
    if (!report->damage.empty()) worst_ = std::max(worst_, kExitDifferent);
    json_.push_back(ToJson(name, *report, options_.digests));
    if (options_.json) return;
    output_.out << name << ": " << Verdict(*report);
    output_.out << (options_.digests ? MissingDigests(*report) : "") << "\n";
    PrintDamage(report->damage, "  ", output_.out);
  }

  const CommandOptions& options_;
  const CommandOutput& output_;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
  int good_ = 0;
  int worst_ = kExitOk;
};

}  // namespace

absl::StatusOr<int> RunVerify(const CommandOptions& options, const CommandOutput& output) {
  if (options.all) return FolderVerifier(options, output).Run();
  TESSERA_ASSIGN_OR_RETURN(const auto named, FindCheckpoint(options.paths[0], options.source));
  std::string key;
  if (!options.key.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const auto file, FindSignedFile(named));
    TESSERA_ASSIGN_OR_RETURN(key, CheckSignature(file, options.key));
  }
  TESSERA_ASSIGN_OR_RETURN(const auto report,
                           VerifyWithBar(options, output, [&](const VerifyOptions& verify) {
                             return Verify(named, verify);
                           }));
  if (options.json) {
    nlohmann::ordered_json json = ToJson(named, report, options.digests);
    if (!key.empty()) json["signed_by"] = key;
    PrintJson(json, output.out);
  } else {
    PrintVerdict(named, report, options.digests, output.out);
    if (!key.empty()) {
      output.out << "the " << (named.seal.has_value() ? "seal" : "manifest")
                 << " is signed by the key in " << options.key << ", " << key << "\n";
    }
    output.out << OthersText(named, report.damage.empty());
  }
  return report.damage.empty() ? kExitOk : kExitDifferent;
}

}  // namespace tessera::ckpt
