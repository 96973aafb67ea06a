#ifndef TESSERA_TRAINER_REPORT_RUN_DATA_H_
#define TESSERA_TRAINER_REPORT_RUN_DATA_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The data of a run that a page shows, gathered from the run's folder.

// The limits of one run's data in a page.
struct RunDataLimits {
  // Limit of points. Longer runs are thinned: a page has the first and the last step, and of every
  // stretch of steps those with the extremes of its most important curves.
  int64_t points = 3200;
  int64_t events = 2000;
  int64_t saves = 500;
  int64_t samples = 20;
  int64_t text_bytes = 20000;  // of one text
  int64_t settings_bytes = int64_t{1} << 20;
  // The most bytes of metrics.jsonl that are read. From a longer file, every n-th line of a step is
  // read, and stands for its neighbours; the last one is read, too.
  int64_t metrics_bytes = int64_t{64} << 20;
};

// Reads config.textproto, metrics.jsonl, saves.jsonl and events.jsonl, any of which may be missing.
// Lines that are not records are counted and left out. The later of two records of a step is used.
// Every value has the type that report_page.html expects, whatever the files hold:
//
//   name         the folder's own name
//   settings     the text of config.textproto; "" without one
//   steps        number of steps that were read, every one or one of read_every; skipped: the
//                number of all steps that updated nothing, as their gradients were not finite
//   seconds      the sum of all steps; mean_step_seconds: their mean, or null; tokens_per_second:
//                their median, or null
//   columns      by name, one number or null a point: "step" and the fields of the records; columns
//                without a number are left out
//   eval         {"step": [...], "loss": [...]}
//   time         the seconds of up to a hundred stretches of steps, by what they were spent for:
//                {"first": [...], "last": [...], "compute": [...], ...}; {} without such records
//   wire         [{"axis", "operation", "bytes"}]: bytes that all ranks sent in a mean step
//   events       [{"event", "step", "time", "text", ...}] in the order of the file
//   latest       what the latest events say: "topology", "parameters", "predicted_step_seconds",
//                "ranks"; and "save" and "slowest_save", {"step", "seconds", "ranks": [{"rank",
//                "planning", "copying", "writing", "syncing", "seconds"}]}; each may be missing
//   resumes      {"count", "lost_steps", "lost_seconds", "down_seconds"}, sums; {} without one
//   samples      [{"step", "prompt", "text"}]
//   saves        [{"step", "ledger", "state", "save"}]
//   ledger       {"step", "head"} of the last step that has one; null without
//   notes        sentences about what is damaged or left out
//
// NotFound if there is no such folder, or none of these files in it.
absl::StatusOr<nlohmann::json> ReadRunData(const std::string& run_dir,
                                           const RunDataLimits& limits = {});

}  // namespace tessera

#endif  // TESSERA_TRAINER_REPORT_RUN_DATA_H_
