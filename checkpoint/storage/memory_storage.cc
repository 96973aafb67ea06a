#include "checkpoint/storage/memory_storage.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "checkpoint/storage/checks.h"

namespace tessera::ckpt {
namespace {

// Tests write megabytes: a larger file means a wrong offset, which must not exhaust the machine.
constexpr uint64_t kMaxFileBytes = uint64_t{4} << 30;
constexpr size_t kSectorBytes = 512;

std::string Name(std::string_view path) { return absl::StrCat("memory:", std::string(path)); }

absl::Status Fail(absl::StatusCode code, std::string_view operation, std::string_view path,
                  std::string_view reason) {
  return absl::Status(
      code, absl::StrCat(std::string(operation), " ", Name(path), ": ", std::string(reason)));
}

}  // namespace

// A file or a directory, both as running processes see it and as it would be after a power loss.
struct MemoryStorage::Node {
  explicit Node(bool is_directory) : is_directory(is_directory) {}

  const bool is_directory;
  std::string data, durable_data;
  std::map<std::string, NodePtr, std::less<>> entries, durable_entries;
  // For each name, the number of its newest durable change. Older changes must not undo it.
  std::map<std::string, uint64_t> durable_change;
};

struct MemoryStorage::Shared {
  // Sets the entry `name` of `directory` to `node`, or removes it.
  struct Edit {
    NodePtr directory;
    std::string name;
    NodePtr node;
  };
  // Edits that become durable together, once all of their directories have been synced.
  struct Change {
    uint64_t number;
    std::vector<Edit> edits;
    std::set<NodePtr> unsynced;
  };

  NodePtr Find(std::string_view path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<NodePtr> FindDirectory(std::string_view operation, std::string_view path,
                                        std::string_view message_path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Apply(std::vector<Edit> edits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RemoveTree(const NodePtr& directory, const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  static void MakeDurable(const Change& change);
  void Restart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Mutex mutex;
  const NodePtr root = std::make_shared<Node>(/*is_directory=*/true);
  std::vector<Change> pending ABSL_GUARDED_BY(mutex);
  uint64_t next_change ABSL_GUARDED_BY(mutex) = 1;
  // Files opened in an earlier power cycle fail.
  uint64_t power_cycle ABSL_GUARDED_BY(mutex) = 0;
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

void MemoryStorage::Shared::Apply(std::vector<Edit> edits) {
  Change change{next_change++, std::move(edits), {}};
  for (const Edit& edit : change.edits) {
    if (edit.node == nullptr) {
      edit.directory->entries.erase(edit.name);
    } else {
      edit.directory->entries[edit.name] = edit.node;
    }
    change.unsynced.insert(edit.directory);
  }
  pending.push_back(std::move(change));
}

// Deletes like a file system: bottom up, each entry as a separate change.
void MemoryStorage::Shared::RemoveTree(const NodePtr& directory, const std::string& name) {
  const NodePtr node = directory->entries[name];
  const auto children = node->entries;
  for (const auto& [child, unused] : children) RemoveTree(node, child);
  Apply({{directory, name, nullptr}});
}

void MemoryStorage::Shared::MakeDurable(const Change& change) {
  for (const Edit& edit : change.edits) {
    uint64_t& newest = edit.directory->durable_change[edit.name];
    if (newest > change.number) continue;
    newest = change.number;
    if (edit.node == nullptr) {
      edit.directory->durable_entries.erase(edit.name);
    } else {
      edit.directory->durable_entries[edit.name] = edit.node;
    }
  }
}

// Reduces the state to what is durable.
void MemoryStorage::Shared::Restart() {
  pending.clear();
  ++power_cycle;
  std::vector<NodePtr> nodes = {root};
  while (!nodes.empty()) {
    const NodePtr node = std::move(nodes.back());
    nodes.pop_back();
    node->data = node->durable_data;
    node->entries = node->durable_entries;
    for (const auto& [name, child] : node->entries) nodes.push_back(child);
  }
}

// Shared by reading and writing: the node, and whether it still exists.
class MemoryStorage::OpenFile {
 public:
  OpenFile(std::shared_ptr<Shared> shared, std::string path, NodePtr node, uint64_t power_cycle)
      : shared_(std::move(shared)),
        path_(std::move(path)),
        node_(std::move(node)),
        power_cycle_(power_cycle) {}

  Mutex& mutex() const ABSL_LOCK_RETURNED(shared_->mutex) { return shared_->mutex; }
  const std::string& path() const { return path_; }
  Node& node() const { return *node_; }

  absl::Status Check(std::string_view operation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex) {
    if (shared_->power_cycle == power_cycle_) return absl::OkStatus();
    return Fail(absl::StatusCode::kUnavailable, operation, path_,
                "the file was open when the power was lost");
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::string path_;
  const NodePtr node_;
  const uint64_t power_cycle_;
};

class MemoryStorage::Writer final : public WritableFile {
 public:
  explicit Writer(OpenFile file) : file_(std::move(file)) {}

  absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override {
    MutexLock lock(&file_.mutex());
    if (absl::Status status = Check("WriteAt"); !status.ok()) return status;
    if (data.empty()) return absl::OkStatus();
    if (data.size() > kMaxFileBytes || offset_bytes > kMaxFileBytes - data.size()) {
      return Fail(absl::StatusCode::kResourceExhausted, "WriteAt", file_.path(),
                  absl::StrCat(data.size(), " bytes at offset ", offset_bytes,
                               " exceed the largest file, ", kMaxFileBytes));
    }
    std::string& contents = file_.node().data;
    contents.resize(std::max<size_t>(contents.size(), offset_bytes + data.size()));
    std::memcpy(contents.data() + offset_bytes, data.data(), data.size());
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    MutexLock lock(&file_.mutex());
    if (absl::Status status = Check("Sync"); !status.ok()) return status;
    file_.node().durable_data = file_.node().data;
    return absl::OkStatus();
  }

  absl::Status Close() override {
    MutexLock lock(&file_.mutex());
    absl::Status status = Check("Close");
    closed_ = true;
    return status;
  }

 private:
  absl::Status Check(std::string_view operation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_.mutex()) {
    if (!closed_) return file_.Check(operation);
    return Fail(absl::StatusCode::kFailedPrecondition, operation, file_.path(),
                "the file is closed");
  }

  const OpenFile file_;
  bool closed_ = false;
};

class MemoryStorage::Reader final : public ReadableFile {
 public:
  Reader(OpenFile file, uint64_t size_bytes) : file_(std::move(file)), size_bytes_(size_bytes) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    MutexLock lock(&file_.mutex());
    if (absl::Status status = file_.Check("ReadAt"); !status.ok()) return status;
    const std::string& contents = file_.node().data;
    if (offset_bytes > contents.size() || out.size() > contents.size() - offset_bytes) {
      return ShortReadStatus(Name(file_.path()), offset_bytes, out.size(), contents.size());
    }
    if (!out.empty()) std::memcpy(out.data(), contents.data() + offset_bytes, out.size());
    return absl::OkStatus();
  }

  uint64_t size_bytes() const override { return size_bytes_; }

 private:
  const OpenFile file_;
  const uint64_t size_bytes_;
};

MemoryStorage::MemoryStorage(bool renames_directories)
    : renames_directories_(renames_directories), shared_(std::make_shared<Shared>()) {}
MemoryStorage::~MemoryStorage() {
  // A file that outlives the storage keeps only its own contents; pending edits would form
  // reference cycles.
  MutexLock lock(&shared_->mutex);
  shared_->pending.clear();
}

void MemoryStorage::SimulatePowerLoss() {
  MutexLock lock(&shared_->mutex);
  shared_->Restart();
}

void MemoryStorage::SimulatePowerLoss(uint64_t seed) {
  MutexLock lock(&shared_->mutex);
  std::mt19937_64 random(seed);
  const auto heads = [&random] { return (random() >> 32) % 2 == 0; };
  for (const Shared::Change& change : shared_->pending) {
    if (heads()) Shared::MakeDurable(change);
  }
  // Every file that remains reachable, once.
  std::vector<Node*> nodes = {shared_->root.get()};
  std::set<const Node*> seen;
  while (!nodes.empty()) {
    Node* node = nodes.back();
    nodes.pop_back();
    if (!seen.insert(node).second) continue;
    for (const auto& [name, child] : node->durable_entries) nodes.push_back(child.get());
    if (node->is_directory || node->data == node->durable_data) continue;
    std::string mixed = node->durable_data;
    if (heads()) mixed.resize(node->data.size());
    for (size_t at = 0; at < std::min(mixed.size(), node->data.size()); at += kSectorBytes) {
      const size_t size = std::min({kSectorBytes, mixed.size() - at, node->data.size() - at});
      if (heads()) std::memcpy(mixed.data() + at, node->data.data() + at, size);
    }
    node->durable_data = std::move(mixed);
  }
  shared_->Restart();
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryStorage::Create(std::string_view path,
                                                                    uint64_t /*size_hint_bytes*/) {
  if (absl::Status status = CheckPath("Create", path, false); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  const auto [parent, name] = SplitPath(path);
  absl::StatusOr<NodePtr> directory = shared_->FindDirectory("Create", parent, path);
  if (!directory.ok()) return directory.status();
  if (const NodePtr there = shared_->Find(path); there != nullptr && there->is_directory) {
    return Fail(absl::StatusCode::kInvalidArgument, "Create", path, "is a directory");
  }
  NodePtr node = std::make_shared<Node>(/*is_directory=*/false);
  shared_->Apply({{*directory, std::string(name), node}});
  return std::make_unique<Writer>(
      OpenFile(shared_, std::string(path), std::move(node), shared_->power_cycle));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> MemoryStorage::Open(std::string_view path) {
  if (absl::Status status = CheckPath("Open", path, false); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  NodePtr node = shared_->Find(path);
  if (node == nullptr) return Fail(absl::StatusCode::kNotFound, "Open", path, "no such file");
  if (node->is_directory) {
    return Fail(absl::StatusCode::kInvalidArgument, "Open", path, "is a directory");
  }
  const uint64_t size_bytes = node->data.size();
  return std::make_unique<Reader>(
      OpenFile(shared_, std::string(path), std::move(node), shared_->power_cycle), size_bytes);
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
  const auto [from_parent, from_name] = SplitPath(from);
  const auto [to_parent, to_name] = SplitPath(to);
  absl::StatusOr<NodePtr> from_directory = shared_->FindDirectory("Rename", from_parent, both);
  if (!from_directory.ok()) return from_directory.status();
  absl::StatusOr<NodePtr> to_directory = shared_->FindDirectory("Rename", to_parent, both);
  if (!to_directory.ok()) return to_directory.status();
  const NodePtr there = shared_->Find(to);
  if (node->is_directory && to.substr(0, from.size()) == from && to.size() > from.size() &&
      to[from.size()] == '/') {
    return Fail(absl::StatusCode::kInvalidArgument, "Rename", both, "the target is inside");
  }
  if (there != nullptr) {
    return Fail(absl::StatusCode::kAlreadyExists, "Rename", both, "the target exists");
  }
  shared_->Apply({{*from_directory, std::string(from_name), nullptr},
                  {*to_directory, std::string(to_name), node}});
  return absl::OkStatus();
}

absl::Status MemoryStorage::Exchange(std::string_view path, std::string_view expected,
                                     std::string_view contents,
                                     const std::function<absl::Status()>& ready) {
  if (renames_directories_) return Storage::Exchange(path, expected, contents, ready);
  if (absl::Status status = CheckPath("Exchange", path, false); !status.ok()) return status;
  if (ready) {
    if (absl::Status status = ready(); !status.ok()) return status;
  }
  MutexLock lock(&shared_->mutex);
  const NodePtr node = shared_->Find(path);
  if (node == nullptr || node->is_directory || node->data != expected) {
    return Fail(absl::StatusCode::kAborted, "Exchange", path, "other contents are there");
  }
  node->data = node->durable_data = std::string(contents);
  return absl::OkStatus();
}

absl::Status MemoryStorage::MakeDirectory(std::string_view path) {
  if (absl::Status status = CheckPath("MakeDirectory", path, true); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  NodePtr node = shared_->root;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    NodePtr& child = node->entries[std::string(path.substr(begin, end - begin))];
    if (child == nullptr) {
      child = std::make_shared<Node>(/*is_directory=*/true);
      Shared::MakeDurable({shared_->next_change++,
                           {{node, std::string(path.substr(begin, end - begin)), child}},
                           {}});
    }
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
  absl::StatusOr<NodePtr> directory = shared_->FindDirectory("SyncDirectory", path, path);
  if (!directory.ok()) return directory.status();
  std::vector<Shared::Change> still_pending;
  for (Shared::Change& change : shared_->pending) {
    change.unsynced.erase(*directory);
    if (change.unsynced.empty()) {
      Shared::MakeDurable(change);
    } else {
      still_pending.push_back(std::move(change));
    }
  }
  shared_->pending = std::move(still_pending);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> MemoryStorage::List(std::string_view path) {
  if (absl::Status status = CheckPath("List", path, true); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  absl::StatusOr<NodePtr> directory = shared_->FindDirectory("List", path, path);
  if (!directory.ok()) return directory.status();
  std::vector<std::string> names;
  for (const auto& [name, node] : (*directory)->entries) {
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
  const auto [parent, name] = SplitPath(path);
  shared_->Apply({{shared_->Find(parent), std::string(name), nullptr}});
  return absl::OkStatus();
}

absl::Status MemoryStorage::DeleteTree(std::string_view path) {
  if (absl::Status status = CheckPath("DeleteTree", path, false); !status.ok()) return status;
  MutexLock lock(&shared_->mutex);
  if (shared_->Find(path) == nullptr) {
    return Fail(absl::StatusCode::kNotFound, "DeleteTree", path, "no such file or directory");
  }
  const auto [parent, name] = SplitPath(path);
  shared_->RemoveTree(shared_->Find(parent), std::string(name));
  return absl::OkStatus();
}

std::string MemoryStorage::Describe(std::string_view path) const { return Name(path); }

}  // namespace tessera::ckpt
