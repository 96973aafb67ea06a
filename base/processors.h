#ifndef TESSERA_BASE_PROCESSORS_H_
#define TESSERA_BASE_PROCESSORS_H_

#include <functional>
#include <limits>
#include <string>
#include <string_view>

namespace tessera {

// The processor time that a control group gives its processes, as a container's limit.
struct ProcessorQuota {
  // In processors, rounded up, at least 1; the greatest int without a limit.
  int processors = std::numeric_limits<int>::max();
  std::string file;  // which has the limit; empty without one
};

// Returns the least quota of this process's control groups and the groups that contain them.
ProcessorQuota FindProcessorQuota();

// The same, from the text of /proc/self/cgroup. `read` returns the text of a file, empty if it is
// absent. A text of another form sets no limit.
ProcessorQuota FindProcessorQuota(std::string_view groups,
                                  const std::function<std::string(const std::string&)>& read);

// Returns how many threads of this process can run at once, at least 1: the lesser of the
// processors on which the calling thread may run and of the quota.
int UsableProcessors();

}  // namespace tessera

#endif  // TESSERA_BASE_PROCESSORS_H_
