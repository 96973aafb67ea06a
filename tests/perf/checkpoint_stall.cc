// The cost of a checkpoint for training: compares a step without a save with steps while the
// training state of a third of GPT-2 124M is saved, by a blocking call and in the background. The
// training is real: bf16, or fp32 with --fp32, on all processors, 256 tokens per step. Its update
// waits, piece by piece, until the memory that it overwrites has been copied or written.
//
// Prints times over the time of a save that waits, as medians over the rounds. These are for the
// first save of a saver; stall.later, stall.blocked.later and stall.processors.later are for the
// others:
//
//   figure stall.first <value> ratio
//       Training time lost to a save: the time that the training thread stood still, and by how
//       much steps became longer until the save was over, against a step before and one after it.
//   figure stall.blocked.first <value> ratio
//       The first part of it: the training thread was in Start() or waited for the copy.
//   figure stall.processors.first <value> ratio
//       The time for which the save's own threads computed, shared by as many processors. Lost time
//       can hardly be less where training keeps all processors busy.
//
// And by how much a save raises the largest resident memory:
//
//   figure save.memory_mib <value> MiB
//       Where no update comes before the disk.
//   figure save.memory.first_mib <value> MiB
//   figure save.memory.later_mib <value> MiB
//       For the first of the saves above, and for all of them: with the memory for copies of what
//       an update came to before the disk.
//
// What Prepare() adds is printed apart. The program pauses behind a saver's first save, for the
// minutes in which a run would train on: the memory for copies is touched meanwhile.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/save/run_save.h"
#include "glog/logging.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/harness.h"
#include "trainer/step/trainer.h"

ABSL_FLAG(std::string, directory, "", "where to write about 1.2 GB; default: a new one under /tmp");
ABSL_FLAG(int, rounds, 4, "how often everything is measured");
ABSL_FLAG(int, saves, 3, "in the background, in each round");
ABSL_FLAG(int, steps_before, 2,
          "before Prepare(), and from it to the first save in the background");
ABSL_FLAG(bool, fp32, false, "trains in fp32, without master weights, instead of bf16");
ABSL_FLAG(int, layers, 4, "of GPT-2's twelve, with as much of its vocabulary");
ABSL_FLAG(int, threads, 0, "that train; 0: one for each processor");
ABSL_FLAG(int, io_threads, 4, "of the checkpoint engine");
ABSL_FLAG(double, pause_seconds, 1.5, "behind a saver's first save");

namespace tessera {
namespace {

// Short steps, next to which the duration of a save stands out.
constexpr int64_t kSequence = 256;

// The model: its state, and steps that wait for a saver where necessary.
class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Create(int threads) {
    std::unique_ptr<Training> training(new Training);
    TESSERA_ASSIGN_OR_RETURN(training->run_, Gpt2Run::Create({.layers = absl::GetFlag(FLAGS_layers),
                                                              .threads = threads,
                                                              .bf16 = !absl::GetFlag(FLAGS_fp32),
                                                              .sequence = kSequence},
                                                             nullptr));
    training->state_ = training->run_->State();
    return training;
  }

  // Returns the step's duration in seconds. `saver` may be null.
  double Step(ckpt::AsyncSaver* saver) {
    BeforeOverwrite wait;
    if (saver != nullptr) {
      wait = [saver](const TensorView& memory) {
        saver->WaitUntilCopied(memory.data(), static_cast<uint64_t>(memory.bytes()));
      };
    }
    run_->trainer().set_before_overwrite(std::move(wait));
    const absl::StatusOr<double> seconds = run_->Step();
    CHECK(seconds.ok()) << seconds.status();
    return *seconds;
  }

  const ckpt::StateDict& state() const { return state_; }
  double bytes() const {
    const Trainer::Memory memory = run_->trainer().memory();
    return static_cast<double>(memory.weights + memory.optimizer);
  }

 private:
  Training() = default;

  std::unique_ptr<Gpt2Run> run_;
  ckpt::StateDict state_;
};

// One save in the background.
struct BackgroundSave {
  double lost;               // seconds of training: blocked, plus how much longer steps took
  double blocked;            // seconds that the training thread was blocked
  double processor_seconds;  // of the background's threads
};

struct Measured {
  std::vector<double> steps;  // seconds, while nothing is saved
  std::vector<double> saves;  // of blocking saves
  std::vector<BackgroundSave> background;
  // The memory that saves in the background add: one without an update, the first, and all.
  double quiet_bytes = 0, first_bytes = 0, later_bytes = 0;
};

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

absl::Status Delete(Storage& storage, const ckpt::SaveReport& report) {
  return storage.DeleteTree(report.directory);
}

// The largest resident memory counts anew from here.
void ForgetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

double PlainStep(Training& training, ckpt::AsyncSaver* saver, Measured& measured) {
  measured.steps.push_back(training.Step(saver));
  return measured.steps.back();
}

absl::Status SaveAndWait(Training& training, Storage& storage, ckpt::PlanCache& plan_cache,
                         Measured& measured) {
  ckpt::SaveOptions options;
  options.io_threads = absl::GetFlag(FLAGS_io_threads);
  TESSERA_ASSIGN_OR_RETURN(const auto saved, ckpt::SaveNow(storage, {.step = 0}, training.state(),
                                                           options, {.plan_cache = &plan_cache}));
  measured.saves.push_back(absl::ToDoubleSeconds(saved.duration));
  std::printf("  a save that waits: %.3f s, %.3f s of processors\n",
              absl::ToDoubleSeconds(saved.duration), absl::ToDoubleSeconds(saved.processor_time));
  return Delete(storage, saved);
}

// Trains until the save is over; `before` is the duration of a step just before. One more step
// afterwards measures the current duration again, because the load of the machine drifts.
absl::Status SaveWhileTraining(Training& training, ckpt::AsyncSaver& saver, Storage& storage,
                               int64_t step, double before, Measured& measured) {
  const double start = Now();
  saver.Start(step, training.state());
  int steps = 0;
  std::vector<ckpt::SaveOutcome> outcomes;
  for (; (outcomes = saver.Poll()).empty(); ++steps) training.Step(&saver);
  const double seconds = Now() - start;
  TESSERA_RETURN_IF_ERROR(outcomes[0].report.status());
  const ckpt::SaveReport& report = *outcomes[0].report;
  TESSERA_RETURN_IF_ERROR(Delete(storage, report));
  const double after = PlainStep(training, &saver, measured);
  const BackgroundSave save = {seconds - steps * (before + after) / 2,
                               absl::ToDoubleSeconds(report.blocked),
                               absl::ToDoubleSeconds(report.processor_time)};
  measured.background.push_back(save);
  std::printf(
      "  save %lld: lost %.0f ms over %d steps, blocked %.1f ms of them; %.3f s of processors; "
      "copied after %.2f s, committed after %.2f s%s\n",
      static_cast<long long>(step), save.lost * 1e3, steps, save.blocked * 1e3,
      save.processor_seconds, absl::ToDoubleSeconds(report.copied_after),
      absl::ToDoubleSeconds(report.duration),
      report.note.empty() ? "" : ("; " + report.note).c_str());
  return absl::OkStatus();
}

ckpt::AsyncSaveOptions AsyncOptions() {
  return {.save = {.io_threads = absl::GetFlag(FLAGS_io_threads)}};
}

// The time that Prepare() adds to the steps after it, compared with as many before.
void MeasurePrepare(Training& training, ckpt::AsyncSaver& saver, Measured& measured) {
  std::vector<double> before, after;
  for (int i = 0; i < absl::GetFlag(FLAGS_steps_before); ++i) {
    before.push_back(PlainStep(training, nullptr, measured));
  }
  saver.Prepare(training.state());
  for (int i = 0; i < absl::GetFlag(FLAGS_steps_before); ++i) {
    after.push_back(training.Step(&saver));
  }
  std::printf("  Prepare(): the %zu steps after it %.0f ms longer in all than as many before\n",
              after.size(), (Mean(after) - Mean(before)) * static_cast<double>(after.size()) * 1e3);
}

// The memory of a save that no update interrupts, with all that Prepare() prefaults.
absl::StatusOr<double> MeasureMemory(Training& training, Storage& storage) {
  ForgetPeak();
  const double before = PeakResidentBytes();
  ckpt::AsyncSaver saver(storage, AsyncOptions());
  saver.Prepare(training.state());
  std::this_thread::sleep_for(std::chrono::duration<double>(absl::GetFlag(FLAGS_pause_seconds)));
  saver.Start(0, training.state());
  const std::vector<ckpt::SaveOutcome> outcomes = saver.Finish();
  if (!outcomes[0].report.ok()) return outcomes[0].report.status();
  TESSERA_RETURN_IF_ERROR(Delete(storage, *outcomes[0].report));
  return PeakResidentBytes() - before;
}

absl::StatusOr<Measured> MeasureRound(Training& training, Storage& storage) {
  ckpt::PlanCache plan_cache;
  Measured measured;
  training.Step(nullptr);
  TESSERA_ASSIGN_OR_RETURN(measured.quiet_bytes, MeasureMemory(training, storage));
  for (int i = 0; i < 3; ++i) {
    TESSERA_RETURN_IF_ERROR(SaveAndWait(training, storage, plan_cache, measured));
  }
  ckpt::AsyncSaver saver(storage, AsyncOptions());
  ForgetPeak();
  PlainStep(training, nullptr, measured);
  const double training_bytes = PeakResidentBytes();
  MeasurePrepare(training, saver, measured);
  double before = PlainStep(training, &saver, measured);
  for (int i = 1; i <= absl::GetFlag(FLAGS_saves); ++i) {
    TESSERA_RETURN_IF_ERROR(SaveWhileTraining(training, saver, storage, i, before, measured));
    if (i == 1) {
      measured.first_bytes = PeakResidentBytes() - training_bytes;
      std::this_thread::sleep_for(
          std::chrono::duration<double>(absl::GetFlag(FLAGS_pause_seconds)));
      PlainStep(training, &saver, measured);
    }
    before = measured.steps.back();
  }
  measured.later_bytes = PeakResidentBytes() - training_bytes;
  return measured;
}

// One kind of figure: for the first save of each round, and for the others.
class Figures {
 public:
  void Add(bool first, double value) { (first ? first_ : later_).push_back(value); }
  // `kind`: empty, or ending in a point.
  void Print(const char* kind) const {
    for (const auto& [name, values] : {std::pair("first", &first_), std::pair("later", &later_)}) {
      if (values->empty()) continue;
      PrintFigure(absl::StrCat("stall.", kind, name), Median(*values));
      std::printf("  %zu values, mean %.4f, standard deviation %.4f\n", values->size(),
                  Mean(*values), Deviation(*values));
    }
  }

 private:
  std::vector<double> first_, later_;
};

absl::Status Measure(const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(const auto storage, OpenStorage(directory));
  int threads = absl::GetFlag(FLAGS_threads);
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Training> training, Training::Create(threads));
  std::printf("state: %.1f MB; %d threads train\n", training->bytes() / 1e6, threads);
  Figures lost, blocked, processors;
  std::vector<double> steps, quiet_mib, first_mib, later_mib;
  TESSERA_RETURN_IF_ERROR(ForEachRound(absl::GetFlag(FLAGS_rounds), [&](int) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const Measured measured, MeasureRound(*training, *storage));
    const double save = Median(measured.saves);
    for (size_t i = 0; i < measured.background.size(); ++i) {
      const BackgroundSave& background = measured.background[i];
      lost.Add(i == 0, background.lost / save);
      blocked.Add(i == 0, background.blocked / save);
      processors.Add(i == 0, background.processor_seconds / threads / save);
    }
    quiet_mib.push_back(measured.quiet_bytes / (1 << 20));
    first_mib.push_back(measured.first_bytes / (1 << 20));
    later_mib.push_back(measured.later_bytes / (1 << 20));
    steps.insert(steps.end(), measured.steps.begin(), measured.steps.end());
    return absl::OkStatus();
  }));
  std::printf("a step without a save: mean %.3f s, standard deviation %.3f s\n", Mean(steps),
              Deviation(steps));
  lost.Print("");
  blocked.Print("blocked.");
  processors.Print("processors.");
  PrintFigure("save.memory_mib", Median(quiet_mib), "MiB");
  PrintFigure("save.memory.first_mib", Median(first_mib), "MiB");
  PrintFigure("save.memory.later_mib", Median(later_mib), "MiB");
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::RunProgram("checkpoint_stall", [] {
    return tessera::WithFolder(absl::GetFlag(FLAGS_directory), tessera::Measure);
  });
}
