#include "operations/verify.h"

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"

namespace tessera::ckpt {
namespace {

// Adds the damage that reading every tensor does not show.
void AddForeignDamage(const NamedCheckpoint& named, VerifyReport& report) {
  if (named.foreign == nullptr) return;
  NameForeignPlaces(named, report.damage);
  if (!named.foreign->mismatch().empty()) {
    report.damage.push_back(
        {named.Describe(), 0, "", named.Describe() + ": " + named.foreign->mismatch()});
  }
  for (const absl::Status& status : named.foreign->CheckOtherRecords()) {
    report.damage.push_back({named.Describe(), 0, "", std::string(status.message())});
  }
}

// Verifies the files by the seal and, on request, the contents of the tensors.
absl::StatusOr<VerifyReport> VerifyBySeal(const NamedCheckpoint& named,
                                          const VerifyOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(VerifyReport report, convert::VerifySealed(*named.seal, options));
  if (!report.damage.empty()) return report;
  TESSERA_RETURN_IF_ERROR(named.opened.status());
  if (!options.digests) return report;
  TESSERA_ASSIGN_OR_RETURN(const VerifyReport contents,
                           CheckpointFolder(*named.storage).Verify("", options));
  report.damage = contents.damage;
  report.digests_verified = contents.digests_verified;
  report.digests_missing = contents.digests_missing;
  report.bytes_read += contents.bytes_read;
  report.duration += contents.duration;
  return report;
}

}  // namespace

void NameForeignPlaces(const NamedCheckpoint& named, std::vector<Damage>& damage) {
  if (named.foreign == nullptr) return;
  for (Damage& place : damage) {
    const std::string prefix = "tensor " + place.tensor + ": ";
    if (place.message.starts_with(prefix)) place.message.erase(0, prefix.size());
    place.file = named.Describe();
  }
}

absl::StatusOr<VerifyReport> Verify(const NamedCheckpoint& named, const VerifyOptions& options) {
  if (named.seal.has_value()) {
    const absl::Status& seal = named.seal->seal.status();
    if (seal.ok()) return VerifyBySeal(named, options);
    if (!absl::IsDataLoss(seal)) return seal;
    VerifyReport report;
    report.damage.push_back({named.seal->path, 0, "", std::string(seal.message())});
    return report;
  }
  TESSERA_ASSIGN_OR_RETURN(VerifyReport report,
                           CheckpointFolder(*named.storage).Verify(named.directory, options));
  AddForeignDamage(named, report);
  return report;
}

nlohmann::ordered_json ToJson(std::span<const Damage> damage) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Damage& place : damage) {
    json.push_back({{"file", place.file},
                    {"offset", place.offset_bytes},
                    {"tensor", place.tensor},
                    {"message", place.message}});
  }
  return json;
}

nlohmann::ordered_json ToJson(const NamedCheckpoint& named, const VerifyReport& report,
                              bool digests) {
  nlohmann::ordered_json json = ToJson(named.Describe(), report, digests);
  if (!named.notes.empty()) json["notes"] = named.notes;
  if (named.foreign != nullptr && !named.foreign->unread().empty()) {
    json["unread"] = named.foreign->unread();
  }
  if (named.seal.has_value()) json["seal"] = named.seal->Describe();
  return json;
}

nlohmann::ordered_json ToJson(const std::string& name, const VerifyReport& report, bool digests) {
  nlohmann::ordered_json json = {{"checkpoint", name},
                                 {"good", report.damage.empty()},
                                 {"digests", digests},
                                 {"bytes_read", report.bytes_read},
                                 {"seconds", absl::ToDoubleSeconds(report.duration)},
                                 {"damage", ToJson(report.damage)}};
  if (digests) {
    json["digests_verified"] = report.digests_verified;
    json["digests_missing"] = report.digests_missing;
  }
  return json;
}

}  // namespace tessera::ckpt
