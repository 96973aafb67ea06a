#include "checkpoint/replicas/replica_storage.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/replicas/replicas.pb.h"
#include "checkpoint/scan/scan.h"
#include "storage/aligned_buffer.h"
#include "storage/checks.h"

namespace tessera::ckpt {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{4} << 20;

// The blocks of one rank's files, in the order in which they are sent.
class Blocks {
 public:
  explicit Blocks(const RankFiles& files) : files_(files) {}

  struct Block {
    const HeldFile* file = nullptr;
    uint64_t begin = 0;
    uint64_t size = 0;
    bool ends_file() const { return begin + size == file->size_bytes(); }
  };

  // Returns null if there are no more.
  const Block* Next() {
    if (block_.file != nullptr && !block_.ends_file()) {
      block_.begin += block_.size;
    } else {
      // Messages are never empty.
      while (next_ < files_.files_size() && files_.files(next_).size_bytes() == 0) ++next_;
      if (next_ == files_.files_size()) return nullptr;
      block_ = {.file = &files_.files(next_++)};
    }
    block_.size = std::min(kBlockBytes, block_.file->size_bytes() - block_.begin);
    return &block_;
  }

 private:
  const RankFiles& files_;
  int next_ = 0;
  Block block_;
};

// One side of the transfer of a rank's files. After an error of the folder, it keeps the error and
// continues with messages of the same sizes, because the other side waits for them.
class Transfer {
 public:
  Transfer(Storage& folder, const std::string& directory, const RankFiles& files, int peer)
      : folder_(folder), directory_(directory), blocks_(files), peer_(peer) {}

  absl::Status Allocate() {
    TESSERA_ASSIGN_OR_RETURN(buffer_, AlignedBuffer::Allocate(kBlockBytes));
    return absl::OkStatus();
  }

  const absl::Status& status() const { return status_; }

 protected:
  std::string PathOf(const Blocks::Block& block) const {
    return JoinPath(directory_, block.file->name());
  }

  Storage& folder_;
  const std::string& directory_;
  Blocks blocks_;
  const int peer_;
  AlignedBuffer buffer_;
  absl::Status status_;
};

// Sends this rank's files.
class Sender : public Transfer {
 public:
  using Transfer::Transfer;

  // Returns null at the end.
  std::unique_ptr<PendingMessage> SendNext(ProcessGroup& group) {
    const Blocks::Block* const block = blocks_.Next();
    if (block == nullptr) return nullptr;
    const std::span<std::byte> data = buffer_.span().first(block->size);
    if (status_.ok()) status_ = Read(*block, data);
    return group.StartSend(data, peer_);
  }

 private:
  absl::Status Read(const Blocks::Block& block, std::span<std::byte> data) {
    if (block.begin == 0) {
      TESSERA_ASSIGN_OR_RETURN(file_, folder_.Open(PathOf(block)));
    }
    return file_->ReadAt(block.begin, data);
  }

  std::unique_ptr<ReadableFile> file_;
};

// Receives the files of one rank, and writes them.
class Receiver : public Transfer {
 public:
  using Transfer::Transfer;

  // Returns false at the end.
  bool ReceiveNext(ProcessGroup& group) {
    block_ = blocks_.Next();
    if (block_ == nullptr) return false;
    pending_ = group.StartReceive(buffer_.span().first(block_->size), peer_);
    return true;
  }

  // Receives the block and writes it. Returns errors of the group alone.
  absl::Status Take(absl::Duration timeout) {
    if (block_ == nullptr) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(std::exchange(pending_, nullptr)->Wait(timeout));
    if (status_.ok()) status_ = Write(*block_, buffer_.span().first(block_->size));
    return absl::OkStatus();
  }

 private:
  absl::Status Write(const Blocks::Block& block, std::span<const std::byte> data) {
    if (block.begin == 0) {
      TESSERA_ASSIGN_OR_RETURN(file_, folder_.Create(PathOf(block), block.file->size_bytes()));
    }
    TESSERA_RETURN_IF_ERROR(file_->WriteAt(block.begin, data));
    return block.ends_file() ? file_->Close() : absl::OkStatus();
  }

  const Blocks::Block* block_ = nullptr;
  std::unique_ptr<PendingMessage> pending_;
  std::unique_ptr<WritableFile> file_;
};

// Exchanges blocks: every rank sends one and receives one from each of its sources, writes them,
// and goes on. Every transfer that a rank waits for was begun before its own wait.
absl::Status ExchangeFiles(Storage& folder, const std::string& directory, const SpreadPlan& plan,
                           const Hosts& hosts, ProcessGroup& group, absl::Duration timeout) {
  std::deque<Receiver> receivers;
  std::optional<Sender> sender;
  absl::Status ready;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::optional<int> peer = hosts.peer(rank);
    if (peer == group.rank()) {
      ready.Update(receivers.emplace_back(folder, directory, plan.ranks(rank), rank).Allocate());
    }
    if (peer.has_value() && rank == group.rank()) {
      ready.Update(sender.emplace(folder, directory, plan.ranks(rank), *peer).Allocate());
    }
  }
  TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group, ready, timeout));
  const auto exchange = [&]() -> absl::Status {
    bool more = true;
    while (more) {
      more = false;
      for (Receiver& receiver : receivers) more |= receiver.ReceiveNext(group);
      const std::unique_ptr<PendingMessage> sent =
          sender.has_value() ? sender->SendNext(group) : nullptr;
      more |= sent != nullptr;
      for (Receiver& receiver : receivers) TESSERA_RETURN_IF_ERROR(receiver.Take(timeout));
      if (sent != nullptr) TESSERA_RETURN_IF_ERROR(sent->Wait(timeout));
    }
    return absl::OkStatus();
  };
  const absl::Status exchanged = exchange();
  if (!exchanged.ok()) return AbandonGroup(group, exchanged);
  absl::Status status = sender.has_value() ? sender->status() : absl::OkStatus();
  for (const Receiver& receiver : receivers) status.Update(receiver.status());
  return AgreeOnStatus(group, status, timeout);
}

// Reads back what was received, and compares it with the manifest's checksums. The previous replica
// is deleted only if the copies are intact.
absl::Status VerifyCopies(Storage& folder, const std::string& directory, const SpreadPlan& plan,
                          const Hosts& hosts, int rank) {
  TESSERA_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(plan.manifest()));
  std::set<std::string> received;
  for (int source = 0; source < plan.ranks_size(); ++source) {
    if (hosts.peer(source) != rank) continue;
    for (const HeldFile& file : plan.ranks(source).files()) received.insert(file.name());
  }
  Scanner scanner(folder, directory, manifest, {.io_threads = 1});
  std::vector<uint32_t> files;
  for (int f = 0; f < manifest.files_size(); ++f) {
    if (received.contains(manifest.files(f).path())) files.push_back(static_cast<uint32_t>(f));
  }
  TESSERA_RETURN_IF_ERROR(scanner.Open(files));
  return scanner.Run(scanner.WholeFiles(), OnlyCheck);
}

}  // namespace

bool IsReplicasName(std::string_view name) {
  return name.size() == kReplicasDigits && name.find_first_not_of("0123456789abcdef") == name.npos;
}

absl::Status ReplicaStorage::Begin(std::string_view directory) {
  // Several threads create the files of one replica.
  const MutexLock beginning(&begin_mutex_);
  {
    const MutexLock lock(&mutex_);
    if (directory_ == directory) return absl::OkStatus();
  }
  // The remains of a replica that failed would take the room of this one.
  TESSERA_RETURN_IF_ERROR(DeleteOthers(std::string(directory)));
  TESSERA_RETURN_IF_ERROR(base().MakeDirectory(directory));
  const MutexLock lock(&mutex_);
  directory_ = directory;
  written_.clear();
  committed_.clear();
  return absl::OkStatus();
}

absl::Status ReplicaStorage::MakeDirectory(std::string_view path) {
  {
    const MutexLock lock(&mutex_);
    directory_.clear();
  }
  return Begin(path);
}

absl::StatusOr<std::unique_ptr<WritableFile>> ReplicaStorage::Create(std::string_view path,
                                                                     uint64_t size_hint_bytes) {
  const auto [directory, name] = SplitPath(path);
  TESSERA_RETURN_IF_ERROR(Begin(directory));
  const MutexLock lock(&mutex_);
  written_.emplace(name);
  return base().Create(path, size_hint_bytes);
}

absl::StatusOr<std::string> ReplicaStorage::Write(std::string_view path, std::string_view contents,
                                                  const WriteCondition& condition) {
  TESSERA_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(contents));
  {
    const MutexLock lock(&mutex_);
    committed_.clear();
    for (const DataFile& file : manifest.files()) committed_.insert(file.path());
  }
  return base().Write(path, contents, condition);
}

absl::StatusOr<std::vector<std::string>> ReplicaStorage::List(std::string_view path) {
  absl::StatusOr<std::vector<std::string>> names = base().List(path);
  const MutexLock lock(&mutex_);
  if (!names.ok() || path != directory_) return names;
  std::set<std::string> all(names->begin(), names->end());
  for (const std::string& name : committed_) {
    if (!written_.contains(name)) all.insert(name);
  }
  return std::vector<std::string>(all.begin(), all.end());
}

absl::Status ReplicaStorage::Keep(std::string directory) {
  {
    const MutexLock lock(&mutex_);
    kept_ = std::move(directory);
  }
  return DeleteOthers("");
}

absl::Status ReplicaStorage::DeleteOthers(const std::string& also_kept) {
  if (lock_ == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(lock_->Confirm());
  std::vector<std::string> kept = {also_kept};
  {
    const MutexLock lock(&mutex_);
    kept.push_back(kept_);
  }
  const auto is_kept = [&](const std::string& path) {
    return std::ranges::any_of(kept, [&](const std::string& directory) {
      return directory == path || directory.starts_with(path + "/");
    });
  };
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> runs, ListFolders(base(), ""));
  for (const std::string& run : runs) {
    if (!IsReplicasName(run)) continue;
    if (!is_kept(run)) {
      TESSERA_RETURN_IF_ERROR(base().DeleteTree(run));
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListFolders(base(), run));
    for (const std::string& step : steps) {
      const std::string directory = JoinPath(run, step);
      if (!is_kept(directory)) TESSERA_RETURN_IF_ERROR(base().DeleteTree(directory));
    }
  }
  return absl::OkStatus();
}

absl::Status ReplicaStorage::Spread(const std::string& directory, const Hosts& hosts,
                                    ProcessGroup& group, absl::Duration timeout) {
  // A rank that has written no file may receive some, or write the manifest.
  absl::Status status = Begin(directory);
  RankFiles mine;
  {
    const MutexLock lock(&mutex_);
    for (const std::string& name : written_) mine.add_files()->set_name(name);
    committed_.clear();
  }
  for (HeldFile& held : *mine.mutable_files()) {
    const absl::StatusOr<std::unique_ptr<ReadableFile>> file =
        base().Open(JoinPath(directory, held.name()));
    status.Update(file.status());
    if (file.ok()) held.set_size_bytes((*file)->size_bytes());
  }
  const std::string manifest_path = JoinPath(directory, kManifestFileName);
  const Combine describe =
      [&](const std::vector<std::string>& ranks) -> absl::StatusOr<std::string> {
    SpreadPlan plan;
    TESSERA_ASSIGN_OR_RETURN(*plan.mutable_manifest(),
                             ReadAll(base(), manifest_path, kMaxManifestBytes));
    std::set<std::string> written;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      RankFiles& files = *plan.add_ranks();
      TESSERA_ASSIGN_OR_RETURN(files, MessageFrom<RankFiles>(rank, ranks[rank]));
      for (const HeldFile& file : files.files()) written.insert(file.name());
    }
    TESSERA_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(plan.manifest()));
    for (const DataFile& file : manifest.files()) {
      if (written.contains(file.path())) continue;
      return absl::AbortedError(absl::StrCat(file.path(), " was not written by any rank"));
    }
    return plan.SerializeAsString();
  };
  TESSERA_ASSIGN_OR_RETURN(
      const std::string bytes,
      Agree(group, status.ok() ? absl::StatusOr<std::string>(mine.SerializeAsString()) : status,
            describe, timeout));
  TESSERA_ASSIGN_OR_RETURN(const auto plan, AnswerFrom<SpreadPlan>(group, bytes));
  if (plan.ranks_size() != group.size()) return AbandonGroup(group, BadMessageFrom(0));
  TESSERA_RETURN_IF_ERROR(ExchangeFiles(base(), directory, plan, hosts, group, timeout));
  status = VerifyCopies(base(), directory, plan, hosts, group.rank());
  if (status.ok() && lock_ != nullptr && group.rank() != 0) {
    status = base().Write(manifest_path, plan.manifest(), {}).status();
  }
  TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group, status, timeout));
  // Every host has all of it: the one before is not needed any more.
  return AgreeOnStatus(group, Keep(directory), timeout);
}

}  // namespace tessera::ckpt
