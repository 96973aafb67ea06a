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
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compute/device/cuda_device.h"
#include "compute/device/training_device.h"
#include "glog/logging.h"
#include "tests/device/check/check.h"
#include "tests/device/check/device_checks.h"
#include "tests/device/check/figures.h"

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

// Figures of training and what they are compared with, each measured once.
class Figures {
 public:
  Figures(TrainingDevice& device, std::filesystem::path script, std::filesystem::path folder)
      : device_(device), script_(std::move(script)), folder_(std::move(folder)) {}

  // This object outlives them.
  std::vector<Check> Checks() {
    std::vector<Check> checks = {{"products",
                                  [this] {
                                    const absl::StatusOr<double> rate = Products();
                                    if (!rate.ok()) return OutcomeOf(rate.status());
                                    return OutcomeOf(absl::StrFormat(
                                        "bf16, 8192 x 8192 x 8192: %.0f TFLOP/s", *rate / 1e12));
                                  }},
                                 {"pytorch", [this] { return PytorchOutcome(); }}};
    for (const TimedModel& model : FullModels()) {
      checks.push_back({model.check, [this, model] { return OutcomeOf(Describe(model)); }});
    }
    return checks;
  }

 private:
  absl::StatusOr<double> Products() {
    if (products_ == 0) {
      TESSERA_ASSIGN_OR_RETURN(products_, MeasureGemmRate(*device_.backend, device_.device,
                                                          /*side=*/8192, /*products=*/10));
    }
    return products_;
  }

  absl::StatusOr<double> Pytorch(const TimedModel& model) {
    const auto found = pytorch_.find(model.name);
    if (found != pytorch_.end()) return found->second;
    return pytorch_
        .emplace(model.name,
                 MeasurePytorch(model, FindProgram("python3", {}), script_, "cuda", folder_))
        .first->second;
  }

  // Before this process has taken the GPU's memory, of which it gives nothing back.
  CheckOutcome PytorchOutcome() {
    CheckOutcome outcome = {CheckOutcome::kPassed, ""};
    for (const TimedModel& model : FullModels()) {
      const absl::StatusOr<double> rate = Pytorch(model);
      if (!rate.ok()) outcome.kind = CheckOutcome::kSkipped;
      absl::StrAppend(&outcome.detail, outcome.detail.empty() ? "" : "\n", model.name, ": ",
                      rate.ok() ? absl::StrFormat("%.0f tokens/s", *rate)
                                : std::string(rate.status().message()));
    }
    return outcome;
  }

  absl::StatusOr<std::string> Describe(const TimedModel& model) {
    TESSERA_ASSIGN_OR_RETURN(const double products, Products());
    const absl::StatusOr<double> pytorch = Pytorch(model);
    TESSERA_ASSIGN_OR_RETURN(const TrainingFigures figures,
                             MeasureTraining(model, &device_, folder_));
    return DescribeFigures(model, figures, products, pytorch);
  }

  TrainingDevice& device_;
  const std::filesystem::path script_;
  const std::filesystem::path folder_;
  double products_ = 0;  // FLOP/s
  std::map<std::string, absl::StatusOr<double>> pytorch_;
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
  Figures figures(**device, self.parent_path() / "pytorch_rate.py", scratch.path());
  if (!quick || !only.empty()) {
    for (const char* tool : {"memcheck", "racecheck"}) {
      checks.push_back(
          {tool, [&, tool] {
             return RunSanitizer(tool, {self, "--quick", "--only=operations"}, scratch.path());
           }});
    }
    for (Check& check : figures.Checks()) {
      checks.push_back(std::move(check));
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
