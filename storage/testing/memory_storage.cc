#include "storage/testing/memory_storage.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "storage/checks.h"
#include "storage/written_ranges.h"

namespace tessera {
namespace {

// Tests write megabytes: a larger file means a wrong offset, which must not exhaust the machine.
constexpr uint64_t kMaxFileBytes = uint64_t{4} << 30;

std::string Name(std::string_view path) { return absl::StrCat("memory:", std::string(path)); }

absl::Status Fail(absl::StatusCode code, std::string_view operation, std::string_view path,
                  std::string_view reason) {
  return absl::Status(
      code, absl::StrCat(std::string(operation), " ", Name(path), ": ", std::string(reason)));
}

}  // namespace

struct MemoryStorage::Node {
  explicit Node(bool is_directory) : is_directory(is_directory) {}
  // "7", unlike that of any other file.
  static std::string NextVersion() {
    static std::atomic<uint64_t> last = 0;
    return std::to_string(++last);
  }

  const bool is_directory;
  const std::string version = NextVersion();
  std::string data;
  std::map<std::string, NodePtr, std::less<>> entries;
};

struct MemoryStorage::Shared {
  NodePtr Find(std::string_view path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<NodePtr> FindDirectory(std::string_view operation, std::string_view path,
                                        std::string_view message_path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Removes what exists under the path.
  void Remove(std::string_view path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Mutex mutex;
  const NodePtr root = std::make_shared<Node>(/*is_directory=*/true);
};

MemoryStorage::NodePtr MemoryStorage::Shared::Find(std::string_view path) {
  NodePtr node = root;
  while (!path.empty() && node != nullptr) {
    const size_t slash = std::min(path.find('/'), path.size());
    const auto found = node->entries.find(path.substr(0, slash));
    node = found == node->entries.end() ? nullptr : found->second;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return node;
}

absl::StatusOr<MemoryStorage::NodePtr> MemoryStorage::Shared::FindDirectory(
    std::string_view operation, std::string_view path, std::string_view message_path) {
  NodePtr node = Find(path);
  if (node == nullptr || !node->is_directory) {
    return Fail(absl::StatusCode::kNotFound, operation, message_path, "no such directory");
  }
  return node;
}

void MemoryStorage::Shared::Remove(std::string_view path) {
  const auto [parent, name] = SplitPath(path);
  Find(parent)->entries.erase(std::string(name));
}

class MemoryStorage::Writer final : public WritableFile {
 public:
  Writer(std::shared_ptr<Shared> shared, std::string path, NodePtr node)
      : shared_(std::move(shared)), path_(std::move(path)), node_(std::move(node)) {}

  absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override {
    MutexLock lock(&shared_->mutex);
    if (absl::Status status = Check("WriteAt"); !status.ok()) return status;
    if (data.empty()) return absl::OkStatus();
    if (data.size() > kMaxFileBytes || offset_bytes > kMaxFileBytes - data.size()) {
      return Fail(absl::StatusCode::kResourceExhausted, "WriteAt", path_,
                  absl::StrCat(data.size(), " bytes at offset ", offset_bytes,
                               " exceed the largest file, ", kMaxFileBytes));
    }
    if (absl::Status status = claimed_.Claim(Name(path_), offset_bytes, data.size());
        !status.ok()) {
      return status;
    }
    std::string& contents = node_->data;
    contents.resize(std::max<size_t>(contents.size(), offset_bytes + data.size()));
    std::memcpy(contents.data() + offset_bytes, data.data(), data.size());
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    MutexLock lock(&shared_->mutex);
    return Check("Sync");
  }

  absl::Status Close() override {
    MutexLock lock(&shared_->mutex);
    absl::Status status = Check("Close");
    closed_ = true;
    return status;
  }

 private:
  absl::Status Check(std::string_view operation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
    if (!closed_) return absl::OkStatus();
    return Fail(absl::StatusCode::kFailedPrecondition, operation, path_, "the file is closed");
  }

  const std::shared_ptr<Shared> shared_;
  const std::string path_;
  const NodePtr node_;
  WrittenRanges claimed_;
  bool closed_ = false;
};

class MemoryStorage::Reader final : public ReadableFile {
 public:
  Reader(std::shared_ptr<Shared> shared, std::string path, NodePtr node)
      : shared_(std::move(shared)),
        path_(std::move(path)),
        node_(std::move(node)),
        size_bytes_(node_->data.size()) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    MutexLock lock(&shared_->mutex);
    const std::string& contents = node_->data;
    if (offset_bytes > contents.size() || out.size() > contents.size() - offset_bytes) {
      return ShortReadStatus(Name(path_), offset_bytes, out.size(), contents.size());
    }
    if (!out.empty()) std::memcpy(out.data(), contents.data() + offset_bytes, out.size());
    return absl::OkStatus();
  }

  uint64_t size_bytes() const override { return size_bytes_; }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::string path_;
  const NodePtr node_;
  const uint64_t size_bytes_;
};

MemoryStorage::MemoryStorage(bool renames_directories)
    : renames_directories_(renames_directories), shared_(std::make_shared<Shared>()) {}
MemoryStorage::~MemoryStorage() = default;

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryStorage::Create(std::string_view path,
                                                                    uint64_t /*size_hint_bytes*/) {
  if (absl::Status status = CheckPath("Create", path, false); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  const auto [parent, name] = SplitPath(path);
  TESSERA_ASSIGN_OR_RETURN(NodePtr directory, shared_->FindDirectory("Create", parent, path));
  if (const NodePtr there = shared_->Find(path); there != nullptr && there->is_directory) {
    return Fail(absl::StatusCode::kInvalidArgument, "Create", path, "is a directory");
  }
  NodePtr node = std::make_shared<Node>(/*is_directory=*/false);
  directory->entries[std::string(name)] = node;
  return std::make_unique<Writer>(shared_, std::string(path), std::move(node));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> MemoryStorage::Open(std::string_view path) {
  if (absl::Status status = CheckPath("Open", path, false); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  NodePtr node = shared_->Find(path);
  if (node == nullptr) return Fail(absl::StatusCode::kNotFound, "Open", path, "no such file");
  if (node->is_directory) {
    return Fail(absl::StatusCode::kInvalidArgument, "Open", path, "is a directory");
  }
  return std::make_unique<Reader>(shared_, std::string(path), std::move(node));
}

absl::Status MemoryStorage::Rename(std::string_view from, std::string_view to) {
  for (std::string_view path : {from, to}) {
    if (absl::Status status = CheckPath("Rename", path, false); !status.ok()) return status;
  }
  const std::string both = absl::StrCat(std::string(from), " to ", Name(to));
  MutexLock lock(&shared_->mutex);
  const NodePtr node = shared_->Find(from);
  if (node == nullptr) {
    return Fail(absl::StatusCode::kNotFound, "Rename", both, "no such file or directory");
  }
  if (node->is_directory && !renames_directories_) {
    return Fail(absl::StatusCode::kUnimplemented, "Rename", both, "directories are not renamed");
  }
  const auto [to_parent, to_name] = SplitPath(to);
  TESSERA_ASSIGN_OR_RETURN(NodePtr to_directory, shared_->FindDirectory("Rename", to_parent, both));
  const NodePtr there = shared_->Find(to);
  if (node->is_directory && to.substr(0, from.size()) == from && to.size() > from.size() &&
      to[from.size()] == '/') {
    return Fail(absl::StatusCode::kInvalidArgument, "Rename", both, "the target is inside");
  }
  if (there != nullptr) {
    return Fail(absl::StatusCode::kAlreadyExists, "Rename", both, "the target exists");
  }
  shared_->Remove(from);
  to_directory->entries[std::string(to_name)] = node;
  return absl::OkStatus();
}

absl::Status MemoryStorage::Replace(std::string_view from, std::string_view to) {
  MutexLock lock(&shared_->mutex);
  const NodePtr node = shared_->Find(from), there = shared_->Find(to);
  if (node == nullptr || there == nullptr) {
    return Fail(absl::StatusCode::kNotFound, "Replace", to, "one of the files does not exist");
  }
  if (node->is_directory || there->is_directory) {
    return Fail(absl::StatusCode::kInvalidArgument, "Replace", to, "is a directory");
  }
  shared_->Remove(from);
  const auto [parent, name] = SplitPath(to);
  shared_->Find(parent)->entries[std::string(name)] = node;
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStorage::Write(std::string_view path, std::string_view contents,
                                                 const WriteCondition& condition) {
  if (renames_directories_) return Storage::Write(path, contents, condition);
  if (absl::Status status = CheckPath("Write", path, false); !status.ok()) return status;
  if (condition.ready) {
    if (absl::Status status = condition.ready(); !status.ok()) return status;
  }
  MutexLock lock(&shared_->mutex);
  const auto [parent, name] = SplitPath(path);
  TESSERA_ASSIGN_OR_RETURN(NodePtr directory, shared_->FindDirectory("Write", parent, path));
  const NodePtr there = shared_->Find(path);
  if (condition.version.empty() && there != nullptr) {
    return Fail(absl::StatusCode::kAlreadyExists, "Write", path, "the name is taken");
  }
  if (!condition.version.empty() && (there == nullptr || there->version != condition.version)) {
    return Fail(absl::StatusCode::kAborted, "Write", path, "another version is there");
  }
  const NodePtr node = std::make_shared<Node>(/*is_directory=*/false);
  node->data = std::string(contents);
  directory->entries[std::string(name)] = node;
  return node->version;
}

absl::StatusOr<VersionedContents> MemoryStorage::Read(std::string_view path, uint64_t max_bytes) {
  absl::StatusOr<VersionedContents> found = Storage::Read(path, max_bytes);
  if (!found.ok() || renames_directories_) return found;
  MutexLock lock(&shared_->mutex);
  const NodePtr node = shared_->Find(path);
  if (node != nullptr && node->data == found->contents) found->version = node->version;
  return found;
}

absl::Status MemoryStorage::MakeDirectory(std::string_view path) {
  if (absl::Status status = CheckPath("MakeDirectory", path, true); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  NodePtr node = shared_->root;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    NodePtr& child = node->entries[std::string(path.substr(begin, end - begin))];
    if (child == nullptr) child = std::make_shared<Node>(/*is_directory=*/true);
    if (!child->is_directory) {
      return Fail(absl::StatusCode::kAlreadyExists, "MakeDirectory", path.substr(0, end),
                  "the name exists, but is not a directory");
    }
    node = child;
    begin = end + 1;
  }
  return absl::OkStatus();
}

absl::Status MemoryStorage::SyncDirectory(std::string_view path) {
  if (absl::Status status = CheckPath("SyncDirectory", path, true); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  return shared_->FindDirectory("SyncDirectory", path, path).status();
}

absl::StatusOr<std::vector<std::string>> MemoryStorage::List(std::string_view path) {
  if (absl::Status status = CheckPath("List", path, true); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  TESSERA_ASSIGN_OR_RETURN(NodePtr directory, shared_->FindDirectory("List", path, path));
  std::vector<std::string> names;
  for (const auto& [name, node] : directory->entries) {
    names.push_back(absl::StrCat(name, node->is_directory ? "/" : ""));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status MemoryStorage::Delete(std::string_view path) {
  if (absl::Status status = CheckPath("Delete", path, false); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  const NodePtr node = shared_->Find(path);
  if (node == nullptr) return Fail(absl::StatusCode::kNotFound, "Delete", path, "no such file");
  if (!node->entries.empty()) {
    return Fail(absl::StatusCode::kAlreadyExists, "Delete", path, "the directory is not empty");
  }
  shared_->Remove(path);
  return absl::OkStatus();
}

absl::Status MemoryStorage::DeleteVersion(std::string_view path, std::string_view version) {
  if (renames_directories_) return Storage::DeleteVersion(path, version);
  MutexLock lock(&shared_->mutex);
  const NodePtr node = shared_->Find(path);
  if (node != nullptr && node->version == version) shared_->Remove(path);
  return absl::OkStatus();
}

absl::Status MemoryStorage::DeleteTree(std::string_view path) {
  if (absl::Status status = CheckPath("DeleteTree", path, false); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  if (shared_->Find(path) == nullptr) {
    return Fail(absl::StatusCode::kNotFound, "DeleteTree", path, "no such file or directory");
  }
  shared_->Remove(path);
  return absl::OkStatus();
}

std::string MemoryStorage::Describe(std::string_view path) const { return Name(path); }

}  // namespace tessera
