#include "storage/s3/s3_storage.h"

#include <algorithm>
#include <atomic>
#include <regex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "storage/checks.h"
#include "storage/s3/s3_file.h"

namespace tessera {
namespace {

using s3::S3Client;

constexpr uint64_t kPreferredParts = 2;  // in one write
constexpr char kNoObject[] = "";         // see S3Client::PutIf()
constexpr size_t kMaxOwnPath = 1024;     // std::regex recurses
// Renaming reads and writes the contents.
constexpr uint64_t kMaxRenamedBytes = uint64_t{256} << 20;

// The first request of Read() fetches up to this many bytes.
constexpr uint64_t kReadAtOnceBytes = uint64_t{64} << 10;

// A person waits for what is wrong with the settings.
constexpr absl::Duration kPingTimeout = absl::Seconds(15);

class S3Storage final : public Storage {
 public:
  explicit S3Storage(const S3StorageOptions& options)
      : options_(options),
        client_(options.client),
        memory_(options.max_buffered_bytes, s3::ChoosePartBytes(options.part_bytes, 0)) {}

  // Whole parts are sent from the caller's memory, each over a connection of its own.
  StorageTraits Traits() override {
    return {.renames_directories = false,
            .replaces_versions = options_.client.dialect.replaces_versions,
            .preferred_write_bytes = kPreferredParts * s3::ChoosePartBytes(options_.part_bytes, 0)};
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Create", path, /*root_allowed=*/false));
    return std::make_unique<s3::S3WritableFile>(
        Describe(path), Key(path), s3::ChoosePartBytes(options_.part_bytes, size_hint_bytes),
        client_, memory_);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Open", path, /*root_allowed=*/false));
    absl::StatusOr<S3Client::ObjectInfo> info = Find(path);
    if (!info.ok()) return Named("Open", Describe(path), info.status());
    return std::make_unique<s3::S3ReadableFile>(Describe(path), Key(path), *std::move(info),
                                                client_);
  }

  absl::Status Rename(std::string_view from, std::string_view to) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Rename", from, /*root_allowed=*/false));
    TESSERA_RETURN_IF_ERROR(CheckPath("Rename", to, /*root_allowed=*/false));
    const std::string where = absl::StrCat(Describe(from), " to ", Describe(to));
    if (to.starts_with(absl::StrCat(std::string(from), "/"))) {
      return absl::InvalidArgumentError(
          absl::StrCat("Rename ", where, ": a directory cannot be moved into itself"));
    }
    const absl::Status renamed = RenameObject(from, to);
    if (!absl::IsNotFound(renamed)) return Named("Rename", where, renamed);
    const absl::StatusOr<bool> is_directory = IsDirectory(from);
    if (!is_directory.ok()) return Named("Rename", where, is_directory.status());
    if (!*is_directory) return Named("Rename", where, renamed);
    return absl::UnimplementedError(
        absl::StrCat("Rename ", where, ": an object store has no directories to rename"));
  }

  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Write", path, /*root_allowed=*/false));
    const std::string key = Key(path);
    if (!condition.version.empty() && !options_.client.dialect.replaces_versions) {
      return absl::UnimplementedError(
          absl::StrCat("Write ", Describe(path), ": the store at ", options_.client.endpoint,
                       " has no condition under which it replaces an object, so that two programs "
                       "could overwrite each other's files"));
    }
    if (!condition.version.empty()) {
      TESSERA_RETURN_IF_ERROR(
          Named("Write", Describe(path), CheckReplaceable(key, condition.version)));
    }
    if (condition.ready) TESSERA_RETURN_IF_ERROR(condition.ready());
    absl::StatusOr<std::string> written =
        client_.PutIf(key, AsBytes(contents), condition.version, condition.ready);
    if (written.ok()) return written;
    absl::Status status = written.status();
    const bool is_other = absl::IsAlreadyExists(status) || absl::IsNotFound(status);
    if (is_other && !condition.version.empty()) status = absl::AbortedError(status.message());
    return Named("Write", Describe(path), status);
  }

  absl::StatusOr<VersionedContents> Read(std::string_view path, uint64_t max_bytes) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Read", path, /*root_allowed=*/false));
    const auto read = [&]() -> absl::StatusOr<VersionedContents> {
      const std::string key = Key(path);
      TESSERA_ASSIGN_OR_RETURN(
          S3Client::Contents first,
          client_.GetContents(key, std::clamp<uint64_t>(max_bytes, 1, kReadAtOnceBytes)));
      if (first.size_bytes > max_bytes) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "the object has ", first.size_bytes, " bytes, at most ", max_bytes, " are accepted"));
      }
      const uint64_t begun = first.bytes.size();
      first.bytes.resize(first.size_bytes);
      if (begun < first.size_bytes) {
        TESSERA_RETURN_IF_ERROR(
            client_.Get(key, first.etag, begun,
                        std::as_writable_bytes(std::span<char>(first.bytes)).subspan(begun)));
      }
      return VersionedContents{.contents = std::move(first.bytes),
                               .version = std::move(first.etag)};
    };
    absl::StatusOr<VersionedContents> found = read();
    if (!found.ok()) return Named("Read", Describe(path), found.status());
    return found;
  }

  absl::Status MakeDirectory(std::string_view path) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("MakeDirectory", path, /*root_allowed=*/true));
    if (!path.empty()) AbortUploads(Below(path));
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(std::string_view path) override {
    return CheckPath("SyncDirectory", path, /*root_allowed=*/true);
  }

  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("List", path, /*root_allowed=*/true));
    const std::string below = Below(path);
    const absl::StatusOr<s3::ListPage> all = client_.List(below, /*delimiter=*/true);
    if (!all.ok()) return Named("List", Describe(path), all.status());
    if (all->objects.empty() && all->prefixes.empty() && !path.empty()) {
      return absl::NotFoundError(
          absl::StrCat("List ", Describe(path), ": there is nothing in this directory"));
    }
    std::vector<std::string> names = all->prefixes;
    for (const s3::ListPage::Object& object : all->objects) names.push_back(object.key);
    for (std::string& name : names) name.erase(0, below.size());
    // Some programs make an object of the prefix itself.
    std::erase_if(names, [](const std::string& name) { return name.empty() || name == "/"; });
    std::ranges::sort(names);
    return names;
  }

  absl::Status Delete(std::string_view path) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("Delete", path, /*root_allowed=*/false));
    // A store does not say whether there was something to delete.
    const absl::StatusOr<S3Client::ObjectInfo> there = Find(path);
    if (absl::IsInvalidArgument(there.status())) {
      return absl::AlreadyExistsError(
          absl::StrCat("Delete ", Describe(path), ": the directory is not empty"));
    }
    return Named("Delete", Describe(path),
                 there.ok() ? client_.Delete(Key(path), there->etag) : there.status());
  }

  absl::Status DeleteVersion(std::string_view path, std::string_view version) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("DeleteVersion", path, /*root_allowed=*/false));
    return Named("DeleteVersion", Describe(path), client_.Delete(Key(path), std::string(version)));
  }

  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("DeleteFiles", directory, /*root_allowed=*/true));
    std::vector<std::string> keys;
    for (const std::string& name : names) keys.push_back(Below(directory) + name);
    return Named("DeleteFiles", Describe(directory), client_.DeleteAll(keys));
  }

  absl::Status DeleteTree(std::string_view path) override {
    TESSERA_RETURN_IF_ERROR(CheckPath("DeleteTree", path, /*root_allowed=*/false));
    const auto delete_all = [&]() -> absl::Status {
      // Uploads first: one that is completed in between becomes an object.
      const int aborted = AbortUploads(Below(path));
      TESSERA_ASSIGN_OR_RETURN(const s3::ListPage all,
                               client_.List(Below(path), /*delimiter=*/false));
      std::vector<std::string> keys;
      for (const s3::ListPage::Object& object : all.objects) keys.push_back(object.key);
      const absl::Status is_file = client_.Head(Key(path)).status();
      if (is_file.ok()) keys.push_back(Key(path));
      if (!is_file.ok() && !absl::IsNotFound(is_file)) return is_file;
      if (keys.empty() && aborted == 0) {
        return absl::NotFoundError("there is no such object or directory");
      }
      return client_.DeleteAll(keys);
    };
    return Named("DeleteTree", Describe(path), delete_all());
  }

  std::string Describe(std::string_view path) const override {
    const std::string s3 = "s3://" + options_.client.bucket;
    return absl::StrCat(options_.name.empty() ? s3 : options_.name, "/", Key(path));
  }

  void Abandon() override { client_.Abandon(); }

  // Other programs may have uploads in the same place, above all in a whole bucket.
  void RemoveStaleUploads() {
    if (options_.own_uploads.empty()) return;
    const std::regex own(options_.own_uploads);
    const std::string below = Below("");
    const auto uploads = client_.ListUploads(below);
    if (!uploads.ok()) return;
    for (const s3::UploadsPage::Upload& upload : *uploads) {
      if (absl::Now() - upload.initiated < options_.stale_upload_age) continue;
      const std::string path = upload.key.substr(below.size());
      if (path.size() > kMaxOwnPath || !std::regex_match(path, own)) continue;
      client_.AbortUpload(upload.key, upload.upload_id).IgnoreError();
    }
  }

 private:
  std::string Key(std::string_view path) const {
    if (path.empty() || options_.prefix.empty())
      return absl::StrCat(options_.prefix, std::string(path));
    return absl::StrCat(options_.prefix, "/", std::string(path));
  }

  // Returns the prefix of the keys below a directory; "" for the root of the whole bucket.
  std::string Below(std::string_view path) const {
    std::string key = Key(path);
    return key.empty() ? key : key + "/";
  }

  absl::StatusOr<bool> IsDirectory(std::string_view path) {
    TESSERA_ASSIGN_OR_RETURN(const s3::ListPage page,
                             client_.List(Below(path), /*delimiter=*/false, /*max_keys=*/1));
    return !page.objects.empty();
  }

  // Finds an object. InvalidArgument for a directory.
  absl::StatusOr<S3Client::ObjectInfo> Find(std::string_view path) {
    absl::StatusOr<S3Client::ObjectInfo> info = client_.Head(Key(path));
    if (!absl::IsNotFound(info.status())) return info;
    // The answer to this request tells a missing bucket, which is another error, from a missing
    // object.
    TESSERA_ASSIGN_OR_RETURN(const bool is_directory, IsDirectory(path));
    if (is_directory) return absl::InvalidArgumentError("is a directory");
    return absl::NotFoundError("there is no such object");
  }

  absl::Status RenameObject(std::string_view from, std::string_view to) {
    TESSERA_ASSIGN_OR_RETURN(const bool is_directory, IsDirectory(to));
    if (is_directory || from == to) return absl::AlreadyExistsError("the target exists");
    TESSERA_ASSIGN_OR_RETURN(const S3Client::ObjectInfo info, client_.Head(Key(from)));
    if (info.size_bytes > kMaxRenamedBytes) {
      return absl::UnimplementedError("an object store cannot rename a large file");
    }
    std::string contents(info.size_bytes, '\0');
    TESSERA_RETURN_IF_ERROR(
        client_.Get(Key(from), info.etag, 0, std::as_writable_bytes(std::span<char>(contents))));
    TESSERA_RETURN_IF_ERROR(client_.PutIf(Key(to), AsBytes(contents), kNoObject).status());
    return client_.Delete(Key(from), info.etag);
  }

  // OK if the object has this version and the store honours conditions. Asks the store once.
  absl::Status CheckReplaceable(const std::string& key, const std::string& version) {
    if (obeys_conditions_) return absl::OkStatus();
    const absl::StatusOr<S3Client::ObjectInfo> info = client_.Head(key);
    if (absl::IsNotFound(info.status())) return absl::AbortedError("there is no such object");
    TESSERA_RETURN_IF_ERROR(info.status());
    std::string there(info->size_bytes, '\0');
    const absl::Status read =
        client_.Get(key, version, 0, std::as_writable_bytes(std::span<char>(there)));
    if (!read.ok()) {
      const absl::StatusOr<S3Client::ObjectInfo> now = client_.Head(key);
      const bool is_replaced = now.ok() && now->etag != version;
      return is_replaced ? absl::AbortedError("another object is there") : read;
    }
    TESSERA_ASSIGN_OR_RETURN(obeys_conditions_, client_.ObeysIfMatch(key, AsBytes(there)));
    if (obeys_conditions_) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("the store at ", options_.client.endpoint,
                     " replaces objects although If-Match forbids it, so that two programs could "
                     "overwrite each other's files"));
  }

  // Aborts uploads if it can: keys without permission to list uploads can still write objects.
  int AbortUploads(const std::string& prefix) {
    const auto uploads = client_.ListUploads(prefix);
    if (!uploads.ok()) return 0;
    int aborted = 0;
    for (const s3::UploadsPage::Upload& upload : *uploads) {
      aborted += client_.AbortUpload(upload.key, upload.upload_id).ok();
    }
    return aborted;
  }

  const S3StorageOptions options_;
  S3Client client_;
  s3::PartMemory memory_;
  std::atomic<bool> obeys_conditions_ = false;  // once the store has proved it
};

// Returns the names of the headers that ask a store to replace nothing.
std::string Forbids(const s3::Dialect& dialect) {
  const std::string first(dialect.create_only[0].name), second(dialect.create_only[1].name);
  const std::string usual = first == "if-none-match" ? "If-None-Match" : first;
  return second.empty() ? usual : absl::StrCat(usual, " or ", second);
}

// Lists, creates, fails to replace, and deletes a small object, so that missing rights are reported
// before the first save.
absl::Status Ping(const S3StorageOptions& options, const std::string& name) {
  s3::ClientOptions impatient = options.client;
  impatient.timeout = kPingTimeout;
  S3Client client(impatient);
  const std::string below = options.prefix.empty() ? "" : options.prefix + "/";
  const auto cannot = [&](const char* what, const absl::Status& status) {
    return WithMessage(status, absl::StrCat("cannot ", what, " ", name, ": ", status.message()));
  };
  if (const auto listed = client.List(below, /*delimiter=*/true, /*max_keys=*/1); !listed.ok()) {
    return cannot("list what is in", listed.status());
  }
  const std::string key = absl::StrCat(below, ".write-test-", RandomHex(16));
  if (const auto written = client.PutIf(key, AsBytes("1"), kNoObject); !written.ok()) {
    return cannot("write to", written.status());
  }
  const absl::Status again = client.PutIf(key, AsBytes("2"), kNoObject).status();
  if (const auto deleted = client.Delete(key, /*etag=*/""); !deleted.ok())
    return cannot("delete from", deleted);
  if (absl::IsAlreadyExists(again)) return absl::OkStatus();
  if (!again.ok()) return cannot("write to", again);
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write to ", name, ": the store at ", options.client.endpoint,
                   " replaces objects although ", Forbids(options.client.dialect),
                   " forbids it, so that two programs could overwrite each other's files"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> OpenS3Storage(const S3StorageOptions& options) {
  S3StorageOptions own = options;
  // The ping is the first contact.
  if (options.create_root) own.client.first_answer_timeout = options.client.timeout;
  auto storage = std::make_unique<S3Storage>(std::move(own));
  if (!options.prefix.empty()) {
    TESSERA_RETURN_IF_ERROR(CheckPath("Open", options.prefix, /*root_allowed=*/false));
  }
  if (options.create_root) {
    TESSERA_RETURN_IF_ERROR(Ping(options, storage->Describe("")));
    storage->RemoveStaleUploads();
  }
  return storage;
}

}  // namespace tessera
