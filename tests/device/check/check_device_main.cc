// Proves on a GPU what tests cannot prove without one, and measures: see README's "On GPUs".
//
//   check_device [--quick] [--only=NAME] [--gpu=INDEX]
//
// Prints a line for each check. The exit status is 0 only if none has failed, 2 where there is no
// GPU to check.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "tests/device/check/check.h"
#include "tests/device/check/device_checks.h"
#include "tests/device/check/program_checks.h"
#include "trainer/device/cuda_device.h"
#include "trainer/device/training_device.h"

ABSL_FLAG(bool, quick, false, "Small shapes, short runs, no sanitizer, no figures");
ABSL_FLAG(std::string, only, "", "The name of the only check to run");
ABSL_FLAG(int, gpu, 0, "Index of the GPU");

namespace tessera::testing {
namespace {

constexpr int kNoGpu = 2;

// Removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "check_device.XXXXXX").string();
    PCHECK(mkdtemp(name.data()) != nullptr) << name;
    path_ = name;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

int Main(const std::filesystem::path& self) {
  const bool quick = absl::GetFlag(FLAGS_quick);
  const std::string only = absl::GetFlag(FLAGS_only);
  const absl::StatusOr<std::unique_ptr<TrainingDevice>> device =
      OpenCudaDevice(absl::GetFlag(FLAGS_gpu));
  if (!device.ok()) {
    std::cerr << "check_device: " << device.status().message() << "\n";
    return kNoGpu;
  }
  const ScratchFolder scratch;
  std::vector<Check> checks = DeviceChecks(**device, {.operations = {.typical = !quick},
                                                      .training = FullTraining(quick),
                                                      .folder = scratch.path()});
  checks.push_back(
      {"programs", [&] { return RunTestPrograms(self.parent_path() / "tests", scratch.path()); }});
  if (!quick || !only.empty()) {
    for (const char* tool : {"memcheck", "racecheck"}) {
      checks.push_back(
          {tool, [&, tool] {
             return RunSanitizer(tool, {self, "--quick", "--only=operations"}, scratch.path());
           }});
    }
  }
  const absl::Status status = RunChecks(checks, only, std::cout);
  if (status.ok()) return 0;
  std::cerr << "check_device: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("check_device [--quick] [--only=NAME] [--gpu=INDEX]");
  absl::ParseCommandLine(argc, argv);
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  return tessera::testing::Main(std::filesystem::read_symlink("/proc/self/exe"));
}
