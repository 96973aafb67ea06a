#include "base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"

namespace tessera {
namespace {

std::string ReadText(const std::string& path) { return ReadWholeFile(path).value_or(""); }

// Lowers `least` to the quota in the text "QUOTA PERIOD", in microseconds, of `file`. No limit is
// "max" or -1.
void Lower(const std::string& text, const std::string& file, ProcessorQuota& least) {
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  int64_t quota = 0, period = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &quota) ||
      !absl::SimpleAtoi(words[1], &period) || quota <= 0 || period <= 0) {
    return;
  }
  const int64_t processors = quota / period + (quota % period == 0 ? 0 : 1);
  if (processors < least.processors) least = {static_cast<int>(processors), file};
}

}  // namespace

ProcessorQuota FindProcessorQuota() {
  return FindProcessorQuota(ReadText("/proc/self/cgroup"), ReadText);
}

ProcessorQuota FindProcessorQuota(std::string_view groups,
                                  const std::function<std::string(const std::string&)>& read) {
  ProcessorQuota least;
  for (const absl::string_view line : absl::StrSplit(std::string(groups), '\n')) {
    // "0::/a/b" in version 2, "4:cpu,cpuacct:/a/b" in version 1.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool is_second = fields[1].empty();
    if (!is_second && std::ranges::find(controllers, "cpu") == controllers.end()) continue;
    // A container may see its own group as the root, under which the path is absent.
    for (std::string path = fields[2];; path.resize(path.rfind('/'))) {
      const std::string folder = absl::StrCat("/sys/fs/cgroup", is_second ? "" : "/cpu", path);
      if (is_second) {
        Lower(read(folder + "/cpu.max"), folder + "/cpu.max", least);
      } else {
        const std::string quota = folder + "/cpu.cfs_quota_us";
        Lower(absl::StrCat(read(quota), " ", read(folder + "/cpu.cfs_period_us")), quota, least);
      }
      if (path.find('/') == path.npos) break;
    }
  }
  return least;
}

int UsableProcessors() {
  cpu_set_t allowed;
  const int processors = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                             ? CPU_COUNT(&allowed)
                             : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(processors, FindProcessorQuota().processors));
}

}  // namespace tessera
