#include "checkpoint/simulation/job.h"

#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/manager/folder_lock.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/simulation/content.h"
#include "checkpoint/simulation/faults.h"
#include "checkpoint/simulation/scheduler.h"

namespace tessera::simulation {
namespace {

constexpr absl::Duration kDeadline = absl::Minutes(10);

ckpt::SaveOptions SmallSaves() {
  ckpt::SaveOptions options;
  options.checksum_chunk_bytes = 64;
  options.max_file_bytes = 300;
  options.io_threads = 2;
  options.staging_bytes = 16384;
  options.deadline = kDeadline;
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
  std::unique_ptr<ckpt::Storage> storage;
  std::unique_ptr<ckpt::FolderLock> lock;
  std::optional<ckpt::Retention> retention;
  ckpt::PlanCache plans;
  std::unique_ptr<ckpt::AsyncSaver> saver;
  std::set<int64_t> rolling_steps;
  int64_t step = 0;
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

absl::Status Job::Run(int number) {
  Rank rank(number, phase_.ranks, *hub_, *save_hub_);
  const bool blind = number == phase_.blind_rank;
  TESSERA_ASSIGN_OR_RETURN(rank.storage, site_.Open(phase_, blind));
  TESSERA_RETURN_IF_ERROR(Agree(rank, number == 0 ? Lock(rank) : absl::OkStatus()));
  rank.retention.emplace(*rank.storage, "", script_.retention);
  TESSERA_RETURN_IF_ERROR(Resume(rank));
  return Train(rank);
}

absl::Status Job::Lock(Rank& rank) {
  Phase phase = phase_;
  phase.staging_tier = false;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ckpt::Storage> storage,
                           site_.Open(phase, /*blind=*/false));
  TESSERA_ASSIGN_OR_RETURN(
      rank.lock, ckpt::FolderLock::Acquire(std::move(storage), {.wait = absl::Minutes(2)}));
  return absl::OkStatus();
}

absl::Status Job::Agree(Rank& rank, const absl::Status& mine) {
  return ckpt::AgreeOnStatus(rank.group, mine, kDeadline);
}

absl::Status Job::Resume(Rank& rank) {
  if (asked_step_.has_value()) return GoBack(rank);
  const bool decides = rank.number() == 0;
  const Model::View before = decides ? site_.Look() : Model::View();
  const auto load = [&](const ckpt::ResumePoint& point) {
    return LoadFrom(rank, point.checkpoint.directory, simulation::IdOf(point.manifest));
  };
  TESSERA_ASSIGN_OR_RETURN(
      const ckpt::ResumeResult resumed,
      ckpt::ResumeFromLatest(rank.storage.get(), "", rank.group,
                             {.lock = rank.lock.get(), .deadline = kDeadline}, load));
  std::optional<int64_t> taken;
  if (resumed.point.has_value()) {
    rank.step = resumed.point->checkpoint.step;
    taken = simulation::IdOf(resumed.point->manifest);
  }
  // A job that stood still meanwhile, and whose lock was taken over, ends before it saves.
  if (decides) TESSERA_RETURN_IF_ERROR(Confirm(rank));
  if (decides) model_.Resumes(before, site_.Look(), taken);
  return absl::OkStatus();
}

// Continues from the older checkpoint that was asked for; later ones are set aside.
absl::Status Job::GoBack(Rank& rank) {
  rank.step = *asked_step_;
  const std::string directory = ckpt::CheckpointDirectory("", rank.step);
  const absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(*rank.storage, directory);
  TESSERA_RETURN_IF_ERROR(Agree(rank, manifest.status()));
  TESSERA_RETURN_IF_ERROR(LoadFrom(rank, directory, simulation::IdOf(*manifest)));
  if (rank.number() > 0) return Agree(rank, absl::OkStatus());
  Journal::Get().Note(absl::StrCat("goes back to step ", rank.step));
  model_.Abandons(rank.step);
  const absl::Status status = ckpt::AbandonLater(*rank.storage, "", rank.step).status();
  site_.Look();
  return Agree(rank, status);
}

absl::Status Job::LoadFrom(Rank& rank, const std::string& directory, int64_t id) {
  ckpt::LoadOptions options = {.group = &rank.group, .deadline = kDeadline, .io_threads = 2};
  TESSERA_RETURN_IF_ERROR(
      ckpt::Load(*rank.storage, directory, rank.content.state(), options).status());
  if (!rank.content.Is(id)) {
    Journal::Get().Finding("mixed", absl::StrCat("rank ", rank.number(), " loads from ", directory,
                                                 " what was not saved as ", id));
  }
  return absl::OkStatus();
}

absl::Status Job::Train(Rank& rank) {
  if (phase_.async) {
    ckpt::AsyncSaveOptions options = {.save = SmallSaves()};
    options.save.group = &rank.save_group;
    options.save.before_commit = [&] { return Confirm(rank); };
    options.save.choose_root = [&](const ckpt::PlannedSave& planned) {
      return ChooseRoot(rank, planned);
    };
    options.on_committed = [&](ckpt::AsyncSaveReport& report) { AfterCommit(rank, report.save); };
    options.available_memory_bytes = [] { return uint64_t{1} << 30; };
    rank.saver = std::make_unique<ckpt::AsyncSaver>(*rank.storage, "", options);
  }
  const int64_t last = rank.step + phase_.steps;
  while (rank.step < last) {
    const int64_t step = ++rank.step;
    Scheduler::Get().Sleep(static_cast<int64_t>(Scheduler::Get().Draw() % 20) * kSecond);
    const bool locked = rank.lock != nullptr;
    TESSERA_RETURN_IF_ERROR(Agree(rank, locked ? rank.lock->Check() : absl::OkStatus()));
    const bool healthy = !(phase_.diverges && step == last);
    const bool permanent = step == last || step % phase_.save_interval == 0;
    const bool rolling = phase_.rolling_interval > 0 && step % phase_.rolling_interval == 0;
    if (rank.saver != nullptr) rank.saver->WaitUntilAllCopied();
    rank.content.Fill(IdOf(step, !permanent));
    if (permanent || rolling) TESSERA_RETURN_IF_ERROR(SaveStep(rank, step, !permanent, healthy));
  }
  if (rank.saver != nullptr) rank.saver->Finish();
  return absl::OkStatus();
}

absl::Status Job::SaveStep(Rank& rank, int64_t step, bool rolling, bool healthy) {
  const int64_t id = IdOf(step, rolling);
  if (rolling) rank.rolling_steps.insert(step);
  if (rank.number() == 0) model_.SaveBegins(id, step, rolling, healthy);
  ckpt::Metadata metadata = DescribeSave(id, step, healthy);
  if (rank.saver != nullptr) {
    rank.saver->Start(step, rank.content.state(), metadata);
    return absl::OkStatus();
  }
  ckpt::SaveOptions options = SmallSaves();
  options.group = &rank.group;
  options.plan_cache = &rank.plans;
  options.metadata = std::move(metadata);
  options.before_commit = [&] { return Confirm(rank); };
  options.choose_root = [&](const ckpt::PlannedSave& planned) { return ChooseRoot(rank, planned); };
  TESSERA_ASSIGN_OR_RETURN(const ckpt::SaveReport report,
                           ckpt::Save(*rank.storage, "", step, rank.content.state(), options));
  AfterCommit(rank, report);
  return absl::OkStatus();
}

absl::Status Job::Confirm(Rank& rank) {
  return rank.lock != nullptr ? rank.lock->Confirm() : absl::OkStatus();
}

absl::StatusOr<std::string> Job::ChooseRoot(Rank& rank, const ckpt::PlannedSave& planned) {
  const bool rolling = rank.rolling_steps.erase(planned.step) > 0;
  std::string root;
  if (rolling) {
    TESSERA_ASSIGN_OR_RETURN(root, ckpt::EmptyRollingSlot(*rank.storage, ""));
  }
  TESSERA_RETURN_IF_ERROR(
      rank.retention->MakeRoom({planned.step, rolling, planned.data_bytes + 2048}, absl::Now())
          .status());
  return root;
}

void Job::AfterCommit(Rank& rank, const ckpt::SaveReport& report) {
  if (rank.number() != 0) return;
  const bool permanent = report.directory.find('/') == report.directory.npos;
  const std::string name = report.directory.substr(report.directory.rfind("step-") + 5);
  int64_t step = 0;
  if (absl::SimpleAtoi(name, &step)) model_.SaveSucceeded(IdOf(step, !permanent));
  if (!permanent) return;
  model_.RetentionRuns();
  rank.retention->Apply(absl::Now()).IgnoreError();
}

}  // namespace tessera::simulation
