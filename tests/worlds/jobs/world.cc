#include "tests/worlds/jobs/world.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/scan/verify.h"
#include "tests/worlds/jobs/faults.h"
#include "tests/worlds/jobs/scheduler.h"

namespace tessera::simulation {
namespace {

constexpr int64_t kMaxJobTime = 48 * 60 * kMinute;  // of simulated time

}  // namespace

World::World(const Case& what, const std::string& root, std::function<void()> stop)
    : script_(ScriptOf(what)),
      seed_(what.seed),
      stop_(std::move(stop)),
      model_(script_.retention, script_.tight()) {
  Scheduler::Get().Begin(seed_, [this](const std::string& why) {
    Journal::Get().Finding("endless", why);
    stop_();
  });
  Journal::Get().Hide(root);
  Journal::Get().Hide(absl::StrCat("pid ", getpid()));
  Disk::Get().Begin(
      root, {"saves", "other", "nearby"},
      {.capacity_bytes = script_.capacity_bytes, .renames_by_link = script_.renames_by_link});
  site_ = std::make_unique<Site>(script_, root, model_);
  Faults& faults = Faults::Get();
  faults.Begin(seed_, script_.rates, what.faults);
  faults.die = [this](int process, bool all) { Die(process, all); };
  faults.lose_power = [this] { LosePower(); };
}

void World::Run() {
  Journal::Get().Note(Describe(script_));
  for (const Phase& phase : script_.phases) {
    if (phase.steps == 0) continue;
    if (!phase.overlaps) {
      AwaitJobs();
    } else {
      Scheduler::Get().Sleep(static_cast<int64_t>(Hash(seed_, jobs_.size()) % 300) * kSecond);
    }
    Begin(phase);
  }
  AwaitJobs();
  CheckNoneFailedWithoutReason();
  End();
}

void World::CheckNoneFailedWithoutReason() const {
  const auto is_a_reason = [](const Phase& phase) {
    return phase.overlaps || phase.goes_back || phase.diverges || phase.blind_rank >= 0 ||
           phase.file_rots || (phase.token_expires && phase.token_outage_s > 0);
  };
  if (!Faults::Get().happened().empty() || script_.tight() ||
      std::ranges::any_of(script_.phases, is_a_reason)) {
    return;
  }
  for (const auto& job : jobs_) {
    if (job->result().has_value() && job->result()->ok()) continue;
    Journal::Get().Finding("needless", "a job fails although nothing has gone wrong");
  }
}

void World::Begin(const Phase& phase) {
  const Model::View view = site_->Look();
  std::vector<Sighting> committed = view;
  std::erase_if(committed, [](const Sighting& sighting) { return !sighting.committed; });
  const auto pick = [&](uint64_t salt) -> const Sighting* {
    if (committed.empty()) return nullptr;
    return &committed[Hash(seed_, salt, jobs_.size()) % committed.size()];
  };
  if (const Sighting* chosen = pick(5); chosen != nullptr && phase.user_deletes) {
    Journal::Get().Note("the user deletes " + chosen->directory);
    for (const Sighting& sighting : view) {
      if (sighting.directory == chosen->directory) model_.UserDeletes(sighting.id);
    }
    site_->DeleteTree(chosen->directory);
  }
  if (const Sighting* chosen = pick(6); chosen != nullptr && phase.file_rots) {
    model_.Rots(chosen->id);
    site_->Rot(chosen->directory);
  }
  if (phase.blind_rank >= 0 && !committed.empty() && Hash(seed_, 8, jobs_.size()) % 2 == 0) {
    const auto newest = std::ranges::max_element(committed, {}, &Sighting::step);
    site_->MakeStale(newest->directory);
  }
  const int number = static_cast<int>(jobs_.size()) + 1;
  jobs_.push_back(std::make_unique<Job>(number, phase, script_, *site_, model_));
  std::erase_if(committed,
                [](const Sighting& s) { return s.directory.find('/') != s.directory.npos; });
  if (const Sighting* chosen = pick(7); chosen != nullptr && phase.goes_back) {
    jobs_.back()->set_asked_step(chosen->step);
  }
  jobs_.back()->Start();
  Disturb(phase, *jobs_.back());
}

void World::Disturb(const Phase& phase, Job& job) {
  Scheduler& scheduler = Scheduler::Get();
  const auto soon = [&scheduler] {
    scheduler.Sleep(static_cast<int64_t>(scheduler.Draw() % 100) * kSecond);
  };
  if (phase.stops) {
    site_->WriteStopFile(false);
    scheduler.Start(kWorld, [this, &job, soon] {
      soon();
      Journal::Get().Note("a stop file is written");
      site_->WriteStopFile(true);
      job.NoteStopFile();
    });
  }
  if (phase.token_expires) {
    scheduler.Start(kWorld, [this, soon, outage = phase.token_outage_s * kSecond] {
      soon();
      site_->ExpireToken(outage);
    });
  }
  if (phase.clock_jumps) scheduler.Start(kWorld, [this, phase, &job] { JumpClocks(phase, job); });
  if (phase.is_tended) {
    tenders_.push_back(scheduler.NewProcess(absl::StrCat("tender", jobs_.size())));
    scheduler.Start(tenders_.back(),
                    [this] { Journal::Get().Note(absl::StrCat("ends: ", Tend().ToString())); });
  }
}

// An object store refuses requests whose clock is wrong by more than a quarter of an hour.
void World::JumpClocks(const Phase& phase, const Job& job) {
  Scheduler& scheduler = Scheduler::Get();
  int64_t offset = phase.clock_offset_s;
  for (int i = 0; i < 4; ++i) {
    scheduler.Sleep(static_cast<int64_t>(scheduler.Draw() % 40) * kSecond);
    const int64_t now =
        (static_cast<int64_t>(scheduler.Draw() % 1200) - 600) * (script_.object_store ? 1 : 100);
    for (const int process : job.processes())
      scheduler.MoveClock(process, (now - offset) * kSecond);
    Journal::Get().Note(absl::StrCat("clocks jump by ", now - offset, " s"));
    offset = now;
  }
}

// Another program, as its user starts it beside a job.
absl::Status World::Tend() {
  Scheduler& scheduler = Scheduler::Get();
  TESSERA_ASSIGN_OR_RETURN(const auto storage, site_->Open(Phase(), /*blind=*/false));
  for (int i = 0; i < 3; ++i) {
    scheduler.Sleep(static_cast<int64_t>(scheduler.Draw() % 60) * kSecond);
    const int keep = static_cast<int>(scheduler.Draw() % 6);
    if (keep == 0) {
      VerifyAll(*storage);
    } else {
      model_.PruneRuns(keep);
      ckpt::CheckpointFolder(*storage).Prune(keep).IgnoreError();
    }
  }
  return absl::OkStatus();
}

void World::VerifyAll(Storage& storage) {
  const auto listed = ckpt::CheckpointFolder(storage).List();
  if (!listed.ok()) return;
  for (const ckpt::CheckpointInfo& info : *listed) {
    Model::View before = site_->Look();
    const auto verified = ckpt::VerifyCheckpoint(storage, info.directory);
    if (!verified.ok() || verified->damage.empty()) continue;
    const Model::View after = site_->Look();
    for (const Sighting& sighting : before) {
      const auto stays = [&](const Sighting& other) {
        return other.id == sighting.id && other.committed && other.complete;
      };
      if (sighting.directory != info.directory || !sighting.committed || !sighting.complete ||
          !model_.IsSound(sighting.id) || std::ranges::none_of(after, stays)) {
        continue;
      }
      Journal::Get().Finding(
          "slandered",
          absl::StrCat(info.directory, ", which is intact: ", verified->damage[0].message));
    }
  }
}

void World::AwaitJobs() {
  Scheduler& scheduler = Scheduler::Get();
  const int64_t until = scheduler.now_ns() + kMaxJobTime;
  const auto over = [&] {
    return std::ranges::all_of(jobs_, [](const auto& job) { return job->IsOver(); }) &&
           std::ranges::all_of(tenders_, [&](int process) { return scheduler.IsOver(process); });
  };
  while (!over()) {
    scheduler.Sleep(10 * kSecond);
    if (scheduler.now_ns() < until) continue;
    Journal::Get().Finding("endless", "a job does not end");
    stop_();
  }
}

// Without faults, and once nothing is under way, a job continues and saves.
void World::End() {
  Faults::Get().SetOff();
  Scheduler::Get().Sleep(60 * kMinute);
  const Model::View view = site_->Look();
  const bool has_valid = std::ranges::any_of(view, [&](const Sighting& sighting) {
    return sighting.committed && sighting.complete && sighting.healthy &&
           model_.IsSound(sighting.id);
  });
  Phase last;
  last.steps = 3;
  Begin(last);
  AwaitJobs();
  site_->Look();
  const absl::Status result = jobs_.back()->result().value_or(absl::UnknownError("it died"));
  const bool may_fail =
      (!view.empty() && !has_valid) || (script_.tight() && absl::IsResourceExhausted(result));
  if (!result.ok() && !may_fail) {
    Journal::Get().Finding("stuck", absl::StrCat("the last job fails: ", result.message()));
  }
}

void World::Die(int process, bool all) {
  Kill(process);
  for (const auto& job : jobs_) {
    if (std::ranges::find(job->processes(), process) == job->processes().end()) continue;
    for (const int other : job->processes()) {
      if (all) Kill(other);
    }
  }
}

void World::Kill(int process) {
  Scheduler::Get().Kill(process);
  Disk::Get().CloseFilesOf(process);
}

void World::LosePower() {
  for (const auto& job : jobs_) {
    for (const int process : job->processes()) Kill(process);
  }
  for (const int process : tenders_) Kill(process);
  Disk::Get().LosePower(Scheduler::Get().Draw());
  if (!script_.object_store) model_.PowerGoes();
}

}  // namespace tessera::simulation
