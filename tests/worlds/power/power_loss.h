#ifndef TESSERA_TESTS_WORLDS_POWER_POWER_LOSS_H_
#define TESSERA_TESTS_WORLDS_POWER_POWER_LOSS_H_

// Simulation of a power loss on real files, from the syncs that the code under test has actually
// made. A test shows that nothing promised is lost and, by dropping one sync after the other, that
// none of them is superfluous.
//
// The model is a file system that guarantees only what POSIX guarantees. A file's contents are
// durable as of the last sync of the file, a directory's names as of the last sync of the
// directory. Each is independent of all others. Everything else may be lost or not, contents also
// in part.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/worlds/power/durable_files.h"

namespace tessera {

struct PowerLossScenario {
  // Creates files below `root` that are durable from the beginning; may be null.
  std::function<void(const std::string& root)> prepare;
  // Runs the code under test, which works below `root`. A run of the scenario can drop each of its
  // syncs.
  std::function<absl::Status(const std::string& root)> run;
  // Returns what is wrong with the files after the power loss, or "". `finished`: run() had
  // returned OK, so that everything it promises must hold; otherwise it was still running.
  std::function<std::string(const FileImage& image, bool finished)> check;
};

// Runs the scenario in an empty directory `root`, examines many possible power losses before each
// sync and rename, and after the end, and returns the first failure of `check`, or "". The sync
// named `dropped` is omitted; null: none. `syncs` (may be null) receives the name of each sync: the
// path below the root, "" for the root itself, with "#2" and so on for repetitions.
std::string RunWithPowerLoss(const PowerLossScenario& scenario, const std::string& root,
                             const std::string* dropped, std::vector<std::string>* syncs);

// Checks that nothing is wrong with all syncs, and that something is wrong with each of them
// dropped. Returns problems, one per line, or "". `syncs` (may be null) receives the sorted names.
std::string CheckEverySync(const PowerLossScenario& scenario, const std::string& root,
                           std::vector<std::string>* syncs);

// A scope that simulates one of the machines that share a network file system: directory syncs of
// this thread make durable only changes that NoteChange() recorded for the same machine, and
// unrecorded ones.
class ScopedMachine {
 public:
  explicit ScopedMachine(int machine);
  ~ScopedMachine();
  ScopedMachine(const ScopedMachine&) = delete;
  ScopedMachine& operator=(const ScopedMachine&) = delete;

 private:
  const int previous_;
};

// Records that this thread's machine has created, renamed or deleted `path`, below the root of the
// running scenario.
void NoteChange(const std::string& path);

}  // namespace tessera

#endif  // TESSERA_TESTS_WORLDS_POWER_POWER_LOSS_H_
