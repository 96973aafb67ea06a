#include "checkpoint/directory/fence.h"

#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {
namespace {

// No manifest begins like this: the eighth byte of its magic is a line feed.
constexpr std::string_view kTombstone = "TESSERA tombstone ";

std::string PathIn(std::string_view dir, std::string_view name) {
  return absl::StrCat(std::string(dir), dir.empty() ? "" : "/", std::string(name));
}

}  // namespace

absl::Status MarkAsFenced(Storage& storage, std::string_view checkpoint_dir) {
  const absl::Status marked = storage
                                  .Write(PathIn(checkpoint_dir, kFencedFileName),
                                         "manifest.pb may be a tombstone: see FORMAT.md.\n", {})
                                  .status();
  return absl::IsAlreadyExists(marked) ? absl::OkStatus() : marked;
}

std::string MakeTombstone() {
  std::random_device device;
  return absl::StrCat(std::string(kTombstone), absl::ToUnixSeconds(absl::Now()), " ",
                      absl::Hex(device(), absl::kZeroPad8), absl::Hex(device(), absl::kZeroPad8),
                      "\nA save to this directory was discarded before it was complete.\n");
}

bool IsTombstone(std::string_view manifest_bytes) { return manifest_bytes.starts_with(kTombstone); }

int64_t TombstoneTime(std::string_view tombstone) {
  tombstone.remove_prefix(kTombstone.size());
  int64_t seconds = 0;
  return absl::SimpleAtoi(std::string(tombstone.substr(0, tombstone.find(' '))), &seconds) ? seconds
                                                                                           : 0;
}

bool IsQuarantinedName(std::string_view name) {
  if (!name.starts_with(kManifestFileName)) return false;
  const std::string_view suffix = name.substr(kManifestFileName.size());
  return suffix.starts_with('.') && !suffix.starts_with(".tmp") && name != kFencedFileName;
}

absl::StatusOr<std::optional<VersionedContents>> ReadTombstone(Storage& storage,
                                                               std::string_view checkpoint_dir) {
  const std::string path = PathIn(checkpoint_dir, kManifestFileName);
  absl::StatusOr<VersionedContents> there = storage.Read(path, kMaxManifestBytes);
  if (absl::IsNotFound(there.status())) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(there.status());
  if (IsTombstone(there->contents)) return *std::move(there);
  return absl::AlreadyExistsError(absl::StrCat(storage.Describe(path), " is no tombstone"));
}

}  // namespace tessera::ckpt
