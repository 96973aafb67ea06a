#include "trainer/report/report.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/page/page.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/report/report_page.h"
#include "trainer/report/run_data.h"

namespace tessera {

absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& run_dirs) {
  nlohmann::json runs = nlohmann::json::array();
  std::map<std::string, int> names;
  for (const std::string& run_dir : run_dirs) {
    TESSERA_ASSIGN_OR_RETURN(nlohmann::json run, ReadRunData(run_dir));
    // Two folders may have one name; their places are not the reader's business.
    std::string name = run["name"].get<std::string>();
    const int number = ++names[name];
    if (number > 1) run["name"] = absl::StrCat(name, " (", number, ")");
    runs.push_back(std::move(run));
  }
  return FillPage(kReportPage,
                  {{"written", absl::ToUnixSeconds(absl::Now())}, {"runs", std::move(runs)}});
}

absl::Status WriteReport(const std::string& run_dir) {
  if (run_dir.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> page = MakeReport({run_dir});
  if (absl::IsNotFound(page.status())) return absl::OkStatus();
  if (!page.ok()) return page.status();
  return ReplaceFile(absl::StrCat(run_dir, "/", kReportFile), *page);
}

}  // namespace tessera
