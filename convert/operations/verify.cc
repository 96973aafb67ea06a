#include "convert/operations/verify.h"

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"

namespace tessera::ckpt {
namespace {

// Adds the damage that reading every tensor does not show. What was found names file and record of
// the other framework, and not the files as which this library presents them.
void AddForeignDamage(const NamedCheckpoint& named, VerifyReport& report) {
  if (named.foreign == nullptr) return;
  for (Damage& damage : report.damage) {
    const std::string prefix = "tensor " + damage.tensor + ": ";
    if (damage.message.starts_with(prefix)) damage.message.erase(0, prefix.size());
    damage.file = named.Describe();
  }
  if (!named.foreign->mismatch().empty()) {
    report.damage.push_back(
        {named.Describe(), 0, "", named.Describe() + ": " + named.foreign->mismatch()});
  }
  for (const absl::Status& status : named.foreign->CheckOtherRecords()) {
    report.damage.push_back({named.Describe(), 0, "", std::string(status.message())});
  }
}

}  // namespace

absl::StatusOr<VerifyReport> Verify(const NamedCheckpoint& named, const VerifyOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(VerifyReport report,
                           CheckpointFolder(*named.storage).Verify(named.directory, options));
  AddForeignDamage(named, report);
  return report;
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

}  // namespace tessera::ckpt
