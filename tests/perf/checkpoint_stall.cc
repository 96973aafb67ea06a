// What a checkpoint costs training: a step in which nothing is saved, against steps while the training state of GPT-2 124M is saved, by a
// call that waits and in the background. The training is real: bf16, on all processors, 1,024 tokens a micro-batch; its update waits, piece by
// piece, until what it overwrites has been copied. Prints
//   figure stall.first <value> ratio          the training thread stood still: in Start() and waiting for the copy
//   figure stall.first_in_all <value> ratio   that and all by which steps became longer: the processors are shared
// over the time of a save that waits, for the first save of a saver, and as stall.later for the others, medians over the rounds.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/engine/async_saver.h"
#include "checkpoint/engine/checkpoint.h"
#include "checkpoint/engine/process_group.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/storage/storage.h"
#include "glog/logging.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/raw_disk.h"
#include "trainer/state/state_dict.h"
#include "trainer/step/trainer.h"

ABSL_FLAG(std::string, directory, "", "where to write about 3.5 GB; default: a new one under /tmp");
ABSL_FLAG(int, rounds, 3, "how often everything is measured");
ABSL_FLAG(int, saves, 3, "in the background, in each round");
ABSL_FLAG(int, steps_before, 4, "from Prepare() to the first save in the background");
ABSL_FLAG(int64_t, micro_batches, 4, "of a step");
ABSL_FLAG(int, threads, 0, "that train; 0: one for each processor");
ABSL_FLAG(int, copy_threads, tessera::ckpt::AsyncSaveOptions().copy_threads,
          "AsyncSaveOptions::copy_threads");
ABSL_FLAG(int, nice, tessera::ckpt::AsyncSaveOptions().nice, "AsyncSaveOptions::nice");
ABSL_FLAG(int, io_threads, 4, "of the checkpoint engine");
ABSL_FLAG(uint64_t, staging_mib, 0, "limit of staging memory; 0: none");

namespace tessera {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// GPT-2 124M in bf16: what it holds, and steps of it that wait for a saver where they must.
class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Create(int threads) {
    std::unique_ptr<Training> training(new Training);
    TESSERA_ASSIGN_OR_RETURN(
        training->run_,
        Gpt2Run::Create(
            {.threads = threads, .bf16 = true, .micro_batches = absl::GetFlag(FLAGS_micro_batches)},
            nullptr));
    std::vector<StateChunk> chunks;
    for (const TrainedChunk& chunk : training->run_->trainer().chunks()) {
      chunks.push_back({chunk.parameters, chunk.optimizer});
    }
    training->state_ = WeightState(chunks);
    for (ckpt::ShardedTensor& tensor : OptimizerTensors(chunks).tensors) {
      training->state_.tensors.push_back(std::move(tensor));
    }
    return training;
  }

  // Returns its seconds. `saver` may be null.
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

struct Measured {
  double step_seconds;             // without a save
  double save_seconds;             // of one that waits
  std::vector<double> blocked;     // by each save in the background
  std::vector<double> added;       // the same and all by which steps became longer
  std::vector<double> slow_steps;  // while a save was in the background
};

absl::Status Delete(ckpt::Storage& storage, const ckpt::SaveReport& report) {
  return storage.DeleteTree(report.directory);
}

// Trains until the save is over, and one step more than it needs at least.
absl::Status SaveWhileTraining(Training& training, ckpt::AsyncSaver& saver, ckpt::Storage& storage,
                               int64_t step, Measured& measured) {
  ckpt::Metadata metadata;
  metadata.mutable_trainer()->set_step(step);
  const double start = Now();
  saver.Start(metadata, training.state());
  double expected = 0;
  std::optional<ckpt::SaveOutcome> outcome;
  while (!(outcome = saver.Poll())) {
    measured.slow_steps.push_back(training.Step(&saver));
    expected += measured.step_seconds;
  }
  measured.added.push_back(Now() - start - expected);
  if (!outcome->report.ok()) return outcome->report.status();
  measured.blocked.push_back(outcome->report->blocked_seconds);
  std::printf(
      "  save %lld: blocked %.1f ms, added %.0f ms; copied after %.2f s, committed after %.2f "
      "s%s\n",
      static_cast<long long>(step), measured.blocked.back() * 1e3, measured.added.back() * 1e3,
      outcome->report->copied_seconds, outcome->report->seconds,
      outcome->report->staging_note.empty() ? "" : ("; " + outcome->report->staging_note).c_str());
  return Delete(storage, *outcome->report);
}

absl::StatusOr<Measured> MeasureRound(Training& training, ckpt::Storage& storage) {
  ckpt::SingleProcessGroup group;
  ckpt::AsyncSaveOptions options;
  options.save.io_threads = absl::GetFlag(FLAGS_io_threads);
  options.copy_threads = absl::GetFlag(FLAGS_copy_threads);
  options.nice = absl::GetFlag(FLAGS_nice);
  if (const uint64_t mib = absl::GetFlag(FLAGS_staging_mib); mib > 0) {
    options.save.staging_bytes = mib << 20;
  }
  Measured measured;
  std::vector<double> steps, saves;
  ckpt::SaveOptions save_options;
  save_options.io_threads = options.save.io_threads;
  for (int i = 0; i < 3; ++i) {
    steps.push_back(training.Step(nullptr));
    const auto saved = ckpt::Save(storage, "", {}, training.state(), group, save_options);
    if (!saved.ok()) return saved.status();
    saves.push_back(saved->seconds);
    if (absl::Status deleted = Delete(storage, *saved); !deleted.ok()) return deleted;
  }
  measured.step_seconds = Median(steps);
  measured.save_seconds = Median(saves);
  std::printf("a step %.3f s, a save that waits %.3f s\n", measured.step_seconds,
              measured.save_seconds);
  ckpt::AsyncSaver saver(storage, "", group, options);
  saver.Prepare(training.state());
  double prepared = 0;
  for (int i = 0; i < absl::GetFlag(FLAGS_steps_before); ++i) {
    prepared += training.Step(&saver) - measured.step_seconds;
  }
  std::printf("  the steps after Prepare(): %.0f ms longer in all\n", prepared * 1e3);
  for (int i = 1; i <= absl::GetFlag(FLAGS_saves); ++i) {
    absl::Status saved = SaveWhileTraining(training, saver, storage, i, measured);
    if (!saved.ok()) return saved;
  }
  std::printf("  steps meanwhile: median %.3f s, longest %.3f s\n", Median(measured.slow_steps),
              *std::max_element(measured.slow_steps.begin(), measured.slow_steps.end()));
  return measured;
}

absl::Status Measure(const std::string& directory) {
  const auto storage = ckpt::OpenPosixStorage(directory);
  if (!storage.ok()) return storage.status();
  int threads = absl::GetFlag(FLAGS_threads);
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Training> training, Training::Create(threads));
  std::printf("state: %.1f MB; %d threads train\n", training->bytes() / 1e6, threads);
  std::vector<double> first, first_in_all, later, later_in_all, slowdown;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    const absl::StatusOr<Measured> measured = MeasureRound(*training, **storage);
    if (!measured.ok()) return measured.status();
    for (size_t i = 0; i < measured->blocked.size(); ++i) {
      (i == 0 ? first : later).push_back(measured->blocked[i] / measured->save_seconds);
      (i == 0 ? first_in_all : later_in_all).push_back(measured->added[i] / measured->save_seconds);
    }
    slowdown.push_back(Median(measured->slow_steps) / measured->step_seconds);
  }
  std::printf("figure stall.first %.4f ratio\n", Median(first));
  std::printf("figure stall.first_in_all %.4f ratio\n", Median(first_in_all));
  if (!later.empty()) {
    std::printf("figure stall.later %.4f ratio\n", Median(later));
    std::printf("figure stall.later_in_all %.4f ratio\n", Median(later_in_all));
  }
  std::printf("figure stall.step_slowdown %.3f ratio\n", Median(slowdown));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  std::string directory = absl::GetFlag(FLAGS_directory);
  const bool temporary = directory.empty();
  if (temporary) {
    char name[] = "/tmp/tessera_checkpoint_stall_XXXXXX";
    if (mkdtemp(name) == nullptr) {
      std::perror("mkdtemp");
      return 1;
    }
    directory = name;
  }
  const absl::Status status = tessera::Measure(directory);
  if (temporary) std::remove(directory.c_str());
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
