// Writes one page about runs: see kHelp.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/invocation_dir.h"
#include "base/program.h"
#include "base/replace_file.h"
#include "trainer/report/report.h"

namespace tessera {
namespace {

constexpr char kHelp[] = R"(report RUN [MORE...]

Writes one page about runs, which are laid over each other: settings, curves, events, where the time
went, bytes on the wire, memory, text samples, and the digests of ledger and saves. RUN is the
folder of a run. The page is one file, which a browser opens without a network.

  --output=FILE                where to write it (of one run: report.html in its folder; of several:
                               report.html here)

Exit codes: 0 the page is written; 2 wrong usage, no records, or a page that cannot be written.
)";

constexpr int kWrongUse = 2;
constexpr char kOutput[] = "--output=";

int Main(const std::vector<std::string>& words) {
  ChdirToInvocationDir();
  const auto fail = [](const std::string& message) {
    PrintError("report", message);
    return kWrongUse;
  };
  std::vector<std::string> runs;
  std::string output;
  for (const std::string& word : words) {
    if (word == "--help") {
      Print(kHelp);
      return 0;
    }
    if (word.starts_with(kOutput)) {
      output = word.substr(sizeof(kOutput) - 1);
      if (output.empty()) return fail("--output=: expected a file");
    } else if (word.starts_with("--")) {
      return fail("unknown flag " + word + "; see --help");
    } else {
      runs.push_back(word);
    }
  }
  if (runs.empty()) return fail("expected the folder of a run; see --help");
  if (output.empty()) output = runs.size() == 1 ? runs[0] + "/" + kReportFile : kReportFile;
  const absl::StatusOr<std::string> page = MakeReport(runs);
  if (!page.ok()) return fail(std::string(page.status().message()));
  if (const absl::Status written = ReplaceFile(output, *page); !written.ok()) {
    return fail(std::string(written.message()));
  }
  Print("report: " + output + "\n");
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram({.name = "report", .failure_code = tessera::kWrongUse}, [&] {
    return tessera::Main(std::vector<std::string>(argv + 1, argv + argc));
  });
}
