#include "base/power_loss.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file_calls.h"
#include "base/mutex.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int kEveryMachine = -1;
thread_local int this_machine = kEveryMachine;

// Number of random choices before each sync or rename.
constexpr int kRandomChoices = 8;

using NodeId = std::pair<dev_t, ino_t>;
using Entries = std::map<std::string, NodeId>;

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

// What was done to the files, and what a loss of power could have made of them.
class Recording {
 public:
  Recording(const PowerLossScenario& scenario, const std::string& root, const std::string* dropped)
      : scenario_(scenario), root_(fs::canonical(root).string()), dropped_(dropped) {
    root_id_ = *Hold(root_);
    WalkLive([&](const NodeId& id, const std::string&, bool is_directory) {
      if (is_directory) {
        durable_entries_[id] = LiveEntries(held_[id]);
      } else {
        durable_contents_[id] = ReadWhole(held_[id]);
      }
    });
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  ~Recording() {
    for (const auto& [id, fd] : held_) close(fd);
  }

  int Sync(int fd, absl::FunctionRef<int()> call) {
    const std::optional<std::string> name = NameOf(fd);
    if (!name.has_value()) return call();  // outside the root
    LookAtPossibleImages(false);
    const int count = ++counts_[*name];
    std::string numbered = count == 1 ? *name : absl::StrCat(*name, "#", count);
    const bool drop = dropped_ != nullptr && *dropped_ == numbered;
    syncs_.push_back(std::move(numbered));
    if (drop) return 0;
    const int error = call();
    if (error == 0) MakeDurable(fd);
    return error;
  }

  int Rename(absl::FunctionRef<int()> call) {
    LookAtPossibleImages(false);
    return call();
  }

  void NoteChange(const std::string& path) {
    const size_t slash = path.rfind('/');
    const std::string parent = slash == path.npos ? "" : path.substr(0, slash);
    if (const auto id = Hold(absl::StrCat(root_, "/", parent))) {
      changed_by_[{*id, path.substr(slash == path.npos ? 0 : slash + 1)}] = this_machine;
    }
  }

  void Finish(const absl::Status& status) {
    if (!status.ok()) {
      Problem(absl::StrCat("the code under test failed: ", status.ToString()));
      return;
    }
    LookAtPossibleImages(true);
  }

  const std::string& problem() const { return problem_; }
  const std::vector<std::string>& syncs() const { return syncs_; }

 private:
  // A file or an entry whose state is either the durable or the current one.
  struct Doubt {
    NodeId node;
    std::optional<std::string> name;  // of a directory's entry; nullopt: a file's contents
    bool operator<(const Doubt& other) const {
      return std::tie(node, name) < std::tie(other.node, other.name);
    }
  };

  // Keeps the node open, so that its number is not reused.
  std::optional<NodeId> Hold(const std::string& path) {
    const int fd = open(path.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? std::nullopt : HoldFd(fd);
  }
  std::optional<NodeId> HoldFd(int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0) return std::nullopt;
    const NodeId id = {info.st_dev, info.st_ino};
    if (!held_.emplace(id, fd).second) close(fd);
    if (S_ISDIR(info.st_mode)) directories_.insert(id);
    return id;
  }

  // The path below the root; nullopt for other files. Names lose their random part: that of a
  // temporary file, and that before the extension.
  std::optional<std::string> NameOf(int fd) const {
    std::error_code error;
    std::string path = fs::read_symlink(FdPath(fd), error).string();
    if (error || !(path == root_ || path.starts_with(root_ + "/"))) return std::nullopt;
    path = path == root_ ? "" : path.substr(root_.size() + 1);
    static const std::regex temporary("\\.tmp-[0-9a-f]{8,16}");
    static const std::regex attempt("-[0-9a-f]{8}(\\.[a-z]+)$");
    return std::regex_replace(std::regex_replace(path, temporary, ".tmp"), attempt, "$1");
  }

  Entries LiveEntries(int fd) {
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
  void WalkLive(const Function& function) {
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

  void MakeDurable(int fd) {
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
      const bool is_ours = this_machine == kEveryMachine || changer == changed_by_.end() ||
                           changer->second == this_machine;
      if (!is_ours) continue;
      const auto at = live.find(name);
      if (at == live.end()) {
        durable.erase(name);
      } else {
        durable[name] = at->second;
      }
    }
  }

  // The current state.
  struct Live {
    std::map<NodeId, Entries> entries;
    std::map<NodeId, std::string> contents;
  };

  Live LookAtLive() {
    Live live;
    WalkLive([&](const NodeId& id, const std::string&, bool is_directory) {
      if (is_directory) live.entries[id] = LiveEntries(held_[id]);
    });
    for (const auto& [id, fd] : held_) {
      if (!directories_.contains(id)) live.contents[id] = ReadWhole(fd);
    }
    return live;
  }

  std::vector<Doubt> FindDoubts(const Live& live) {
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

  template <typename Map>
  static typename Map::mapped_type Find(const Map& map, const typename Map::key_type& key) {
    const auto at = map.find(key);
    return at == map.end() ? typename Map::mapped_type() : at->second;
  }

  // The files, with the current state of what is in `survivors` and the durable state of the rest.
  // `zeros`: lost contents have their length, but not their bytes.
  FileImage MakeImage(const Live& live, const std::set<Doubt>& survivors, bool zeros) {
    FileImage image;
    AddToImage(live, survivors, zeros, root_id_, "", image);
    return image;
  }

  void AddToImage(const Live& live, const std::set<Doubt>& survivors, bool zeros, const NodeId& id,
                  const std::string& path, FileImage& image) {
    if (!directories_.contains(id)) {
      const bool survived = survivors.contains({id, std::nullopt});
      std::string contents = survived ? Find(live.contents, id) : Find(durable_contents_, id);
      if (!survived && zeros) {
        contents.resize(std::max(contents.size(), Find(live.contents, id).size()), '\0');
      }
      image[path] = std::move(contents);
      return;
    }
    if (!path.empty()) image[path + "/"] = "";
    const Entries durable = Find(durable_entries_, id), now = Find(live.entries, id);
    Entries entries = durable;
    for (const auto& [name, child] : now) entries.emplace(name, child);
    for (const auto& [name, unused] : entries) {
      const NodeId child = Find(survivors.contains({id, name}) ? now : durable, name);
      if (child == NodeId()) continue;
      AddToImage(live, survivors, zeros, child, absl::StrCat(path, path.empty() ? "" : "/", name),
                 image);
    }
  }

  void LookAtPossibleImages(bool finished) {
    if (!problem_.empty()) return;
    const Live live = LookAtLive();
    const std::vector<Doubt> doubts = FindDoubts(live);
    const std::set<Doubt> all(doubts.begin(), doubts.end());
    Check(MakeImage(live, {}, false), finished);
    Check(MakeImage(live, {}, true), finished);
    Check(MakeImage(live, all, false), finished);
    for (const Doubt& doubt : doubts) {
      Check(MakeImage(live, {doubt}, false), finished);
      std::set<Doubt> but_one = all;
      but_one.erase(doubt);
      Check(MakeImage(live, but_one, false), finished);
      Check(MakeImage(live, but_one, true), finished);
    }
    for (int i = 0; doubts.size() > 2 && i < kRandomChoices; ++i) {
      std::set<Doubt> some;
      for (const Doubt& doubt : doubts) {
        if ((random_() & 1) != 0) some.insert(doubt);
      }
      Check(MakeImage(live, some, false), finished);
    }
  }

  void Check(const FileImage& image, bool finished) {
    if (!problem_.empty()) return;
    const std::string wrong = scenario_.check(image, finished);
    if (wrong.empty()) return;
    std::vector<std::string> names;
    for (const auto& [name, contents] : image) names.push_back(name);
    const std::string when =
        finished ? "after the end" : absl::StrCat("after ", syncs_.size(), " syncs");
    Problem(absl::StrCat(when, ": ", wrong, " (files: ", absl::StrJoin(names, " "), ")"));
  }

  void Problem(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  const PowerLossScenario& scenario_;
  const std::string root_;
  const std::string* const dropped_;
  NodeId root_id_;
  std::map<NodeId, int> held_;
  std::set<NodeId> directories_;
  std::map<NodeId, std::string> durable_contents_;
  std::map<NodeId, Entries> durable_entries_;
  std::map<std::pair<NodeId, std::string>, int> changed_by_;
  std::map<std::string, int> counts_;
  std::vector<std::string> syncs_;
  std::mt19937_64 random_{12345};
  std::string problem_;
};

// Records what this process does to its files, one call at a time.
class Recorder final : public FileCallInterceptor {
 public:
  Recorder(const PowerLossScenario& scenario, const std::string& root, const std::string* dropped)
      : recording_(scenario, root, dropped) {
    SetFileCallInterceptor(this);
  }
  ~Recorder() override { SetFileCallInterceptor(nullptr); }

  int Sync(int fd, absl::FunctionRef<int()> call) override {
    const MutexLock lock(&mutex_);
    return recording_.Sync(fd, call);
  }
  int Rename(absl::FunctionRef<int()> call) override {
    const MutexLock lock(&mutex_);
    return recording_.Rename(call);
  }
  void NoteChange(const std::string& path) {
    const MutexLock lock(&mutex_);
    recording_.NoteChange(path);
  }
  void Finish(const absl::Status& status) {
    const MutexLock lock(&mutex_);
    recording_.Finish(status);
  }
  std::string problem() const {
    const MutexLock lock(&mutex_);
    return recording_.problem();
  }
  std::vector<std::string> syncs() const {
    const MutexLock lock(&mutex_);
    return recording_.syncs();
  }

 private:
  mutable Mutex mutex_;
  Recording recording_ ABSL_GUARDED_BY(mutex_);
};

Recorder* recorder = nullptr;  // of the running scenario

void Empty(const std::string& root) {
  fs::remove_all(root);
  fs::create_directories(root);
}

}  // namespace

std::string RunWithPowerLoss(const PowerLossScenario& scenario, const std::string& root,
                             const std::string* dropped, std::vector<std::string>* syncs) {
  Empty(root);
  if (scenario.prepare) scenario.prepare(root);
  Recorder current(scenario, root, dropped);
  recorder = &current;
  const absl::Status status = scenario.run(root);
  recorder = nullptr;
  current.Finish(status);
  if (syncs != nullptr) *syncs = current.syncs();
  return current.problem();
}

std::string CheckEverySync(const PowerLossScenario& scenario, const std::string& root,
                           std::vector<std::string>* syncs) {
  std::vector<std::string> names;
  std::string problems = RunWithPowerLoss(scenario, root, nullptr, &names);
  if (!problems.empty()) return absl::StrCat("with every sync: ", problems, "\n");
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (!RunWithPowerLoss(scenario, root, &name, nullptr).empty()) continue;
    absl::StrAppend(&problems, "nothing is wrong without the sync of \"", name, "\"\n");
  }
  if (syncs != nullptr) *syncs = std::move(names);
  return problems;
}

ScopedMachine::ScopedMachine(int machine) : previous_(std::exchange(this_machine, machine)) {}
ScopedMachine::~ScopedMachine() { this_machine = previous_; }

void NoteChange(const std::string& path) {
  if (recorder != nullptr) recorder->NoteChange(path);
}

}  // namespace tessera
