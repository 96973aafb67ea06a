#ifndef TESSERA_BASE_POWER_LOSS_H_
#define TESSERA_BASE_POWER_LOSS_H_

// For tests: what a loss of power would leave of real files, worked out from the syncs that the
// code under test has really made. With it a test shows that nothing promised is lost, and,
// dropping one sync after the other, that none of them could be left out.
//
// The rules are those of a file system that promises nothing but what POSIX says: a file's contents
// are durable as of the last sync of the file, a directory's names as of the last sync of the
// directory, each independent of all others. Everything else may be lost, or not.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// Files after a restart: path below the root -> contents. Directories end in '/' and have none.
using FileImage = std::map<std::string, std::string>;

struct PowerLossScenario {
  // Puts files below `root` that are durable from the beginning; may be null.
  std::function<void(const std::string& root)> prepare;
  // The code under test, which works below `root`. Each sync that it makes is one that a run of the
  // scenario can be told to drop.
  std::function<absl::Status(const std::string& root)> run;
  // Says what is wrong with files that the power left, "" if nothing. `finished`: run() had
  // returned OK, so that what it promises must be there; else it was at work.
  std::function<std::string(const FileImage& image, bool finished)> check;
};

// Runs the scenario in an empty directory `root`, looks at many possible losses of power before
// each sync and rename, and after the end, and says what `check` found first; "" if nothing. The
// sync named `dropped` is left out; null: none. `syncs` (may be null) receives the name of each:
// the path below the root, "" for the root itself, and "#2" from the second time on.
std::string RunWithPowerLoss(const PowerLossScenario& scenario, const std::string& root,
                             const std::string* dropped, std::vector<std::string>* syncs);

// What must be: nothing is wrong with all syncs, and something with each of them dropped. Returns
// problems, one a line, "" where all is well. `syncs` (may be null) receives the sorted names.
std::string CheckEverySync(const PowerLossScenario& scenario, const std::string& root,
                           std::vector<std::string>* syncs);

// Machines that share a network file system: while one lives, directory syncs of this thread make
// durable what NoteChange() said of the same machine, and what nobody has said anything of.
class ScopedMachine {
 public:
  explicit ScopedMachine(int machine);
  ~ScopedMachine();
  ScopedMachine(const ScopedMachine&) = delete;
  ScopedMachine& operator=(const ScopedMachine&) = delete;

 private:
  const int previous_;
};

// The machine of this thread has created, renamed or deleted `path`, below the root of the scenario
// that runs.
void NoteChange(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_BASE_POWER_LOSS_H_
