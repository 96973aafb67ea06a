#include "storage/testing/fault_storage.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "storage/checks.h"

namespace tessera {
namespace {

constexpr const char* kKindNames[] = {
    "Create",        "WriteAt",       "Sync", "Close",  "Open",       "ReadAt",    "Rename",
    "MakeDirectory", "SyncDirectory", "List", "Delete", "DeleteTree", "FreeBytes", "Replace"};

bool IsAtOrBelow(std::string_view path, std::string_view tree) {
  return path.substr(0, tree.size()) == tree &&
         (path.size() == tree.size() || path[tree.size()] == '/');
}

}  // namespace

std::string ToString(const Operation& operation) {
  std::string text =
      absl::StrCat(kKindNames[static_cast<int>(operation.kind)], " ", operation.path);
  if (!operation.to_path.empty()) absl::StrAppend(&text, " to ", operation.to_path);
  if (operation.kind == OperationKind::kWriteAt || operation.kind == OperationKind::kReadAt) {
    absl::StrAppend(&text, " [", operation.offset_bytes, ", ",
                    operation.offset_bytes + operation.size_bytes, ")");
  }
  return text;
}

std::ostream& operator<<(std::ostream& stream, const Operation& operation) {
  return stream << ToString(operation);
}

class FaultInjectingStorage::Writer final : public WritableFile {
 public:
  Writer(FaultInjectingStorage* storage, std::string path, std::unique_ptr<WritableFile> base)
      : storage_(storage), path_(std::move(path)), base_(std::move(base)) {}

  absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override {
    const Verdict verdict =
        storage_->Arrive({OperationKind::kWriteAt, path_, "", offset_bytes, data.size()});
    if (!verdict.status.ok()) {
      const size_t torn_bytes = std::min<uint64_t>(verdict.torn_bytes, data.size());
      // The caller sees the injected error, whether or not the prefix was written.
      if (torn_bytes > 0) base_->WriteAt(offset_bytes, data.first(torn_bytes)).IgnoreError();
      return verdict.status;
    }
    const uint64_t fits_bytes = storage_->TakeRoom(path_, offset_bytes, offset_bytes + data.size());
    if (fits_bytes >= data.size()) return base_->WriteAt(offset_bytes, data);
    base_->WriteAt(offset_bytes, data.first(fits_bytes)).IgnoreError();
    return NoSpaceError(absl::StrCat("WriteAt ", storage_->Describe(path_),
                                     ": the injected disk is full (", data.size(),
                                     " bytes at offset ", offset_bytes, ")"));
  }

  absl::Status Sync() override {
    TESSERA_RETURN_IF_ERROR(storage_->Arrive({OperationKind::kSync, path_}).status);
    return base_->Sync();
  }

  absl::Status Close() override {
    TESSERA_RETURN_IF_ERROR(storage_->Arrive({OperationKind::kClose, path_}).status);
    return base_->Close();
  }

 private:
  FaultInjectingStorage* const storage_;
  const std::string path_;
  const std::unique_ptr<WritableFile> base_;
};

class FaultInjectingStorage::Reader final : public ReadableFile {
 public:
  Reader(FaultInjectingStorage* storage, std::string path, std::unique_ptr<ReadableFile> base)
      : storage_(storage), path_(std::move(path)), base_(std::move(base)) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    TESSERA_RETURN_IF_ERROR(
        storage_->Arrive({OperationKind::kReadAt, path_, "", offset_bytes, out.size()}).status);
    const uint64_t size_bytes = this->size_bytes();
    if (size_bytes < base_->size_bytes() &&
        (offset_bytes > size_bytes || out.size() > size_bytes - offset_bytes)) {
      return ShortReadStatus(storage_->Describe(path_), offset_bytes, out.size(), size_bytes);
    }
    absl::Status status = base_->ReadAt(offset_bytes, out);
    if (status.ok()) storage_->CorruptRead(path_, offset_bytes, out);
    return status;
  }

  uint64_t size_bytes() const override {
    return storage_->TruncatedSize(path_, base_->size_bytes());
  }

 private:
  FaultInjectingStorage* const storage_;
  const std::string path_;
  const std::unique_ptr<ReadableFile> base_;
};

FaultInjectingStorage::FaultInjectingStorage(Storage& base)
    : ForwardingStorage(base), preferred_write_bytes_(base.Traits().preferred_write_bytes) {}

void FaultInjectingStorage::FailAt(int64_t number, absl::Status status, uint64_t torn_bytes) {
  MutexLock lock(&mutex_);
  faults_.push_back({number, {std::move(status), torn_bytes}});
}

void FaultInjectingStorage::DieAt(int64_t number, uint64_t torn_bytes) {
  MutexLock lock(&mutex_);
  death_ = Fault{number, {absl::UnavailableError("the process has died"), torn_bytes}};
}

void FaultInjectingStorage::FailWhere(std::function<bool(const Operation&)> matches,
                                      absl::Status status) {
  MutexLock lock(&mutex_);
  conditions_.emplace_back(std::move(matches), std::move(status));
}

void FaultInjectingStorage::BeforeEach(std::function<void(const Operation&)> call) {
  FailWhere(
      [call = std::move(call)](const Operation& operation) {
        call(operation);
        return false;
      },
      absl::OkStatus());
}

void FaultInjectingStorage::MisreportRenames(std::function<bool(const Operation&)> matches,
                                             absl::Status status) {
  MutexLock lock(&mutex_);
  misreports_.emplace_back(std::move(matches), std::move(status));
}

void FaultInjectingStorage::SetDiskBytes(uint64_t free_bytes) {
  MutexLock lock(&mutex_);
  free_bytes_ = free_bytes;
  taken_bytes_.clear();
}

void FaultInjectingStorage::CorruptReads(const std::string& path, uint64_t offset_bytes,
                                         std::byte mask, int64_t times) {
  MutexLock lock(&mutex_);
  corruptions_.push_back({path, offset_bytes, mask, times});
}

void FaultInjectingStorage::TruncateReads(const std::string& path, uint64_t size_bytes) {
  MutexLock lock(&mutex_);
  truncations_[path] = size_bytes;
}

void FaultInjectingStorage::ClearFaults() {
  MutexLock lock(&mutex_);
  faults_.clear();
  death_.reset();
  conditions_.clear();
  misreports_.clear();
  free_bytes_.reset();
  preferred_write_bytes_ = base().Traits().preferred_write_bytes;
  taken_bytes_.clear();
  corruptions_.clear();
  truncations_.clear();
}

int64_t FaultInjectingStorage::operation_count() const {
  MutexLock lock(&mutex_);
  return operations_.size();
}

std::vector<Operation> FaultInjectingStorage::operations() const {
  MutexLock lock(&mutex_);
  return operations_;
}

FaultInjectingStorage::Verdict FaultInjectingStorage::Arrive(Operation operation) {
  MutexLock lock(&mutex_);
  const int64_t number = operations_.size();
  Verdict verdict;
  if (death_.has_value() && number >= death_->number) {
    verdict = death_->verdict;
    if (number > death_->number) verdict.torn_bytes = 0;
  }
  for (const Fault& fault : faults_) {
    if (verdict.status.ok() && fault.number == number) verdict = fault.verdict;
  }
  for (const auto& [matches, status] : conditions_) {
    if (verdict.status.ok() && matches(operation)) verdict.status = status;
  }
  if (!verdict.status.ok()) {
    verdict.status = WithMessage(verdict.status,
                                 absl::StrCat(ToString(operation), ": ", verdict.status.message(),
                                              " (injected at operation ", number, ")"));
  }
  operations_.push_back(std::move(operation));
  return verdict;
}

uint64_t FaultInjectingStorage::TakeRoom(const std::string& path, uint64_t begin_bytes,
                                         uint64_t end_bytes) {
  MutexLock lock(&mutex_);
  if (!free_bytes_.has_value()) return end_bytes - begin_bytes;
  // A hole takes space like data, as the reservation of a real file does.
  uint64_t& taken = taken_bytes_[path];
  const uint64_t growth = end_bytes > taken ? end_bytes - taken : 0;
  const uint64_t granted = std::min(growth, *free_bytes_);
  *free_bytes_ -= granted;
  taken += granted;
  const uint64_t fitting_end = std::min(end_bytes, taken);
  return fitting_end > begin_bytes ? fitting_end - begin_bytes : 0;
}

void FaultInjectingStorage::GiveRoomBack(const std::string& path, bool tree) {
  MutexLock lock(&mutex_);
  for (auto it = taken_bytes_.begin(); it != taken_bytes_.end();) {
    if (it->first == path || (tree && IsAtOrBelow(it->first, path))) {
      if (free_bytes_.has_value()) *free_bytes_ += it->second;
      it = taken_bytes_.erase(it);
    } else {
      ++it;
    }
  }
}

void FaultInjectingStorage::CorruptRead(const std::string& path, uint64_t offset_bytes,
                                        std::span<std::byte> out) {
  MutexLock lock(&mutex_);
  for (Corruption& corruption : corruptions_) {
    if (corruption.path != path || corruption.offset_bytes < offset_bytes) continue;
    const uint64_t at = corruption.offset_bytes - offset_bytes;
    if (at < out.size() && corruption.times-- > 0) out[at] ^= corruption.mask;
  }
}

uint64_t FaultInjectingStorage::TruncatedSize(const std::string& path, uint64_t size_bytes) const {
  MutexLock lock(&mutex_);
  const auto found = truncations_.find(path);
  return found == truncations_.end() ? size_bytes : std::min(size_bytes, found->second);
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultInjectingStorage::Create(
    std::string_view path, uint64_t size_hint_bytes) {
  TESSERA_RETURN_IF_ERROR(
      Arrive({OperationKind::kCreate, std::string(path), "", 0, size_hint_bytes}).status);
  GiveRoomBack(std::string(path), /*tree=*/false);
  if (TakeRoom(std::string(path), 0, size_hint_bytes) < size_hint_bytes) {
    GiveRoomBack(std::string(path), /*tree=*/false);
    return NoSpaceError(absl::StrCat("Create ", Describe(path), ": the injected disk is full (",
                                     size_hint_bytes, " bytes needed)"));
  }
  TESSERA_ASSIGN_OR_RETURN(auto file, base().Create(path, size_hint_bytes));
  return std::make_unique<Writer>(this, std::string(path), std::move(file));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultInjectingStorage::Open(std::string_view path) {
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kOpen, std::string(path)}).status);
  TESSERA_ASSIGN_OR_RETURN(auto file, base().Open(path));
  return std::make_unique<Reader>(this, std::string(path), std::move(file));
}

absl::Status FaultInjectingStorage::Rename(std::string_view from, std::string_view to) {
  TESSERA_RETURN_IF_ERROR(
      Arrive({OperationKind::kRename, std::string(from), std::string(to)}).status);
  absl::Status status = base().Rename(from, to);
  if (!status.ok() || from == to) return status;
  GiveRoomBack(std::string(to), /*tree=*/false);
  MutexLock lock(&mutex_);
  std::map<std::string, uint64_t> moved;
  for (const auto& [path, bytes] : taken_bytes_) {
    moved[IsAtOrBelow(path, from) ? absl::StrCat(std::string(to), path.substr(from.size()))
                                  : path] = bytes;
  }
  taken_bytes_ = std::move(moved);
  const Operation operation = {OperationKind::kRename, std::string(from), std::string(to)};
  for (const auto& [matches, misreported] : misreports_) {
    if (matches(operation)) return misreported;
  }
  return status;
}

absl::Status FaultInjectingStorage::Replace(std::string_view from, std::string_view to) {
  TESSERA_RETURN_IF_ERROR(
      Arrive({OperationKind::kReplace, std::string(from), std::string(to)}).status);
  GiveRoomBack(std::string(to), /*tree=*/false);
  return base().Replace(from, to);
}

absl::StatusOr<std::string> FaultInjectingStorage::Write(std::string_view path,
                                                         std::string_view contents,
                                                         const WriteCondition& condition) {
  if (condition.version.empty() || Traits().renames_directories) {
    return Storage::Write(path, contents, condition);
  }
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kReplace, std::string(path)}).status);
  return base().Write(path, contents, condition);
}

absl::StatusOr<VersionedContents> FaultInjectingStorage::Read(std::string_view path,
                                                              uint64_t max_bytes) {
  // The version first: one that is older than the contents replaces nothing.
  const absl::StatusOr<VersionedContents> from_base = base().Read(path, max_bytes);
  TESSERA_ASSIGN_OR_RETURN(VersionedContents found, Storage::Read(path, max_bytes));
  if (from_base.ok()) found.version = from_base->version;
  return found;
}

StorageTraits FaultInjectingStorage::Traits() {
  StorageTraits traits = base().Traits();
  traits.preferred_write_bytes = preferred_write_bytes_;
  if (in_place_alignment_bytes_.has_value()) {
    traits.in_place_alignment_bytes = *in_place_alignment_bytes_;
  }
  return traits;
}

absl::Status FaultInjectingStorage::MakeDirectory(std::string_view path) {
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kMakeDirectory, std::string(path)}).status);
  return base().MakeDirectory(path);
}

absl::Status FaultInjectingStorage::SyncDirectory(std::string_view path) {
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kSyncDirectory, std::string(path)}).status);
  return base().SyncDirectory(path);
}

absl::StatusOr<std::vector<std::string>> FaultInjectingStorage::List(std::string_view path) {
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kList, std::string(path)}).status);
  return base().List(path);
}

absl::Status FaultInjectingStorage::Delete(std::string_view path) {
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kDelete, std::string(path)}).status);
  absl::Status status = base().Delete(path);
  if (status.ok()) GiveRoomBack(std::string(path), /*tree=*/false);
  return status;
}

absl::Status FaultInjectingStorage::DeleteVersion(std::string_view path, std::string_view version) {
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kDelete, std::string(path)}).status);
  return base().DeleteVersion(path, version);
}

absl::Status FaultInjectingStorage::DeleteTree(std::string_view path) {
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kDeleteTree, std::string(path)}).status);
  absl::Status status = base().DeleteTree(path);
  if (status.ok()) GiveRoomBack(std::string(path), /*tree=*/true);
  return status;
}

absl::StatusOr<uint64_t> FaultInjectingStorage::FreeBytes() {
  TESSERA_RETURN_IF_ERROR(Arrive({OperationKind::kFreeBytes, ""}).status);
  {
    MutexLock lock(&mutex_);
    if (free_bytes_.has_value()) return *free_bytes_;
  }
  return base().FreeBytes();
}

}  // namespace tessera
