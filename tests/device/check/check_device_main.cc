// Proves on a GPU what tests cannot prove without one, and measures: see docs/gpus.md.
//
//   check_device [--quick] [--only=NAME] [--gpu=INDEX] [--deadline=SECONDS] [--pytorch=no]
//                [--apart=no] [--choices | --measure=CONFIG | --ways=NAMES] [--json=FILE]
//
// Prints a line for each check as it ends, with its figures or what was wrong. The exit status is 0
// only if none has failed, 2 where there is no GPU to check.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "compute/device/cuda_device.h"
#include "compute/device/training_device.h"
#include "glog/logging.h"
#include "layout/dtype.h"
#include "nlohmann/json.hpp"
#include "tests/device/check/check.h"
#include "tests/device/check/choices.h"
#include "tests/device/check/device_checks.h"
#include "tests/device/check/figures.h"
#include "tests/support/command.h"
#include "trainer/step/product_rate.h"

ABSL_FLAG(bool, quick, false, "Small shapes, short runs, no sanitizer, no figures");
ABSL_FLAG(std::string, only, "", "The name of the only check to run");
ABSL_FLAG(int, gpu, 0, "Index of the GPU");
ABSL_FLAG(double, deadline, 300, "Seconds; checks that do not fit are left out");
ABSL_FLAG(bool, pytorch, true, "Also measure PyTorch, whose compilation takes minutes");
ABSL_FLAG(bool, choices, false,
          "Instead of the checks, compare the ways in which a model may be computed");
ABSL_FLAG(std::string, measure, "",
          "Instead of the checks, measure a run with this config of `train`, and write the fastest "
          "ways and the fastest of cuBLASLt's algorithms to the user's table of products");
ABSL_FLAG(std::string, ways, "",
          "Instead of the checks, those that ways must pass: sums=true,gelu_gradient=false; \"as "
          "is\" for the device's own");
ABSL_FLAG(bool, apart, true,
          "Run the checks in a process that may end, or be killed, without an end of the others");
ABSL_FLAG(std::string, json, "", "A file for the results, from which gpus_table.py makes a page");

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

// Figures of training and what they are compared with.
class Figures {
 public:
  // `so_far` are those that another process has measured.
  Figures(TrainingDevice& device, std::filesystem::path script, std::filesystem::path folder,
          const Deadline& deadline, const CheckResults& so_far)
      : device_(device),
        script_(std::move(script)),
        folder_(std::move(folder)),
        deadline_(deadline),
        product_rate_(so_far.FigureOf("products", "flops_per_second").value_or(0)) {
    for (const TimedModel& model : FullModels()) {
      const auto rate = so_far.FigureOf(model.check, "tokens_per_second");
      if (rate.has_value()) rates_[model.check] = *rate;
    }
  }

  CheckOutcome Products() {
    const absl::StatusOr<double> rate = ProductRate();
    if (!rate.ok()) return OutcomeOf(rate.status());
    return {CheckOutcome::kPassed,
            absl::StrFormat("bf16, the best of squares up to 8192: %.0f TFLOP/s", *rate / 1e12),
            {{"flops_per_second", *rate}}};
  }

  CheckOutcome Training(const TimedModel& model) {
    const absl::StatusOr<double> products = ProductRate();
    if (!products.ok()) return OutcomeOf(products.status());
    const absl::StatusOr<TrainingFigures> figures = MeasureTraining(model, &device_, folder_);
    if (!figures.ok()) return OutcomeOf(figures.status());
    rates_[model.check] = figures->tokens_per_second;
    return OutcomeOf(model, *figures, *products);
  }

  // Beside the rate of Training(), if that was measured.
  CheckOutcome Pytorch(const TimedModel& model) {
    device_.context->runtime().TrimMemory();
    const absl::StatusOr<double> rate =
        MeasurePytorch(model, FindProgram("python3", {}), script_, "cuda", folder_, deadline_);
    if (absl::IsDeadlineExceeded(rate.status())) return deadline_.LeftOut();
    if (!rate.ok()) return {CheckOutcome::kSkipped, std::string(rate.status().message())};
    CheckOutcome outcome = {CheckOutcome::kPassed,
                            absl::StrFormat("%s, with compile: %.0f tokens/s", model.name, *rate),
                            {{"tokens_per_second", *rate}}};
    if (const auto own = rates_.find(model.check); own != rates_.end()) {
      absl::StrAppendFormat(&outcome.detail, "; Tessera: %.2f times that", own->second / *rate);
      outcome.figures["times"] = own->second / *rate;
    }
    return outcome;
  }

 private:
  absl::StatusOr<double> ProductRate() {
    if (product_rate_ == 0) {
      TESSERA_ASSIGN_OR_RETURN(product_rate_, MeasureProductRate(*device_.backend, DType::kBF16));
    }
    return product_rate_;
  }

  TrainingDevice& device_;
  const std::filesystem::path script_;
  const std::filesystem::path folder_;
  const Deadline& deadline_;
  double product_rate_;                  // FLOP/s; 0: not measured yet
  std::map<std::string, double> rates_;  // tokens/s, by check
};

// On an H200, with the weights of 1.6 billion parameters that are drawn first, with what PyTorch
// compiles, and with a save of 22 GB.
constexpr double kSecondsOfTraining = 30, kSecondsOfPytorch = 60, kSecondsOfAChoice = 30;
constexpr double kSecondsOfASave = 90;
// On an H200, of eight trainings of three steps of GPT-2 124M.
constexpr double kSecondsOfProposals = 30;
// What a GPU may take for all that is queued: a slow one for a step of 1.6 billion parameters, and
// a part of the deadline for what is slower still. The checks of a way have no such step, and say
// that it hangs before they are killed.
constexpr double kMostSecondsOfWork = 60, kMostOfTheDeadline = 0.25, kMostSecondsOfAWay = 30;
// The most that the checks of a choice may take. They are killed then.
constexpr double kMostSecondsOfChecks = 90;

DeviceCheckOptions OptionsIn(const std::filesystem::path& scratch) {
  const bool quick = absl::GetFlag(FLAGS_quick);
  return {.operations = {.typical = !quick}, .training = FullTraining(quick), .folder = scratch};
}

ChoiceCheck CheckBySelf(const std::filesystem::path& self, const std::filesystem::path& scratch,
                        const Deadline& deadline) {
  std::vector<std::string> command = {self, "--apart=no",
                                      absl::StrCat("--gpu=", absl::GetFlag(FLAGS_gpu))};
  if (absl::GetFlag(FLAGS_quick)) command.emplace_back("--quick");
  return CheckInProcess(command, scratch, kMostSecondsOfChecks, deadline);
}

// `device` and `deadline` outlive the checks.
std::vector<Check> ChoiceChecks(TrainingDevice& device, const std::filesystem::path& self,
                                const std::filesystem::path& scratch, const Deadline& deadline) {
  const std::vector<Choice> choices = ChoicesOf(device);
  const TimedModel model = FullModels().front();
  const ChoiceCheck check = CheckBySelf(self, scratch, deadline);
  return {{"choices",
           [=, &device, &deadline] {
             const auto fit = static_cast<size_t>(std::clamp(
                 deadline.left_seconds() / kSecondsOfAChoice, 1.0, 1.0 * choices.size()));
             CheckOutcome outcome = CompareChoices(
                 device, {choices.begin(), choices.begin() + static_cast<std::ptrdiff_t>(fit)},
                 model, scratch, check);
             for (size_t i = fit; i < choices.size(); ++i) {
               absl::StrAppend(&outcome.detail, "\nleft out: ", choices[i].name);
             }
             return outcome;
           },
           2 * kSecondsOfAChoice}};
}

absl::StatusOr<std::vector<Check>> MeasuringChecks(TrainingDevice& device,
                                                   const std::filesystem::path& self,
                                                   const std::filesystem::path& scratch,
                                                   const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const TimedModel model, ModelOfConfig(absl::GetFlag(FLAGS_measure)));
  const ChoiceCheck check = CheckBySelf(self, scratch, deadline);
  return std::vector<Check>{{"ways",
                             [=, &device, &deadline] {
                               return MeasureWays(device, WaysOf(device), model, scratch, check,
                                                  deadline, kSecondsOfProposals);
                             }},
                            {"proposals", [=, &device, &deadline] {
                               return MeasureProducts(device, model, scratch, deadline);
                             }}};
}

absl::StatusOr<std::vector<Check>> ChecksOfWays(TrainingDevice& device,
                                                const std::filesystem::path& scratch) {
  TESSERA_ASSIGN_OR_RETURN(const Choice choice, ParseChoice(device, absl::GetFlag(FLAGS_ways)));
  TESSERA_ASSIGN_OR_RETURN(device.backend, device.make_backend(choice.products));
  return ChecksOfChoice(device, choice, OptionsIn(scratch));
}

// The cheapest first; behind what others are compared with, PyTorch's, a save of 22 GB alone.
// `figures` and `deadline` outlive the checks.
std::vector<Check> AllChecks(TrainingDevice& device, const std::filesystem::path& self,
                             const std::filesystem::path& scratch, Figures& figures,
                             const Deadline& deadline) {
  const bool quick = absl::GetFlag(FLAGS_quick);
  const bool times = !quick || !absl::GetFlag(FLAGS_only).empty();
  std::vector<Check> checks;
  if (times) checks.push_back({"products", [&] { return figures.Products(); }});
  for (Check& check : DeviceChecks(device, OptionsIn(scratch))) {
    checks.push_back(std::move(check));
  }
  checks.insert(checks.end() - 1, {"programs", [=, &deadline] {
                                     return RunTestPrograms(self.parent_path() / "tests", scratch,
                                                            deadline);
                                   }});
  if (!times) return checks;
  for (const TimedModel& model : FullModels()) {
    checks.push_back(
        {model.check, [=, &figures] { return figures.Training(model); }, kSecondsOfTraining});
  }
  for (const char* tool : {"memcheck", "racecheck"}) {
    checks.push_back({tool, [=, &deadline] {
                        return RunSanitizer(tool,
                                            {self, "--apart=no", "--quick", "--only=operations"},
                                            scratch, deadline);
                      }});
  }
  for (const TimedModel& model : FullModels()) {
    if (!absl::GetFlag(FLAGS_pytorch)) break;
    checks.push_back({"pytorch_" + model.check.substr(model.check.find('_') + 1),
                      [=, &figures] { return figures.Pytorch(model); }, kSecondsOfPytorch});
  }
  TimedModel saved = FullModels().back();
  saved.saves = true;
  checks.push_back(
      {"save_1558m", [=, &figures] { return figures.Training(saved); }, kSecondsOfASave});
  return checks;
}

// Returns the version of NVIDIA's driver, from its description of itself; empty without one.
std::string DriverVersion() {
  std::smatch version;
  const std::string text = ReadFile("/proc/driver/nvidia/version");
  return std::regex_search(text, version, std::regex("[0-9]+\\.[0-9.]+")) ? version.str() : "";
}

absl::Status WriteJson(const std::string& path, const CheckResults& all) {
  nlohmann::json json = all.about;
  json["date"] = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  json["checks"] = JsonOf(all.results);
  return ReplaceFile(path, json.dump(1) + "\n");
}

// What the checks refer to.
struct Bench {
  Bench(std::unique_ptr<TrainingDevice> on, const std::filesystem::path& self,
        const std::filesystem::path& scratch, const Deadline& deadline, const CheckResults& so_far)
      : device(std::move(on)),
        watch(*device->compute,
              absl::GetFlag(FLAGS_ways).empty()
                  ? std::max(kMostSecondsOfWork, kMostOfTheDeadline * deadline.left_seconds())
                  : kMostSecondsOfAWay),
        figures(*device, self.parent_path() / "pytorch_rate.py", scratch, deadline, so_far) {}

  std::unique_ptr<TrainingDevice> device;
  HangWatch watch;
  Figures figures;
};

// Returns the checks that flags ask for. Unavailable without a GPU.
absl::StatusOr<CheckList> MakeChecks(const std::filesystem::path& self,
                                     const std::filesystem::path& scratch, const Deadline& deadline,
                                     const CheckResults& so_far) {
  absl::StatusOr<std::unique_ptr<TrainingDevice>> opened = OpenCudaDevice(absl::GetFlag(FLAGS_gpu));
  if (!opened.ok()) return absl::UnavailableError(opened.status().message());
  const auto bench = std::make_shared<Bench>(*std::move(opened), self, scratch, deadline, so_far);
  TrainingDevice& device = *bench->device;
  CheckList list;
  if (absl::GetFlag(FLAGS_choices)) {
    list.checks = ChoiceChecks(device, self, scratch, deadline);
  } else if (!absl::GetFlag(FLAGS_measure).empty()) {
    TESSERA_ASSIGN_OR_RETURN(list.checks, MeasuringChecks(device, self, scratch, deadline));
  } else if (!absl::GetFlag(FLAGS_ways).empty()) {
    TESSERA_ASSIGN_OR_RETURN(list.checks, ChecksOfWays(device, scratch));
  } else {
    list.checks = AllChecks(device, self, scratch, bench->figures, deadline);
  }
  list.about = {
      {"device", device.type}, {"driver", DriverVersion()}, {"products", device.products}};
  list.usable = [&device] { return !device.context->runtime().HasFailed(); };
  list.owner = bench;
  return list;
}

absl::Status Run(const std::filesystem::path& self) {
  const Deadline deadline(absl::GetFlag(FLAGS_deadline));
  const ScratchFolder scratch;
  const std::string path = absl::GetFlag(FLAGS_json);
  absl::Status written;
  CheckResults so_far;
  const auto ended = [&](const CheckResults& all) {
    std::cout << TableOf({all.results.back()}) << std::flush;
    so_far = all;
    if (!path.empty()) written = WriteJson(path, all);
  };
  const auto run = absl::GetFlag(FLAGS_apart) ? RunChecks : RunChecksHere;
  TESSERA_ASSIGN_OR_RETURN(const CheckResults all,
                           run([&] { return MakeChecks(self, scratch.path(), deadline, so_far); },
                               absl::GetFlag(FLAGS_only), deadline, ended));
  TESSERA_RETURN_IF_ERROR(written);
  return StatusOf(all.results);
}

int Main(const std::filesystem::path& self) {
  const absl::Status status = Run(self);
  if (status.ok()) return 0;
  std::cerr << "check_device: " << status.message() << "\n";
  return absl::IsUnavailable(status) ? kNoGpu : 1;
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "check_device [--quick] [--only=NAME] [--gpu=INDEX] [--deadline=SECONDS] [--pytorch=no] "
      "[--apart=no] [--choices | --measure=CONFIG | --ways=NAMES] [--json=FILE]");
  absl::ParseCommandLine(argc, argv);
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  return tessera::testing::Main(std::filesystem::read_symlink("/proc/self/exe"));
}
