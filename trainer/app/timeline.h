#ifndef TESSERA_TRAINER_APP_TIMELINE_H_
#define TESSERA_TRAINER_APP_TIMELINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "base/replace_file.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "compute/parallel/mesh.h"
#include "trainer/config/check_config.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// The timeline of the steps in trace_steps: records the activities of each rank, and gathers them
// in one file of run_dir, trace-FIRST-LAST.json, in Chrome's format. A rank is a process there; a
// thread is a row, as are the operations of a group of ranks. All times are by rank 0's clock. When
// the recording begins, messages compare each rank's clock with it; "otherData" has the offsets and
// their uncertainty.
//
// Every rank makes the same calls on its training thread, whose spans are recorded from Open() on.
// Returns the communicator's errors, so a rank that is gone ends the timeline. A file that cannot
// be written is only a note.
class Timeline {
 public:
  // Opens the timeline; null without trace_steps. `mesh` must outlive it. Collective.
  static absl::StatusOr<std::unique_ptr<Timeline>> Open(const TrainConfig& config, const Mesh& mesh,
                                                        NoteSink notes);

  // Called before each step, with its number. Collective before the first step that is recorded,
  // and after the last one.
  absl::Status NextStep(int64_t step);
  // Writes the recorded steps, unless they are already written. Called after the last step of the
  // run. Collective.
  absl::Status Finish();

 private:
  // The part of the timeline that a rank sends to rank 0, and the rank's clock.
  struct Part {
    int64_t bytes = 0;
    int64_t offset_ns = 0;  // of rank 0's clock over this rank's
    int64_t uncertainty_ns = 0;
    int64_t dropped = 0;
  };

  Timeline(const StepRange& steps, std::string run_dir, const Mesh& mesh, NoteSink notes);
  absl::Status AlignClocks();
  absl::Status Gather();
  // Gathers the parts. On rank 0, `written` is the result of writing the file; once it is an error,
  // `file` is not used.
  absl::Status GatherParts(FileReplacement* file, absl::Status& written);
  std::string ProcessNames() const;

  const StepRange steps_;
  const std::string run_dir_;
  const Mesh& mesh_;
  const NoteSink notes_;
  const std::shared_ptr<TraceRecorder> recorder_;
  const TraceThread thread_;
  std::unique_ptr<Communicator> ranks_;  // null for one process
  Part part_;
  int64_t origin_ns_ = 0;                   // by rank 0's clock
  int64_t first_step_ = 0, last_step_ = 0;  // that were recorded
  std::optional<TraceSpan> step_;           // the current one
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_TIMELINE_H_
