#ifndef TESSERA_TRAINER_REPORT_REPORT_H_
#define TESSERA_TRAINER_REPORT_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// The name of the page in a run folder.
inline constexpr char kReportFile[] = "report.html";

// Returns one page about the runs in these folders, laid over each other. The page needs no other
// file and loads nothing. NotFound for a folder that holds no records of a run.
absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& run_dirs);

// Writes the page about one run into its folder. Does nothing without a folder, or if the folder
// has no records.
absl::Status WriteReport(const std::string& run_dir);

}  // namespace tessera

#endif  // TESSERA_TRAINER_REPORT_REPORT_H_
