#include "tests/worlds/jobs/job.h"

#include <csignal>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/internal/job_saves.h"
#include "tests/worlds/jobs/faults.h"
#include "tests/worlds/jobs/scheduler.h"

namespace tessera::simulation {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(10);

ckpt::SaveOptions SmallSaves() {
  ckpt::SaveOptions options;
  options.checksum_chunk_bytes = 64;
  options.max_file_bytes = 300;
  options.io_threads = 2;
  options.staging_bytes = 16384;
  options.timeout = kTimeout;
  return options;
}

}  // namespace

// What one rank has.
struct Job::Rank {
  Rank(int number, int ranks, ckpt::ThreadGroupHub& hub, ckpt::ThreadGroupHub& save_hub)
      : group(hub, number), save_group(save_hub, number), content(number, ranks) {}
  int number() const { return group.rank(); }

  ckpt::ThreadProcessGroup group, save_group;
  Content content;
  std::unique_ptr<ckpt::JobSaves> manager;
  int64_t step = 0;
  int64_t last_step = 0;
};

void Job::Start() {
  Scheduler& scheduler = Scheduler::Get();
  hub_ = std::make_unique<ckpt::ThreadGroupHub>(phase_.ranks);
  save_hub_ = std::make_unique<ckpt::ThreadGroupHub>(phase_.ranks);
  for (int rank = 0; rank < phase_.ranks; ++rank) {
    processes_.push_back(scheduler.NewProcess(absl::StrCat("job", number_, ".", rank)));
    scheduler.MoveClock(processes_.back(), phase_.clock_offset_s * kSecond);
  }
  for (int rank = 0; rank < phase_.ranks; ++rank) {
    scheduler.Start(processes_[rank], [this, rank] {
      const absl::Status status = Run(rank);
      Journal::Get().Note(absl::StrCat("ends: ", status.ToString()));
      if (rank == 0) result_ = status;
    });
  }
}

bool Job::IsOver() const {
  for (const int process : processes_) {
    if (!Scheduler::Get().IsOver(process)) return false;
  }
  return true;
}

int Job::Chosen(uint64_t salt) const {
  return phase_.ranks_differ ? static_cast<int>(Hash(number_, salt) % phase_.ranks) : 0;
}

absl::Status Job::Run(int number) {
  Rank rank(number, phase_.ranks, *hub_, *save_hub_);
  TESSERA_RETURN_IF_ERROR(OpenManager(rank));
  TESSERA_RETURN_IF_ERROR(Resume(rank));
  return Train(rank);
}

absl::Status Job::OpenManager(Rank& rank) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage,
                           site_.Open(phase_, /*blind=*/rank.number() == phase_.blind_rank));
  Phase remote = phase_;
  remote.staging_tier = false;
  std::unique_ptr<Storage> to_lock;
  if (rank.number() == 0) {
    TESSERA_ASSIGN_OR_RETURN(to_lock, site_.Open(remote, /*blind=*/false));
  }
  ckpt::CheckpointManagerOptions options;
  options.save = SmallSaves();
  options.save.group = &rank.group;
  if (phase_.async) {
    options.background.emplace();
    options.background->save = SmallSaves();
    options.background->save.group = &rank.save_group;
    options.background->available_memory_bytes = [] { return uint64_t{1} << 30; };
    if (phase_.skips) options.background->when_busy = ckpt::AsyncSaveOptions::WhenBusy::kSkip;
  }
  options.schedule = {.interval_steps = phase_.save_interval,
                      .rolling_interval_steps = phase_.rolling_interval};
  options.keep = script_.retention;
  options.lock_wait = absl::Minutes(2);
  if (phase_.stops && rank.number() == Chosen(1)) options.stop_file_path = site_.StopFile();
  options.on_commit = [this](const ckpt::SaveReport& report) { Committed(report); };
  TESSERA_ASSIGN_OR_RETURN(
      rank.manager,
      ckpt::JobSaves::Open(std::move(storage), std::move(to_lock), std::move(options)));
  return absl::OkStatus();
}

absl::Status Job::Resume(Rank& rank) {
  const bool decides = rank.number() == 0;
  const Model::View before = decides ? site_.Look() : Model::View();
  TESSERA_ASSIGN_OR_RETURN(
      const ckpt::ResumeResult resumed,
      rank.manager->TryResume(
          [&](const ckpt::Checkpoint& checkpoint) { return LoadFrom(rank, checkpoint); },
          {.step = asked_step_}));
  std::optional<int64_t> taken;
  if (resumed.checkpoint.has_value()) {
    rank.step = resumed.checkpoint->step();
    taken = simulation::IdOf(resumed.checkpoint->manifest());
  }
  if (!decides) return absl::OkStatus();
  const Model::View now = site_.Look();
  if (!asked_step_.has_value()) model_.Resumes(before, now, taken);
  return absl::OkStatus();
}

absl::Status Job::LoadFrom(Rank& rank, const ckpt::Checkpoint& checkpoint) {
  const int64_t id = simulation::IdOf(checkpoint.manifest());
  TESSERA_RETURN_IF_ERROR(
      checkpoint
          .Load(rank.content.state(), {.group = &rank.group, .timeout = kTimeout, .io_threads = 2})
          .status());
  if (!rank.content.Is(id)) {
    Journal::Get().Finding(
        "mixed", absl::StrCat("rank ", rank.number(), " loads from ", checkpoint.directory(),
                              " what was not saved as ", id));
  }
  if (rank.number() == 0 && asked_step_.has_value()) {
    Journal::Get().Note(absl::StrCat("goes back to step ", *asked_step_));
    model_.Abandons(*asked_step_);
  }
  return absl::OkStatus();
}

ckpt::StepState Job::After(const Rank& rank, int64_t step) const {
  ckpt::StepState state = {.step = step};
  state.healthy =
      !phase_.ranks_differ || Hash(number_, step) % 4 != 0 || rank.number() != Chosen(step);
  const bool is_late = step > rank.last_step - phase_.steps / 2;
  if (phase_.is_signalled && is_late && rank.number() == Chosen(2)) state.stop_signal = SIGTERM;
  return state;
}

absl::Status Job::Train(Rank& rank) {
  rank.last_step = rank.step + phase_.steps;
  rank.manager->Begin(rank.step, rank.last_step);
  // What is there already counts as a request that an earlier job has obeyed.
  const bool may_be_stopped = phase_.stops && !stop_file_is_there_;
  int steps_after_stop_file = 0;
  for (bool ends = false; !ends;) {
    const int64_t step = ++rank.step;
    Scheduler::Get().Sleep(static_cast<int64_t>(Scheduler::Get().Draw() % 20) * kSecond);
    rank.manager->WaitUntilAllCopied();
    const int64_t id = IdOf(step);
    rank.content.Fill(id);
    const bool healthy = !(phase_.diverges && step == rank.last_step);
    if (rank.number() == 0) model_.MayBeSaved(id, step, healthy);
    TESSERA_ASSIGN_OR_RETURN(const ckpt::SaveDecision decision,
                             rank.manager->TrySave(After(rank, step), rank.content.state(),
                                                   DescribeSave(id, step, healthy)));
    ends = decision.end != ckpt::EndReason::kNone;
    if (!ends && may_be_stopped && stop_file_is_there_ && ++steps_after_stop_file > 10) {
      Journal::Get().Finding("unstopped", "a job goes on although a stop file asks for its end");
    }
  }
  TESSERA_RETURN_IF_ERROR(rank.manager->last_save());
  if (rank.number() == 0) model_.JobSucceeded(IdOf(rank.step));
  return absl::OkStatus();
}

void Job::Committed(const ckpt::SaveReport& report) {
  const bool rolling = report.directory.find('/') != report.directory.npos;
  const std::string name = report.directory.substr(report.directory.rfind("step-") + 5);
  int64_t step = 0;
  if (absl::SimpleAtoi(name, &step)) model_.SaveSucceeded(IdOf(step), rolling);
  model_.RetentionRuns();
}

}  // namespace tessera::simulation
