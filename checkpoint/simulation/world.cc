#include "checkpoint/simulation/world.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/simulation/content.h"
#include "checkpoint/simulation/disk.h"
#include "checkpoint/simulation/faults.h"
#include "checkpoint/simulation/scheduler.h"

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
  Disk::Get().Begin(
      root, {"saves", "other", "nearby"},
      {.capacity_bytes = script_.capacity_bytes, .renames_by_link = script_.renames_by_link});
  site_ = std::make_unique<SimulatedSite>(script_, root, model_);
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
  End();
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
}

void World::AwaitJobs() {
  Scheduler& scheduler = Scheduler::Get();
  const int64_t until = scheduler.now_ns() + kMaxJobTime;
  const auto over = [&] {
    return std::ranges::all_of(jobs_, [](const auto& job) { return job->IsOver(); });
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
  for (const auto& job : jobs_) {
    if (std::ranges::find(job->processes(), process) == job->processes().end()) continue;
    for (const int other : job->processes()) {
      if (all || other == process) Kill(other);
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
  Disk::Get().LosePower(Scheduler::Get().Draw());
  if (!script_.object_store) model_.PowerGoes();
}

}  // namespace tessera::simulation
