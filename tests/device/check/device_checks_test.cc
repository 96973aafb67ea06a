// The checks themselves: on the simulated device they pass, and where an operation is wrong, the
// right ones fail.

#include "tests/device/check/device_checks.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "models/testing/profiling_backend.h"
#include "tensor/tensor.h"

namespace tessera::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// A device on which one operation is wrong.
class WrongBackend : public ProfilingBackend {
 public:
  enum What { kNothing, kGelu, kAttentionGradient, kAdamW, kRandomNorm };
  WrongBackend(Backend& right, What what) : ProfilingBackend(right), what_(what) {}

 protected:
  using ProfilingBackend::Run;
  void Run(const ops::GeluForward& op) override {
    ProfilingBackend::Run(op);
    if (what_ == kGelu) Scale({op.out.Slice(0, 0, 1), 1.5});
  }
  void Run(const ops::MatMulGelu& op) override {
    ProfilingBackend::Run(op);
    if (what_ == kGelu) Scale({op.act.Slice(0, 0, 1), 1.5});
  }
  void Run(const ops::AttentionBackward& op) override {
    ProfilingBackend::Run(op);
    if (what_ == kAttentionGradient) Copy({op.d_k, op.d_v});
  }
  void Run(const ops::AdamWAll& op) override {
    ProfilingBackend::Run(op);
    if (what_ != kAdamW) return;
    for (const AdamWOperands& part : op.parts) Scale({part.param, 1.05});
  }
  void Run(const ops::LayerNormForward& op) override {
    ProfilingBackend::Run(op);
    // As small as a rounding, and never the same.
    if (what_ == kRandomNorm) Scale({op.mean, 1 + 1e-6 * ++calls_});
  }

 private:
  const What what_;
  int calls_ = 0;
};

// A device whose work fails at the first gradient of attention.
class FailingBackend final : public Backend {
 public:
  explicit FailingBackend(SimulatedDevice& device)
      : device_(device), right_(std::move(device.backend)), backend_(*right_) {}

  Device device() const override { return backend_.device(); }
  absl::Status Synchronize() override { return backend_.Synchronize(); }
  void Upload(const void* host, TensorView to) override { backend_.Upload(host, to); }
  void Download(TensorView from, void* host) override { backend_.Download(from, host); }

 protected:
  TESSERA_OPERATIONS(TESSERA_FORWARD_RUN)

 private:
  template <typename Op, typename Call>
  auto Forward(const Op& /*op*/, const std::string& name, const Call& call) -> decltype(call()) {
    if (name == "AttentionBackward") device_.runtime->Fail(device_.compute->handle());
    return call();
  }

  SimulatedDevice& device_;
  const std::unique_ptr<Backend> right_;
  Backend& backend_;
};

class DeviceChecksTest : public ::testing::Test {
 protected:
  // The outcomes by name.
  static std::map<std::string, CheckOutcome> Run(WrongBackend::What what,
                                                 const std::vector<std::string>& only,
                                                 const std::string& operation = "Attention") {
    const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0, {.seed = 3});
    const std::unique_ptr<Backend> right = std::move(device->backend);
    device->backend = std::make_unique<WrongBackend>(*right, what);
    const std::unique_ptr<Backend> exact = device->make_exact_backend();
    device->make_exact_backend = [&] { return std::make_unique<WrongBackend>(*exact, what); };
    return Run(*device, only, operation);
  }

  // Compares one group of operations; operations_test.cc compares all groups.
  static std::map<std::string, CheckOutcome> Run(SimulatedDevice& device,
                                                 const std::vector<std::string>& only,
                                                 const std::string& operation = "Attention") {
    std::map<std::string, CheckOutcome> outcomes;
    const TestFolder folder;
    for (const Check& check : DeviceChecks(device, {.operations = {.only = operation},
                                                   .training = SmallTraining(),
                                                   .folder = folder.path()})) {
      for (const std::string& name : only) {
        if (name == check.name) outcomes[name] = check.run();
      }
    }
    EXPECT_EQ(outcomes.size(), only.size());
    return outcomes;
  }

  static void ExpectAll(const std::map<std::string, CheckOutcome>& outcomes,
                        CheckOutcome::Kind kind) {
    for (const auto& [name, outcome] : outcomes) {
      EXPECT_EQ(outcome.kind, kind) << name << ": " << outcome.detail;
    }
  }
};

TEST_F(DeviceChecksTest, ARightDevicePasses) {
  ExpectAll(Run(WrongBackend::kNothing,
                {"operations", "gradients", "curves", "resume", "same_bits", "exact"}),
            CheckOutcome::kPassed);
}

TEST_F(DeviceChecksTest, AWrongOperationIsNamed) {
  ExpectAll(Run(WrongBackend::kGelu, {"gradients"}), CheckOutcome::kFailed);
  for (const std::string name : {"GELU, SwiGLU of 3", "MatMul"}) {
    const auto outcomes = Run(WrongBackend::kGelu, {"operations"}, name);
    ExpectAll(outcomes, CheckOutcome::kFailed);
    const std::string& detail = outcomes.at("operations").detail;
    EXPECT_THAT(detail, HasSubstr("2 of 2 groups of operations are wrong"));
    EXPECT_THAT(detail, HasSubstr(" of " + name + " ["));
  }
}

TEST_F(DeviceChecksTest, AWrongGradientIsFound) {
  ExpectAll(
      Run(WrongBackend::kAttentionGradient, {"operations", "gradients"}, "Attention [2,5,3,3,7]"),
      CheckOutcome::kFailed);
}

TEST_F(DeviceChecksTest, AWrongUpdateIsFound) {
  const auto outcomes = Run(WrongBackend::kAdamW, {"curves", "gradients"});
  EXPECT_EQ(outcomes.at("curves").kind, CheckOutcome::kFailed);
  EXPECT_EQ(outcomes.at("gradients").kind, CheckOutcome::kPassed);
}

TEST_F(DeviceChecksTest, ResultsThatChangeFromRunToRunAreFound) {
  ExpectAll(Run(WrongBackend::kRandomNorm, {"same_bits"}), CheckOutcome::kFailed);
}

// As small as a rounding.
TEST_F(DeviceChecksTest, OtherBitsThanThoseOfProcessorsAreFound) {
  ExpectAll(Run(WrongBackend::kRandomNorm, {"exact"}), CheckOutcome::kFailed);
  ExpectAll(Run(WrongBackend::kAdamW, {"exact"}), CheckOutcome::kFailed);
}

TEST_F(DeviceChecksTest, TheCommittedDigestsAreThoseOfProcessors) {
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(1, /*exact=*/true);
  const FixedResults results = ComputeFixedResults(*cpu, /*bf16=*/false);
  EXPECT_EQ(results, kExactResults)
      << std::hex << results.products_hash << " " << results.loops_hash;
}

// Work that fails on the device fails the check, with the operation's name, and nothing else.
TEST_F(DeviceChecksTest, AFailureOfTheDeviceNamesTheOperation) {
  const auto detail_of_failure = [] {
    const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0, {.seed = 3});
    device->backend = std::make_unique<FailingBackend>(*device);
    return Run(*device, {"gradients"}).at("gradients").detail;
  };
  const std::string detail = detail_of_failure();
  EXPECT_THAT(detail, HasSubstr("an illegal memory access was encountered; "));
  EXPECT_THAT(detail, HasSubstr(" was queued last, and the error may be an earlier operation's: "
                                "with TESSERA_CUDA_SYNC=1 it bears the name of its own"));
  setenv("TESSERA_CUDA_SYNC", "1", 1);
  const std::string exact = detail_of_failure();
  unsetenv("TESSERA_CUDA_SYNC");
  EXPECT_THAT(exact, HasSubstr("AttentionBackward"));
  EXPECT_THAT(exact, HasSubstr(": an illegal memory access was encountered"));
  EXPECT_LT(exact.size(), 250) << exact;
  EXPECT_THAT(exact, Not(HasSubstr("TESSERA_CUDA_SYNC")));
}

TEST_F(DeviceChecksTest, AKernelThatNeverEndsEndsTheProcess) {
  const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0, {});
  { const HangWatch watch(*device->compute, /*most_seconds=*/100); }  // ends with its lifetime
  const auto hang = [&] {
    std::atomic<bool> ran = false;
    device->runtime->Enqueue(device->compute->handle(), [&] {
      ran = true;
      ran.notify_one();
    });
    const HangWatch watch(*device->compute, /*most_seconds=*/0.01);
    ran.wait(false);  // the watch has seen the end of the work before
    device->runtime->EnqueueShared(device->compute->handle(), [] { return false; });
    pause();
  };
  EXPECT_DEATH(hang(), "the device does not end its work");
}

TEST_F(DeviceChecksTest, ModelsForGpusCanBeBuilt) {
  for (const bool quick : {false, true}) {
    EXPECT_OK(CheckSizes(FullTraining(quick), TestFolder().path()));
  }
}

// Returns the results of checks, each in a process of its own or of several.
absl::StatusOr<std::vector<CheckResult>> ResultsOf(const CheckList& list,
                                                   const std::string& only = "",
                                                   const Deadline& deadline = Deadline(300)) {
  TESSERA_ASSIGN_OR_RETURN(CheckResults all, RunChecks([&] { return list; }, only, deadline));
  for (CheckResult& result : all.results) result.seconds = 0;
  return all.results;
}

CheckOutcome Pass() { return {CheckOutcome::kPassed, "12 tensors", {{"tokens", 3}}}; }

TEST(RunChecksTest, TheTableHasALineForEachCheck) {
  const CheckList list = {
      {{"good", Pass},
       {"bad", [] { return OutcomeOf(absl::InternalError("wrong\nbelow \xff")); }},
       {"absent", [] {
          return CheckOutcome{CheckOutcome::kSkipped, "no tool"};
        }}}};
  ASSERT_OK_AND_ASSIGN(const std::vector<CheckResult> results, ResultsOf(list));
  EXPECT_EQ(TableOf(results),
            "passed    good             0.0 s  12 tensors\n"
            "FAILED    bad              0.0 s  wrong\n    below \xEF\xBF\xBD\n"
            "skipped   absent           0.0 s  no tool\n");
  EXPECT_EQ(StatusOf(results), absl::InternalError("failed: bad"));
  ASSERT_OK_AND_ASSIGN(const std::vector<CheckResult> absent, ResultsOf(list, "absent"));
  EXPECT_OK(StatusOf(absent));
  EXPECT_EQ(TableOf(absent), "skipped   absent           0.0 s  no tool\n");
  EXPECT_EQ(ResultsOf(list, "other").status(),
            absl::InvalidArgumentError("no check is named other; there are good, bad, absent"));
}

// Whatever one does to its process, the others give their results.
TEST(RunChecksTest, ACheckThatEndsItsProcessDoesNotEndTheOthers) {
  const CheckList list = {
      {{"good", Pass},
       {"aborts",
        []() -> CheckOutcome {
          std::cerr << "before\nwhy\n*** Check failure stack trace: ***\n  @ main\n";
          std::abort();
        }},
       {"exits", []() -> CheckOutcome { _exit(3); }},
       {"throws", []() -> CheckOutcome { throw NoMemory(absl::InternalError("a broken GPU")); }},
       {"last", Pass}}};
  std::vector<size_t> ended;
  ASSERT_OK(RunChecks([&] { return list; }, "", Deadline(300),
                      [&](const CheckResults& all) { ended.push_back(all.results.size()); })
                .status());
  EXPECT_EQ(ended, (std::vector<size_t>{1, 2, 3, 4, 5}));
  ASSERT_OK_AND_ASSIGN(const std::vector<CheckResult> results, ResultsOf(list));
  EXPECT_EQ(TableOf(results),
            "passed    good             0.0 s  12 tensors\n"
            "FAILED    aborts           0.0 s  the process of the checks ended by signal 6: why\n"
            "FAILED    exits            0.0 s  the process of the checks ended with 3\n"
            "FAILED    throws           0.0 s  a broken GPU\n"
            "passed    last             0.0 s  12 tensors\n");
}

// A pipe that shows in which processes a check is.
class PipeOfProcesses {
 public:
  PipeOfProcesses() { PCHECK(pipe(ends_) == 0); }
  ~PipeOfProcesses() { (close(ends_[0]), close(ends_[1])); }
  PipeOfProcesses(const PipeOfProcesses&) = delete;
  PipeOfProcesses& operator=(const PipeOfProcesses&) = delete;

  // Never ends, as does a process that it has started. Each has told of itself.
  void Hang() const {
    for (fork(); write(ends_[1], "h", 1) == 1;) pause();
  }
  void WaitUntilBothHang() const {
    char told[2];
    for (char& one : told) ASSERT_EQ(read(ends_[0], &one, 1), 1);
  }
  // Returns whether no process has it, once this one has no more.
  bool AllEnd() {
    close(std::exchange(ends_[1], -1));
    pollfd readable = {ends_[0], POLLIN, 0};
    char none;
    return poll(&readable, 1, /*timeout_ms=*/60'000) == 1 && read(ends_[0], &none, 1) == 0;
  }

 private:
  int ends_[2];
};

TEST(RunChecksTest, ACheckThatHasNotEndedAtTheDeadlineHasFailedAndIsKilled) {
  PipeOfProcesses pipe;
  const CheckList list = {
      {{"good", Pass}, {"hangs", [&] { return pipe.Hang(), Pass(); }}, {"last", Pass}}};
  std::optional<Deadline> deadline(std::in_place);
  ASSERT_OK_AND_ASSIGN(const CheckResults all, RunChecks([&] { return list; }, "", *deadline,
                                                         [&](const CheckResults& all) {
                                                           if (all.results.size() > 1) return;
                                                           pipe.WaitUntilBothHang();
                                                           deadline.emplace(0, /*grace_seconds=*/0);
                                                         }));
  EXPECT_THAT(TableOf(all.results),
              ContainsRegex("passed    good .*\n"
                            "FAILED    hangs .* has not ended at --deadline=0\n"
                            "left out  last  .* does not fit into --deadline=0\n"));
  EXPECT_TRUE(pipe.AllEnd());
}

TEST(RunChecksTest, ChecksEndWithTheProcessThatStartedThem) {
  PipeOfProcesses pipe;
  const CheckList list = {{{"hangs", [&] { return pipe.Hang(), Pass(); }}}};
  const pid_t pid = fork();
  if (pid == 0) {
    RunChecks([&] { return list; }, "", {}).IgnoreError();
    _exit(0);
  }
  pipe.WaitUntilBothHang();
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_TRUE(pipe.AllEnd());
}

TEST(RunChecksTest, ACheckThatEndsALittleAfterTheDeadlineHasItsOutcome) {
  const Deadline deadline(0.5, /*grace_seconds=*/300);
  const CheckList list = {{{"late", [&] {
                              while (deadline.left_seconds() > -0.1) sched_yield();
                              return Pass();
                            }}}};
  ASSERT_OK_AND_ASSIGN(const std::vector<CheckResult> results, ResultsOf(list, "", deadline));
  EXPECT_EQ(TableOf(results), "passed    late             0.0 s  12 tensors\n");
}

TEST(RunChecksTest, ADeviceThatCannotBeOpenedInTimeIsAnError) {
  const auto never = []() -> absl::StatusOr<CheckList> { return (pause(), CheckList()); };
  EXPECT_EQ(RunChecks(never, "", Deadline(0, /*grace_seconds=*/0)).status(),
            absl::DeadlineExceededError("has not ended at --deadline=0"));
}

TEST(RunChecksTest, AFigureThatIsNotFiniteIsNoError) {
  const double none = std::nan("");
  const CheckList list = {{{"figures", [&] {
                              return CheckOutcome{CheckOutcome::kPassed, "", {{"x", none}}};
                            }}}};
  ASSERT_OK_AND_ASSIGN(const std::vector<CheckResult> results, ResultsOf(list));
  EXPECT_TRUE(std::isnan(results.at(0).outcome.figures.at("x")));
}

TEST(RunChecksTest, ChecksAfterAFailureOfTheDeviceHaveAnotherProcess) {
  bool failed = false;
  const auto tell_process = [] {
    return CheckOutcome{CheckOutcome::kPassed, absl::StrCat(getpid())};
  };
  size_t kept = 0;
  const CheckList list = {.checks = {{"first", tell_process},
                                     {"faults",
                                      [&] {
                                        failed = true;
                                        return tell_process();
                                      }},
                                     {"third", tell_process},
                                     {"last",
                                      [&] {
                                        CheckOutcome outcome = tell_process();
                                        outcome.figures["kept"] = static_cast<double>(kept);
                                        return outcome;
                                      }}},
                          .about = {{"device", "a GPU"}},
                          .usable = [&] { return !failed; }};
  ASSERT_OK_AND_ASSIGN(const CheckResults all,
                       RunChecks([&] { return list; }, "", {},
                                 [&](const CheckResults& all) { kept = all.results.size(); }));
  EXPECT_EQ(all.about["device"], "a GPU");
  const auto process = [&](size_t i) { return all.results.at(i).outcome.detail; };
  EXPECT_EQ(all.results.at(1).outcome.kind, CheckOutcome::kFailed);
  EXPECT_EQ("the device has failed\n" + process(0), process(1));
  EXPECT_EQ(all.FigureOf("last", "kept"), 2);
  EXPECT_EQ(all.FigureOf("last", "other"), std::nullopt);
  EXPECT_NE(process(1), process(2));
  EXPECT_EQ(process(2), process(3));
  EXPECT_NE(process(0), absl::StrCat(getpid()));
}

// Whether the checks have processes of their own or not.
TEST(RunChecksTest, BehindAFailureForGoodChecksAreLeftOutByName) {
  const pid_t own = getpid();
  for (const auto run : {RunChecks, RunChecksHere}) {
    bool failed = false, opened = false;
    const CheckList list = {.checks = {{"first", Pass},
                                       {"faults", [&] { return (failed = true, Pass()); }},
                                       {"third", Pass},
                                       {"last", Pass}},
                            .usable = [&] { return !failed; }};
    const auto make = [&]() -> absl::StatusOr<CheckList> {
      if (!opened) return list;
      return absl::UnavailableError("the device has failed");
    };
    ASSERT_OK_AND_ASSIGN(CheckResults all,
                         run(make, "", Deadline(300), [&](const CheckResults&) { opened = true; }));
    ASSERT_EQ(getpid(), own);
    for (CheckResult& result : all.results) result.seconds = 0;
    EXPECT_EQ(TableOf(all.results),
              "passed    first            0.0 s  12 tensors\n"
              "FAILED    faults           0.0 s  the device has failed\n    12 tensors\n"
              "left out  third            0.0 s  the device has failed\n"
              "left out  last             0.0 s  the device has failed\n");
  }
}

TEST(RunChecksTest, WhereNoCheckCanRunAnErrorSaysWhy) {
  const absl::Status no_gpu = absl::UnavailableError("no GPU");
  EXPECT_EQ(RunChecks([&] { return no_gpu; }, "", {}).status(), no_gpu);
  EXPECT_EQ(RunChecks([]() -> absl::StatusOr<CheckList> { std::abort(); }, "", {}).status(),
            absl::InternalError("the process of the checks ended by signal 6"));
}

TEST(RunChecksTest, WhatDoesNotFitIntoTheDeadlineIsLeftOutByName) {
  ASSERT_OK_AND_ASSIGN(const std::vector<CheckResult> results,
                       ResultsOf({{{"short", Pass, 10}, {"long", Pass, 1000}}}));
  EXPECT_EQ(TableOf(results),
            "passed    short            0.0 s  12 tensors\n"
            "left out  long             0.0 s  does not fit into --deadline=300\n");
  EXPECT_OK(StatusOf(results));
  const nlohmann::json json = JsonOf(results);
  EXPECT_EQ(json[0]["figures"]["tokens"], 3);
  EXPECT_EQ(json[1]["name"], "long");
  EXPECT_EQ(json[1]["outcome"], "left out");
}

TEST(RunChecksTest, ACheckThatIsAskedForByNameIsNotLeftOutByAnEstimate) {
  const CheckList list = {{{"short", Pass, 10}, {"long", Pass, 1000}}};
  ASSERT_OK_AND_ASSIGN(const std::vector<CheckResult> results, ResultsOf(list, "long"));
  EXPECT_EQ(TableOf(results), "passed    long             0.0 s  12 tensors\n");
}

}  // namespace
}  // namespace tessera::testing
