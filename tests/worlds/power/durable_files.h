#ifndef TESSERA_TESTS_WORLDS_POWER_DURABLE_FILES_H_
#define TESSERA_TESTS_WORLDS_POWER_DURABLE_FILES_H_

// For tests: real files, what is durable of them, and what a power loss could make of them by the
// rules of power_loss.h.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera {

// Files after a restart: path below the root -> contents. Directories end in '/' and have no
// contents.
using FileImage = std::map<std::string, std::string>;

// Not thread-safe.
class DurableFiles {
 public:
  static constexpr int kEveryMachine = -1;

  using NodeId = std::pair<dev_t, ino_t>;
  using Entries = std::map<std::string, NodeId>;

  // What is below `root` is durable.
  explicit DurableFiles(const std::string& root);
  DurableFiles(const DurableFiles&) = delete;
  DurableFiles& operator=(const DurableFiles&) = delete;
  ~DurableFiles();

  const std::string& root() const { return root_; }

  // The file's contents, or the directory's names as far as `machine` has changed them, are
  // durable.
  void MakeDurable(int fd, int machine = kEveryMachine);
  // The machine has created, renamed or deleted `path`, below the root.
  void NoteChange(const std::string& path, int machine);

  // The current state.
  struct Live {
    std::map<NodeId, Entries> entries;
    std::map<NodeId, std::string> contents;
  };
  Live Look();

  // A file or an entry whose state is either the durable or the current one.
  struct Doubt {
    NodeId node;
    std::optional<std::string> name;  // of a directory's entry; nullopt: a file's contents
    bool operator<(const Doubt& other) const {
      return std::tie(node, name) < std::tie(other.node, other.name);
    }
  };
  std::vector<Doubt> FindDoubts(const Live& live) const;
  // What the entry in doubt names, or the file itself: both names of what was renamed are one's.
  NodeId NodeOf(const Live& live, const Doubt& doubt) const;

  // What becomes of contents that do not survive: they are as they were when they were durable; of
  // their current length, with zeros at the end; or torn, of which a part at the beginning is
  // current and the rest durable.
  enum class Lost { kDurable, kZeros, kTorn };
  // The files, with the current state of what is in `survivors`. `tear` chooses how much of torn
  // contents is current: any number.
  FileImage MakeImage(const Live& live, const std::set<Doubt>& survivors, Lost lost,
                      uint64_t tear = 0) const;

 private:
  // Keeps the node open, so that its number is not reused.
  std::optional<NodeId> Hold(const std::string& path);
  std::optional<NodeId> HoldFd(int fd);
  Entries LiveEntries(int fd);
  template <typename Function>
  void WalkLive(const Function& function);
  struct Loss;
  void AddToImage(const Loss& loss, const NodeId& id, const std::string& path,
                  FileImage& image) const;

  const std::string root_;
  NodeId root_id_;
  std::map<NodeId, int> held_;
  std::set<NodeId> directories_;
  std::map<NodeId, std::string> durable_contents_;
  std::map<NodeId, Entries> durable_entries_;
  std::map<std::pair<NodeId, std::string>, int> changed_by_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_WORLDS_POWER_DURABLE_FILES_H_
