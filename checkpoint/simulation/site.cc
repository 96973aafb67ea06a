#include "checkpoint/simulation/site.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/simulation/content.h"
#include "checkpoint/simulation/faults.h"
#include "checkpoint/simulation/network.h"
#include "checkpoint/simulation/scheduler.h"
#include "checkpoint/storage/s3/s3_storage.h"

namespace tessera::simulation {
namespace {

ckpt::s3::Credentials WithToken(int token) {
  return {.access_key_id = "TESTKEY",
          .secret_access_key = "a/secret+key",
          .session_token = absl::StrCat("token-", token)};
}

}  // namespace

SimulatedSite::SimulatedSite(const Script& script, const std::string& root, Model& model)
    : script_(script), root_(root), model_(model) {
  if (script.object_store) {
    for (auto* const store : {&store_, &other_}) {
      *store = std::make_unique<ckpt::s3::S3Server>(
          ckpt::s3::S3ServerOptions{.credentials = WithToken(token_),
                                    .keeps_metadata = !script.loses_metadata,
                                    .listens = false});
    }
  }
}

absl::StatusOr<std::unique_ptr<ckpt::Storage>> SimulatedSite::Open(const Phase& phase, bool blind) {
  auto remote = OpenRemote(blind, /*create_root=*/true);
  if (!remote.ok() || !phase.staging_tier) return remote;
  auto nearby = ckpt::OpenPosixStorage(root_ + "/nearby", {.create_root = true});
  if (!nearby.ok()) return nearby;
  auto upload = std::make_unique<ckpt::UploadStorage>(*std::move(nearby), *std::move(remote));
  const absl::Status forgotten = upload->ForgetAllBut("");
  if (!forgotten.ok()) return forgotten;
  return upload;
}

Model::View SimulatedSite::Look() {
  const Frozen frozen;
  const auto storage = OpenRemote(/*blind=*/false, /*create_root=*/false);
  const absl::StatusOr<Model::View> view =
      storage.ok() ? LookAround(**storage) : absl::StatusOr<Model::View>(storage.status());
  if (!view.ok()) {
    Journal::Get().Finding("unreadable", std::string(view.status().message()));
    return {};
  }
  model_.Look(*view);
  for (const Sighting& sighting : *view) {
    if (!sighting.committed || !sighting.complete || !model_.IsSound(sighting.id)) continue;
    const std::string wrong = ReadBack(**storage, sighting);
    if (!wrong.empty()) {
      Journal::Get().Finding("mixed", absl::StrCat(sighting.directory, ": ", wrong));
    }
  }
  return *view;
}

void SimulatedSite::MakeStale(const std::string& newest) {
  const Frozen frozen;
  if (script_.object_store) {
    for (const std::string& key : store_->keys()) {
      if (!absl::StrContains(key, newest)) other_->PutObject(key, store_->contents(key));
    }
    return;
  }
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::copy(root_ + "/saves", root_ + "/other",
           fs::copy_options::recursive | fs::copy_options::overwrite_existing, ignored);
  fs::remove_all(absl::StrCat(root_, "/other/", newest), ignored);
}

void SimulatedSite::DeleteTree(const std::string& directory) {
  const Frozen frozen;
  const auto storage = OpenRemote(/*blind=*/false, /*create_root=*/false);
  if (storage.ok()) (*storage)->DeleteTree(directory).IgnoreError();
}
void SimulatedSite::Rot(const std::string& directory) {
  const Frozen frozen;
  const auto storage = OpenRemote(/*blind=*/false, /*create_root=*/false);
  const auto manifest = ckpt::ReadManifest(**storage, directory);
  if (!manifest.ok()) return;
  const std::string path = ckpt::JoinPath(directory, manifest->files(0).path());
  auto bytes = ckpt::ReadAll(**storage, path, 1 << 20);
  if (!bytes.ok() || bytes->empty()) return;
  bytes->back() = static_cast<char>(bytes->back() ^ 1);
  if (ckpt::WriteAll(**storage, path, *bytes).ok()) Journal::Get().Note("rots: " + path);
}

void SimulatedSite::ExpireToken(int64_t outage_ns) {
  readable_at_ns_ = std::max(readable_at_ns_, Scheduler::Get().now_ns() + outage_ns);
  ++token_;
  Journal::Get().Note(absl::StrCat("tokens expire, for ", outage_ns / kSecond, " s"));
  const Uninterrupted uninterrupted;
  for (auto* const store : {&store_, &other_}) (*store)->SetCredentials(WithToken(token_));
}

void SimulatedSite::WriteStopFile(bool is_there) {
  const Uninterrupted uninterrupted;
  std::filesystem::remove(StopFile());
  if (is_there) std::ofstream(StopFile()) << "1\n";
}

absl::StatusOr<std::unique_ptr<ckpt::Storage>> SimulatedSite::OpenRemote(bool blind,
                                                                         bool create_root) {
  if (!script_.object_store) {
    return ckpt::OpenPosixStorage(root_ + (blind ? "/other" : "/saves"),
                                  {.create_root = create_root});
  }
  ckpt::s3::S3Server& store = blind ? *other_ : *store_;
  ckpt::S3StorageOptions options = {.client = store.ForClient(), .prefix = "saves"};
  options.client.http = MakeSimulatedClient(store);
  const auto read = [this] {
    const bool is_world = Scheduler::Get().current().process == kWorld;
    const bool is_new = is_world || Scheduler::Get().now_ns() >= readable_at_ns_;
    return WithToken(is_new ? token_ : token_ - 1);
  };
  options.client.credentials = read();
  // Otherwise a refusal has no cure.
  if (std::ranges::any_of(script_.phases, &Phase::token_expires)) {
    options.client.read_credentials = read;
  }
  options.client.deadline = absl::Minutes(5);
  options.client.stall_timeout = absl::Seconds(30);
  options.client.min_backoff = absl::Milliseconds(200);
  options.client.max_backoff = absl::Seconds(10);
  options.create_root = create_root;
  return ckpt::OpenS3Storage(options);
}

}  // namespace tessera::simulation
