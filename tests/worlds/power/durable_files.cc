#include "tests/worlds/power/durable_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

std::string FdPath(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

std::string ReadWhole(int fd) {
  // The descriptor may be open for writing only.
  const int readable = open(FdPath(fd).c_str(), O_RDONLY | O_CLOEXEC);
  std::string contents;
  char buffer[1 << 16];
  for (ssize_t n; readable >= 0 && (n = read(readable, buffer, sizeof(buffer))) > 0;) {
    contents.append(buffer, n);
  }
  if (readable >= 0) close(readable);
  return contents;
}

template <typename Map>
typename Map::mapped_type Find(const Map& map, const typename Map::key_type& key) {
  const auto at = map.find(key);
  return at == map.end() ? typename Map::mapped_type() : at->second;
}

}  // namespace

DurableFiles::DurableFiles(const std::string& root)
    : root_(std::filesystem::canonical(root).string()) {
  root_id_ = *Hold(root_);
  WalkLive([&](const NodeId& id, const std::string&, bool is_directory) {
    if (is_directory) {
      durable_entries_[id] = LiveEntries(held_[id]);
    } else {
      durable_contents_[id] = ReadWhole(held_[id]);
    }
  });
}

DurableFiles::~DurableFiles() {
  for (const auto& [id, fd] : held_) close(fd);
}

void DurableFiles::NoteChange(const std::string& path, int machine) {
  const size_t slash = path.rfind('/');
  const std::string parent = slash == path.npos ? "" : path.substr(0, slash);
  if (const auto id = Hold(absl::StrCat(root_, "/", parent))) {
    changed_by_[{*id, path.substr(slash == path.npos ? 0 : slash + 1)}] = machine;
  }
}

std::optional<DurableFiles::NodeId> DurableFiles::Hold(const std::string& path) {
  const int fd = open(path.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW);
  return fd < 0 ? std::nullopt : HoldFd(fd);
}

std::optional<DurableFiles::NodeId> DurableFiles::HoldFd(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return std::nullopt;
  const NodeId id = {info.st_dev, info.st_ino};
  if (!held_.emplace(id, fd).second) close(fd);
  if (S_ISDIR(info.st_mode)) directories_.insert(id);
  return id;
}

DurableFiles::Entries DurableFiles::LiveEntries(int fd) {
  Entries entries;
  DIR* const stream = opendir(FdPath(fd).c_str());
  if (stream == nullptr) return entries;
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const int child = openat(dirfd(stream), name.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (child < 0) continue;  // deleted meanwhile
    if (const auto id = HoldFd(child)) entries[name] = *id;
  }
  closedir(stream);
  return entries;
}

template <typename Function>
void DurableFiles::WalkLive(const Function& function) {
  std::vector<std::pair<NodeId, std::string>> left = {{root_id_, ""}};
  while (!left.empty()) {
    const auto [id, path] = left.back();
    left.pop_back();
    const bool is_directory = directories_.contains(id);
    function(id, path, is_directory);
    if (!is_directory) continue;
    for (const auto& [name, child] : LiveEntries(held_[id])) {
      left.emplace_back(child, absl::StrCat(path, path.empty() ? "" : "/", name));
    }
  }
}

void DurableFiles::MakeDurable(int fd, int machine) {
  const auto id = HoldFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!id) return;
  if (!directories_.contains(*id)) {
    durable_contents_[*id] = ReadWhole(fd);
    return;
  }
  const Entries live = LiveEntries(fd);
  Entries& durable = durable_entries_[*id];
  Entries names = durable;
  names.insert(live.begin(), live.end());
  for (const auto& [name, unused] : names) {
    const auto changer = changed_by_.find({*id, name});
    const bool is_ours =
        machine == kEveryMachine || changer == changed_by_.end() || changer->second == machine;
    if (!is_ours) continue;
    const auto at = live.find(name);
    if (at == live.end()) {
      durable.erase(name);
    } else {
      durable[name] = at->second;
    }
  }
}

DurableFiles::Live DurableFiles::Look() {
  Live live;
  WalkLive([&](const NodeId& id, const std::string&, bool is_directory) {
    if (is_directory) live.entries[id] = LiveEntries(held_[id]);
  });
  for (const auto& [id, fd] : held_) {
    if (!directories_.contains(id)) live.contents[id] = ReadWhole(fd);
  }
  return live;
}

std::vector<DurableFiles::Doubt> DurableFiles::FindDoubts(const Live& live) const {
  std::set<Doubt> doubts;
  for (const NodeId& id : directories_) {
    const Entries durable = Find(durable_entries_, id), now = Find(live.entries, id);
    for (const auto& [name, child] : durable) {
      if (Find(now, name) != child) doubts.insert({id, name});
    }
    for (const auto& [name, child] : now) {
      if (Find(durable, name) != child) doubts.insert({id, name});
    }
  }
  for (const auto& [id, contents] : live.contents) {
    if (Find(durable_contents_, id) != contents) doubts.insert({id, std::nullopt});
  }
  return {doubts.begin(), doubts.end()};
}

DurableFiles::NodeId DurableFiles::NodeOf(const Live& live, const Doubt& doubt) const {
  if (!doubt.name.has_value()) return doubt.node;
  const NodeId now = Find(Find(live.entries, doubt.node), *doubt.name);
  return now != NodeId() ? now : Find(Find(durable_entries_, doubt.node), *doubt.name);
}

struct DurableFiles::Loss {
  const Live& live;
  const std::set<Doubt>& survivors;
  const Lost lost;
  const uint64_t tear;
};

FileImage DurableFiles::MakeImage(const Live& live, const std::set<Doubt>& survivors, Lost lost,
                                  uint64_t tear) const {
  FileImage image;
  AddToImage({live, survivors, lost, tear}, root_id_, "", image);
  return image;
}

void DurableFiles::AddToImage(const Loss& loss, const NodeId& id, const std::string& path,
                              FileImage& image) const {
  if (!directories_.contains(id)) {
    const std::string live = Find(loss.live.contents, id);
    std::string contents = Find(durable_contents_, id);
    if (loss.survivors.contains({id, std::nullopt})) {
      contents = live;
    } else if (loss.lost == Lost::kZeros) {
      contents.resize(std::max(contents.size(), live.size()), '\0');
    } else if (loss.lost == Lost::kTorn) {
      const size_t size = loss.tear % (live.size() + 1);
      contents.replace(0, size, live, 0, size);
    }
    image[path] = std::move(contents);
    return;
  }
  if (!path.empty()) image[path + "/"] = "";
  const Entries durable = Find(durable_entries_, id), now = Find(loss.live.entries, id);
  Entries entries = durable;
  for (const auto& [name, child] : now) entries.emplace(name, child);
  for (const auto& [name, unused] : entries) {
    const NodeId child = Find(loss.survivors.contains({id, name}) ? now : durable, name);
    if (child == NodeId()) continue;
    AddToImage(loss, child, absl::StrCat(path, path.empty() ? "" : "/", name), image);
  }
}

}  // namespace tessera
