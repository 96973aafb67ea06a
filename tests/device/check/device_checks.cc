#include "tests/device/check/device_checks.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/processors.h"
#include "base/steady_time.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "glog/logging.h"
#include "layout/dtype.h"
#include "tensor/device_runtime.h"

namespace tessera::testing {
namespace {

// On an H200, with as many processors as threads, which compute nearly all of it.
constexpr double kSecondsOfTypicalOperations = 60;

double ExpectedSeconds(const DeviceCheckOptions& options) {
  if (!options.operations.typical) return 0;
  const int threads = options.training.threads;
  return kSecondsOfTypicalOperations * threads / std::min(threads, UsableProcessors());
}

// Waits again and again for what the stream holds.
void Watch(const std::stop_token& stop, const Stream& stream, double most_seconds) {
  constexpr std::chrono::milliseconds kRest(100);
  DeviceRuntime& runtime = stream.context().runtime();
  if (!runtime.Select().ok()) return;
  const absl::StatusOr<DeviceRuntime::EventHandle> end = runtime.CreateEvent();
  if (!end.ok()) return;
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  absl::Duration start;
  absl::StatusOr<bool> done = true;
  while (done.ok() && !stop.stop_requested()) {
    if (*done) {
      start = SteadyNow();
      if (!runtime.RecordEvent(*end, stream.handle()).ok()) break;
    }
    CHECK_LE(SecondsSince(start), most_seconds) << "the device does not end its work";
    never.wait_for(lock, stop, kRest, [] { return false; });
    done = runtime.IsEventDone(*end);
  }
  runtime.DestroyEvent(*end);
}

}  // namespace

HangWatch::HangWatch(Stream& stream, double most_seconds)
    : thread_([&stream, most_seconds](const std::stop_token& stop) {
        Watch(stop, stream, most_seconds);
      }) {}

absl::StatusOr<std::string> CheckOperations(TrainingDevice& device, const OperationSizes& sizes,
                                            int threads) {
  const std::unique_ptr<Backend> on_host = MakeHostOperandBackend(device);
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(threads);
  int wrong = 0, operations = 0;
  std::string lines;
  for (const OperationResult& result : CompareOperations(*on_host, *cpu, sizes)) {
    ++operations;
    wrong += !result.passed();
    absl::StrAppend(
        &lines,
        absl::StrFormat("\n%-24s %-9s %3d tensors, largest error %.2f of what is allowed",
                        result.name, DTypeName(result.dtype), result.tensors, result.worst),
        result.passed() ? "" : absl::StrCat("  WRONG: ", result.worst_tensor, " ", result.error));
  }
  if (wrong == 0)
    return absl::StrCat(operations, " groups of operations agree with the CPU", lines);
  return absl::InternalError(
      absl::StrCat(wrong, " of ", operations, " groups of operations are wrong", lines));
}

std::vector<Check> DeviceChecks(TrainingDevice& device, const DeviceCheckOptions& options) {
  const TrainingChecks training = {device, options.training, options.folder};
  return {
      {"gradients", [training] { return OutcomeOf(training.Gradients()); }},
      {"same_bits", [training] { return OutcomeOf(training.SameBits()); }},
      {"exact", [training] { return OutcomeOf(training.Exact()); }},
      {"resume", [training] { return OutcomeOf(training.Resume()); }},
      {"curves", [training] { return OutcomeOf(training.Curves()); }},
      {"operations",
       [&device, options] {
         return OutcomeOf(CheckOperations(device, options.operations, options.training.threads));
       },
       ExpectedSeconds(options)},
  };
}

}  // namespace tessera::testing
