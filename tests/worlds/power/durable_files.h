#ifndef TESSERA_TESTS_WORLDS_POWER_DURABLE_FILES_H_
#define TESSERA_TESTS_WORLDS_POWER_DURABLE_FILES_H_

// Real files of a test, their durable state, and the states after a power loss by the rules of
// power_loss.h.

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

// Tracks the durable state of a folder's files. Not thread-safe.
class DurableFiles {
 public:
  static constexpr int kEveryMachine = -1;

  using NodeId = std::pair<dev_t, ino_t>;
  using Entries = std::map<std::string, NodeId>;

  // Everything below `root` is durable at first.
  explicit DurableFiles(const std::string& root);
  DurableFiles(const DurableFiles&) = delete;
  DurableFiles& operator=(const DurableFiles&) = delete;
  ~DurableFiles();

  const std::string& root() const { return root_; }

  // Makes the contents of a file durable, or the names in a directory as far as `machine` has
  // changed them.
  void MakeDurable(int fd, int machine = kEveryMachine);
  // Records that the machine has created, renamed or deleted `path`, below the root.
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
  // Returns the node that the entry in doubt names, or of the file itself. Both names of a renamed
  // node belong to one node.
  NodeId NodeOf(const Live& live, const Doubt& doubt) const;

  // The fate of contents that do not survive:
  // - kDurable: as they were when they were durable;
  // - kZeros: of their current length, with zeros at the end;
  // - kTorn: a current part at the beginning, and the rest durable.
  enum class Lost { kDurable, kZeros, kTorn };
  // Returns the files, with the current state of the `survivors`. `tear`, any number, chooses how
  // much of torn contents is current.
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
