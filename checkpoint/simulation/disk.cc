#include "checkpoint/simulation/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/simulation/faults.h"
#include "checkpoint/simulation/scheduler.h"

namespace tessera::simulation {

namespace fs = std::filesystem;

Disk& Disk::Get() {
  static auto* const disk = new Disk;
  return *disk;
}

void Disk::Begin(const std::string& root, const std::vector<std::string>& folders,
                 const Options& options) {
  root_ = root;
  options_ = options;
  fs::remove_all(root);
  for (const std::string& folder : folders) {
    fs::create_directories(absl::StrCat(root, "/", folder));
  }
  files_ = std::make_unique<DurableFiles>(root);
}

void Disk::LosePower(uint64_t seed) {
  const Uninterrupted uninterrupted;
  const DurableFiles::Live live = files_->Look();
  std::set<DurableFiles::Doubt> survivors;
  // By the order in which they are found: numbers of nodes differ from run to run. A rename is
  // atomic.
  std::map<std::pair<DurableFiles::NodeId, bool>, uint64_t> numbers;
  const uint64_t mode = Hash(seed, 0) % 4;  // nothing, everything, or some survive
  for (const DurableFiles::Doubt& doubt : files_->FindDoubts(live)) {
    const auto key = std::pair(files_->NodeOf(live, doubt), doubt.name.has_value());
    const uint64_t number = numbers.emplace(key, numbers.size() + 1).first->second;
    if (mode == 0 || (mode > 1 && Hash(seed, number) % 2 == 0)) survivors.insert(doubt);
  }
  using Lost = DurableFiles::Lost;
  Lost lost = Hash(seed, 0, 1) % 2 == 0 ? Lost::kZeros : Lost::kDurable;
  if (Hash(seed, 0, 2) % 2 == 0) lost = Lost::kTorn;
  const FileImage image = files_->MakeImage(live, survivors, lost, Hash(seed, 0, 3));
  files_ = nullptr;
  fs::remove_all(root_);
  fs::create_directories(root_);
  for (const auto& [name, contents] : image) {
    const std::string path = absl::StrCat(root_, "/", name);
    if (name.ends_with('/')) {
      fs::create_directories(path);
    } else {
      std::ofstream(path, std::ios::binary) << contents;
    }
  }
  files_ = std::make_unique<DurableFiles>(root_);
}

void Disk::CloseFilesOf(int process) {
  const Uninterrupted uninterrupted;
  std::vector<int> fds;
  for (const auto& [fd, file] : open_) {
    if (file.process == process) fds.push_back(fd);
  }
  for (const int fd : fds) close(fd);
}

std::optional<std::string> Disk::NameOf(int directory, const char* path) const {
  if (root_.empty() || path == nullptr) return std::nullopt;
  const std::string name = path;
  if (name.starts_with('/')) {
    if (!name.starts_with(root_ + "/")) return std::nullopt;
    return name.substr(root_.size() + 1);
  }
  const auto folder = open_.find(directory);
  if (folder == open_.end()) return std::nullopt;
  return name == "." || name.empty() ? folder->second.name
                                     : absl::StrCat(folder->second.name, "/", name);
}

std::optional<std::string> Disk::NameOf(int fd) const {
  const auto file = open_.find(fd);
  return file == open_.end() ? std::nullopt : std::optional(file->second.name);
}

void Disk::Opened(int fd, std::string name) {
  open_[fd] = {.process = Scheduler::Get().current().process, .name = std::move(name)};
}

void Disk::Synced(int fd) {
  const Uninterrupted uninterrupted;
  files_->MakeDurable(fd);
}

uint64_t Disk::FreeBytes() const {
  const Uninterrupted uninterrupted;
  uint64_t used = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(root_, error)) {
    used += entry.is_regular_file(error) ? entry.file_size(error) : 0;
  }
  return used >= options_.capacity_bytes ? 0 : options_.capacity_bytes - used;
}

}  // namespace tessera::simulation
