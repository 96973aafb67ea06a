#include "checkpoint/verify/verify.h"

#include <string>

#include "base/units.h"
#include "checkpoint/directory/damage.h"
#include "checkpoint/tools/commands.h"
#include "checkpoint/tools/progress_bar.h"
#include "checkpoint/tools/report.h"
#include "checkpoint/tools/target.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt {
namespace {

// What a check without findings has proven.
std::string Proof(const VerifyReport& report, bool digests) {
  std::string text = "every byte, header and shard is as its manifest says";
  if (!digests) return text;
  text += "; the contents of " + std::to_string(report.digests_verified) +
          " tensors, however they are sharded, have the digests taken when they were saved";
  if (report.digests_missing > 0) {
    text += "; " + std::to_string(report.digests_missing) + " tensors have no digest";
  }
  return text;
}

void PrintText(const std::string& name, const VerifyReport& report, bool digests,
               std::ostream& out) {
  for (const Damage& damage : report.damage) {
    out << damage.file << " at offset " << damage.offset_bytes << ": "
        << (damage.tensor.empty() ? "" : "tensor " + damage.tensor + ": ") << damage.message
        << "\n";
  }
  const size_t places = report.damage.size();
  out << name << ": "
      << (places == 0
              ? std::string("good")
              : "DAMAGED in " + std::to_string(places) + (places == 1 ? " place" : " places"))
      << ", " << HumanBytes(report.bytes_read) << " read in " << HumanSeconds(report.seconds)
      << " (" << HumanRate(report.bytes_read, report.seconds) << ")\n";
  if (places == 0) out << Proof(report, digests) << "\n";
}

nlohmann::ordered_json ToJson(const std::string& name, const VerifyReport& report, bool digests) {
  nlohmann::ordered_json json = {
      {"checkpoint", name},        {"good", report.damage.empty()},
      {"digests", digests},        {"bytes_read", report.bytes_read},
      {"seconds", report.seconds}, {"damage", nlohmann::ordered_json::array()}};
  if (digests) {
    json["digests_verified"] = report.digests_verified;
    json["digests_missing"] = report.digests_missing;
  }
  for (const Damage& damage : report.damage) {
    json["damage"].push_back({{"file", damage.file},
                              {"offset", damage.offset_bytes},
                              {"tensor", damage.tensor},
                              {"message", damage.message}});
  }
  return json;
}

}  // namespace

int RunVerify(const CommandOptions& options, const CommandOutput& output) {
  const auto fail = [&](const absl::Status& status) {
    return Fail(output, options, "ckpt verify", status);
  };
  const auto target = OpenTarget(options.paths[0]);
  if (!target.ok()) return fail(target.status());
  const auto report = [&] {
    ProgressBar bar(output.progress);
    return Verify(*target->storage, target->directory, options.digests, options.threads,
                  [&](uint64_t done, uint64_t total) { bar.Update(done, total); });
  }();
  if (!report.ok()) return fail(report.status());
  if (options.json) {
    PrintJson(ToJson(target->Describe(), *report, options.digests), output.out);
  } else {
    PrintText(target->Describe(), *report, options.digests, output.out);
  }
  return report->damage.empty() ? kExitOk : kExitDifferent;
}

}  // namespace tessera::ckpt
