#include "tests/worlds/jobs/job.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/load/load.h"
#include "checkpoint/manager/folder_lock.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/save_schedule.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/manager/stop_file.h"
#include "checkpoint/save/plan_cache.h"
#include "checkpoint/save/run_save.h"
#include "tests/worlds/jobs/faults.h"
#include "tests/worlds/jobs/model.h"
#include "tests/worlds/jobs/scheduler.h"

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
  std::shared_ptr<Storage> storage;
  std::unique_ptr<ckpt::FolderLock> lock;
  std::optional<ckpt::Retention> retention;
  ckpt::PlanCache plans;
  std::unique_ptr<ckpt::AsyncSaver> saver;
  ckpt::FailedSaves failed_saves{{}};
  std::unique_ptr<ckpt::StopFile> stop_file;
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
  rank.retention.emplace(*rank.storage, script_.retention);
  TESSERA_RETURN_IF_ERROR(Resume(rank));
  return Train(rank);
}

absl::Status Job::Lock(Rank& rank) {
  Phase phase = phase_;
  phase.staging_tier = false;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, site_.Open(phase, /*blind=*/false));
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
  const auto load = [&](const ckpt::Checkpoint& checkpoint) {
    return LoadFrom(rank, checkpoint.directory(), simulation::IdOf(checkpoint.manifest()));
  };
  TESSERA_ASSIGN_OR_RETURN(
      const ckpt::ResumeResult resumed,
      ckpt::ResumeFromLatest(rank.storage, rank.group,
                             {.lock = rank.lock.get(), .deadline = kDeadline}, load));
  std::optional<int64_t> taken;
  if (resumed.checkpoint.has_value()) {
    rank.step = resumed.checkpoint->step();
    taken = simulation::IdOf(resumed.checkpoint->manifest());
  }
  // A job that stood still meanwhile, and whose lock was taken over, ends before it saves.
  if (decides) TESSERA_RETURN_IF_ERROR(Confirm(rank));
  if (decides) model_.Resumes(before, site_.Look(), taken);
  return absl::OkStatus();
}

// Continues from the older checkpoint that was asked for; later ones are set aside.
absl::Status Job::GoBack(Rank& rank) {
  rank.step = *asked_step_;
  const std::string directory = ckpt::StepDirectoryName(rank.step);
  const absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(*rank.storage, directory);
  TESSERA_RETURN_IF_ERROR(Agree(rank, manifest.status()));
  TESSERA_RETURN_IF_ERROR(LoadFrom(rank, directory, simulation::IdOf(*manifest)));
  if (rank.number() > 0) return Agree(rank, absl::OkStatus());
  Journal::Get().Note(absl::StrCat("goes back to step ", rank.step));
  model_.Abandons(rank.step);
  const absl::Status status = ckpt::AbandonLater(*rank.storage, rank.step).status();
  site_.Look();
  return Agree(rank, status);
}

absl::Status Job::LoadFrom(Rank& rank, const std::string& directory, int64_t id) {
  ckpt::LoadOptions options = {.group = &rank.group, .deadline = kDeadline, .io_threads = 2};
  TESSERA_RETURN_IF_ERROR(
      ckpt::LoadCheckpoint(*rank.storage, directory, rank.content.state(), options).status());
  if (!rank.content.Is(id)) {
    Journal::Get().Finding("mixed", absl::StrCat("rank ", rank.number(), " loads from ", directory,
                                                 " what was not saved as ", id));
  }
  return absl::OkStatus();
}

void Job::OpenSaver(Rank& rank) {
  ckpt::AsyncSaveOptions options = {.save = SmallSaves()};
  options.save.group = &rank.save_group;
  options.save.before_commit = [this, &rank] { return Confirm(rank); };
  if (phase_.skips) options.when_busy = ckpt::AsyncSaveOptions::WhenBusy::kSkip;
  options.available_memory_bytes = [] { return uint64_t{1} << 30; };
  rank.saver = std::make_unique<ckpt::AsyncSaver>(*rank.storage, options, Hooks(rank));
}

ckpt::SaveHooks Job::Hooks(Rank& rank) {
  return {.choose_root =
              [this, &rank](const ckpt::PlannedSave& planned) { return ChooseRoot(rank, planned); },
          .plan_cache = &rank.plans,
          .on_committed = [this, &rank](ckpt::SaveReport& report) { AfterCommit(rank, report); }};
}

// What rank 0 knows before a step's end.
struct Job::StepAgreement {
  bool in_trouble = false;  // saves fail
  ckpt::StopRequest stop_file;
};

absl::StatusOr<Job::StepAgreement> Job::AgreeOnStep(Rank& rank) {
  const auto know = [&](const std::vector<std::string>&) -> absl::StatusOr<std::string> {
    if (rank.lock != nullptr) TESSERA_RETURN_IF_ERROR(rank.lock->Check());
    ckpt::StopRequest asked;
    if (rank.stop_file != nullptr) asked = rank.stop_file->Poll();
    const auto trouble = rank.failed_saves.Judge(absl::ZeroDuration());
    return absl::StrCat(static_cast<int>(trouble), " ", asked.step, " ", asked.version);
  };
  TESSERA_ASSIGN_OR_RETURN(const std::string known, ckpt::Agree(rank.group, "", know, kDeadline));
  const std::vector<std::string> words = absl::StrSplit(known, ' ');
  StepAgreement agreed = {.in_trouble = words[0] != "0"};
  const bool parsed = absl::SimpleAtoi(words[1], &agreed.stop_file.step) &&
                      absl::SimpleAtoi(words[2], &agreed.stop_file.version);
  return parsed ? agreed : absl::StatusOr<StepAgreement>(absl::InternalError(known));
}

void Job::NoteSaves(Rank& rank, const std::vector<ckpt::SaveOutcome>& outcomes) {
  for (const ckpt::SaveOutcome& outcome : outcomes) {
    rank.failed_saves.Add(outcome.report.status(), absl::ZeroDuration());
  }
}

absl::Status Job::Train(Rank& rank) {
  if (phase_.async) OpenSaver(rank);
  if (phase_.stops && rank.number() == 0) {
    rank.stop_file = std::make_unique<ckpt::StopFile>(site_.StopFile());
  }
  ckpt::SaveSchedule schedule({.interval_steps = phase_.save_interval,
                               .rolling_interval_steps = phase_.rolling_interval,
                               .last_step = rank.step + phase_.steps},
                              rank.step);
  bool may_be_stopped = rank.stop_file != nullptr;
  int steps_after_stop_file = 0;
  for (bool ends = false; !ends;) {
    const int64_t step = ++rank.step;
    Scheduler::Get().Sleep(static_cast<int64_t>(Scheduler::Get().Draw() % 20) * kSecond);
    TESSERA_ASSIGN_OR_RETURN(const StepAgreement agreed, AgreeOnStep(rank));
    const ckpt::SaveDecision decision =
        schedule.AfterStep({.step = step, .stop_file = agreed.stop_file});
    ends = decision.end != ckpt::EndReason::kNone;
    const ckpt::StopRequest& asked = agreed.stop_file;
    // What the first read finds is taken for a request that an earlier job has obeyed.
    if (asked.version == 1 && asked.step != 0) may_be_stopped = false;
    const bool is_asked = may_be_stopped && asked.version > 0 && stop_file_is_there_;
    if (is_asked && ++steps_after_stop_file > 10) {
      Journal::Get().Finding("unstopped", "a job goes on although a stop file asks for its end");
    }
    if (agreed.in_trouble && !ends) return rank.failed_saves.last();
    const bool permanent = decision.save == ckpt::SaveKind::kPermanent;
    if (rank.saver != nullptr) {
      while (auto outcome = rank.saver->Poll()) NoteSaves(rank, {*std::move(outcome)});
      rank.saver->WaitUntilAllCopied();
      // So that the last save is not skipped.
      if (ends) NoteSaves(rank, rank.saver->Finish());
    }
    rank.content.Fill(IdOf(step, !permanent));
    if (decision.save == ckpt::SaveKind::kNone) continue;
    TESSERA_RETURN_IF_ERROR(SaveStep(rank, step, !permanent, !(phase_.diverges && ends)));
  }
  if (rank.saver != nullptr) NoteSaves(rank, rank.saver->Finish());
  TESSERA_RETURN_IF_ERROR(rank.failed_saves.last());
  if (rank.number() == 0) model_.JobSucceeded(IdOf(rank.step, false));
  return absl::OkStatus();
}

absl::Status Job::SaveStep(Rank& rank, int64_t step, bool rolling, bool healthy) {
  const int64_t id = IdOf(step, rolling);
  if (rank.number() == 0) model_.SaveBegins(id, step, rolling, healthy);
  const ckpt::SaveRequest request = {step, rolling, DescribeSave(id, step, healthy)};
  if (rank.saver != nullptr) {
    rank.saver->Start(request, rank.content.state());
    return absl::OkStatus();
  }
  ckpt::SaveOptions options = SmallSaves();
  options.group = &rank.group;
  options.before_commit = [&] { return Confirm(rank); };
  TESSERA_ASSIGN_OR_RETURN(
      const ckpt::SaveReport report,
      ckpt::SaveNow(*rank.storage, request, rank.content.state(), options, Hooks(rank)));
  AfterCommit(rank, report);
  return absl::OkStatus();
}

absl::Status Job::Confirm(Rank& rank) {
  return rank.lock != nullptr ? rank.lock->Confirm() : absl::OkStatus();
}

absl::StatusOr<std::string> Job::ChooseRoot(Rank& rank, const ckpt::PlannedSave& planned) {
  std::string root;
  if (planned.rolling) {
    model_.RetentionRuns();
    TESSERA_ASSIGN_OR_RETURN(root, ckpt::EmptyRollingSlot(*rank.storage));
  }
  TESSERA_RETURN_IF_ERROR(
      rank.retention
          ->MakeRoom({planned.step, planned.rolling, planned.data_bytes + 2048}, absl::Now())
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
