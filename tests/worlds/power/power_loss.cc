#include "tests/worlds/power/power_loss.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file_calls.h"
#include "base/mutex.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

thread_local int this_machine = DurableFiles::kEveryMachine;

// Number of random choices before each sync or rename.
constexpr int kRandomChoices = 8;

// What was done to the files, and what a loss of power could have made of them.
class Recording {
 public:
  Recording(const PowerLossScenario& scenario, const std::string& root, const std::string* dropped)
      : scenario_(scenario), dropped_(dropped), files_(root) {}

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
    if (error == 0) files_.MakeDurable(fd, this_machine);
    return error;
  }

  int Rename(absl::FunctionRef<int()> call) {
    LookAtPossibleImages(false);
    return call();
  }

  void NoteChange(const std::string& path) { files_.NoteChange(path, this_machine); }

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
  using Doubt = DurableFiles::Doubt;
  using Lost = DurableFiles::Lost;

  // The path below the root; nullopt for other files. Names lose their random part: that of a
  // temporary file or of a directory that is being deleted, and that before the extension.
  std::optional<std::string> NameOf(int fd) const {
    std::error_code error;
    std::string path = fs::read_symlink(absl::StrCat("/proc/self/fd/", fd), error).string();
    const std::string& root = files_.root();
    if (error || !(path == root || path.starts_with(root + "/"))) return std::nullopt;
    path = path == root ? "" : path.substr(root.size() + 1);
    static const std::regex temporary("\\.(tmp|discarded)-[0-9a-f]{8,16}");
    static const std::regex attempt("-[0-9a-f]{8}(\\.[a-z]+)$");
    return std::regex_replace(std::regex_replace(path, attempt, "$1"), temporary, ".$1");
  }

  void LookAtPossibleImages(bool finished) {
    if (!problem_.empty()) return;
    const DurableFiles::Live live = files_.Look();
    const std::vector<Doubt> doubts = files_.FindDoubts(live);
    const std::set<Doubt> all(doubts.begin(), doubts.end());
    for (const Lost lost : {Lost::kDurable, Lost::kZeros, Lost::kTorn}) {
      Check(files_.MakeImage(live, {}, lost, random_()), finished);
    }
    Check(files_.MakeImage(live, all, Lost::kDurable), finished);
    for (const Doubt& doubt : doubts) {
      Check(files_.MakeImage(live, {doubt}, Lost::kDurable), finished);
      std::set<Doubt> but_one = all;
      but_one.erase(doubt);
      for (const Lost lost : {Lost::kDurable, Lost::kZeros, Lost::kTorn}) {
        Check(files_.MakeImage(live, but_one, lost, random_()), finished);
      }
    }
    for (int i = 0; doubts.size() > 2 && i < kRandomChoices; ++i) {
      std::set<Doubt> some;
      for (const Doubt& doubt : doubts) {
        if ((random_() & 1) != 0) some.insert(doubt);
      }
      Check(files_.MakeImage(live, some, Lost::kTorn, random_()), finished);
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
  const std::string* const dropped_;
  DurableFiles files_;
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

Recorder* recorder = nullptr;  // records the running scenario

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
