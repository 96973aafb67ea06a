#include "tests/worlds/jobs/model.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "tests/worlds/jobs/faults.h"
#include "tests/worlds/jobs/scheduler.h"

namespace tessera::simulation {
namespace {

constexpr int64_t kMaxLateness = 180 * kMinute;  // of a request, and until the next look

void Finding(std::string_view kind, const std::string& text) { Journal::Get().Finding(kind, text); }

std::string Describe(const Sighting& sighting) {
  return absl::StrCat(sighting.directory, " (save ", sighting.id, ")");
}

const Sighting* Find(const Model::View& view, int64_t id) {
  const auto found =
      std::ranges::find_if(view, [&](const Sighting& s) { return s.id == id && s.committed; });
  return found == view.end() ? nullptr : &*found;
}

}  // namespace

void Model::MayBeSaved(int64_t id, int64_t step, bool healthy) {
  records_[id] = {.id = id, .step = step, .healthy = healthy};
  RetentionRuns();
}

void Model::SaveSucceeded(int64_t id, bool rolling) {
  records_[id].succeeded = true;
  records_[id].rolling = rolling;
  Journal::Get().Note(absl::StrCat("save ", id, " succeeded", rolling ? ", rolling" : "",
                                   records_[id].healthy ? "" : ", diverged"));
}

void Model::Abandons(int64_t after_step) {
  for (auto& [id, record] : records_) {
    if (record.step > after_step) record.abandoned = true;
  }
}

void Model::RetentionRuns() {
  for (auto& [id, record] : records_) {
    if (MayBeDeleted(record)) record.deletable_until_ns = Scheduler::Get().now_ns() + kMaxLateness;
  }
}

void Model::PruneRuns(int keep) {
  Journal::Get().Note(absl::StrCat("prunes, keeps ", keep));
  prunes_.push_back({keep, Scheduler::Get().now_ns() + kMaxLateness});
  // It counts what is there now, also what a job sets aside meanwhile.
  RetentionRuns();
}

void Model::JobSucceeded(int64_t last) {
  if (records_[last].succeeded) return;
  Finding("unsaved", absl::StrCat("a job ends well, but save ", last, " of its last step is not"));
}

void Model::PowerGoes() {
  for (auto& [id, record] : records_) {
    record.seen = false;
    if (record.fate == Fate::kAside) record.fate = Fate::kKept;
  }
}

bool Model::IsSound(int64_t id) const {
  const auto found = records_.find(id);
  return found != records_.end() && !found->second.rotten;
}

void Model::Look(const View& view) {
  std::set<int64_t> there;
  for (const Sighting& sighting : view) {
    const auto found = records_.find(sighting.id);
    if (found == records_.end()) continue;
    Record& record = found->second;
    there.insert(record.id);
    record.rolling = sighting.directory.starts_with("rolling-");
    if (sighting.committed) {
      record.seen = true;
      // A deletion that was not durable is undone by a loss of power.
      if (record.fate == Fate::kDeletedByUser && sighting.complete) record.fate = Fate::kKept;
      const bool sound = !record.rotten && record.fate != Fate::kDeletedByUser;
      if (!sighting.complete && sound) {
        Finding("incomplete",
                absl::StrCat(Describe(sighting), " is committed, but files are gone"));
        record.rotten = true;  // said once
      }
    } else if (!absl::StrContains(sighting.directory, ".discarded-")) {
      LookAtAside(record, sighting);
    }
  }
  for (auto& [id, record] : records_) {
    if (there.contains(id) || !(record.succeeded || record.seen)) continue;
    if (record.fate == Fate::kDeleted || record.fate == Fate::kDeletedByUser) continue;
    if (record.fate == Fate::kAside) {
      Finding("aside-lost",
              absl::StrCat("save ", id, ", of step ", record.step, ", was set aside and is gone"));
    } else if (!MayBeDeleted(record)) {
      Finding("lost", absl::StrCat("save ", id, ", of step ", record.step, ", is gone"));
    }
    record.fate = Fate::kDeleted;
  }
}

void Model::LookAtAside(Record& record, const Sighting& sighting) {
  if (record.fate == Fate::kDeletedByUser) return;
  const std::string name = absl::StrCat(sighting.directory, "/", sighting.manifest);
  const bool is_damaged = absl::StrContains(name, ".damaged");
  const bool may_be = absl::StrContains(name, ".abandoned")  ? record.abandoned
                      : absl::StrContains(name, ".diverged") ? !record.healthy
                      : is_damaged                           ? record.rotten
                                                             : true;
  if (record.fate != Fate::kAside && !may_be) {
    Finding("condemned", absl::StrCat("save ", record.id, " is intact and is set aside as ", name));
  }
  if (!sighting.complete && !record.rotten) {
    Finding("aside-lost", absl::StrCat(name, " was set aside, and files of it are gone"));
    record.rotten = true;
  }
  record.fate = Fate::kAside;
}

bool Model::MayBeDeleted(const Record& record) const {
  if (record.deletable_until_ns > Scheduler::Get().now_ns()) return true;
  int64_t later = 0, better = 0;
  bool later_healthy = false, later_rolling = false;
  for (const auto& [id, other] : records_) {
    const bool counts = (other.succeeded || other.seen) && other.fate != Fate::kAside &&
                        other.fate != Fate::kDeletedByUser;
    if (!counts || id == record.id) continue;
    if (!other.rolling && other.healthy && LossOf(id) < LossOf(record.id)) ++better;
    if (other.step < record.step) continue;
    if (other.step == record.step && other.rolling && !record.rolling) continue;
    later_healthy |= other.healthy;
    later_rolling |= other.rolling;
    later += other.rolling ? 0 : 1;
  }
  const auto is_pruned = [&](const Prune& prune) {
    return later >= prune.keep && Scheduler::Get().now_ns() < prune.until_ns;
  };
  if (!record.rolling && std::ranges::any_of(prunes_, is_pruned)) return true;
  // Retention may find that it is damaged.
  const bool good = record.healthy && !record.rotten;
  if (good && !later_healthy) return false;
  if (record.rolling) return later_rolling || tight_;
  if (!retention_.deletes()) return false;
  if (tight_) later += 2;  // the coming one, and the newest good one where it is rolling
  if (good && better < retention_.best) return false;
  return later >= std::max<int64_t>(retention_.newest, 1);
}

void Model::Resumes(const View& before, const View& now, std::optional<int64_t> taken) {
  const Sighting* newest = nullptr;
  bool were_some = false;
  for (const Sighting& sighting : before) {
    if (!sighting.committed) continue;
    were_some = true;
    // Checkpoints that were being abandoned may already be quarantined.
    const bool valid = sighting.healthy && sighting.complete && IsSound(sighting.id) &&
                       !records_[sighting.id].abandoned;
    if (!valid || Find(now, sighting.id) == nullptr) continue;
    if (newest == nullptr || sighting.step > newest->step) newest = &sighting;
  }
  if (!taken.has_value()) {
    Journal::Get().Note("begins anew");
    if (were_some) Finding("anew", "a job begins at step 0 although there are checkpoints");
    return;
  }
  const auto record = records_.find(*taken);
  if (record == records_.end()) return Finding("unknown", absl::StrCat("save ", *taken));
  Journal::Get().Note(absl::StrCat("resumes from save ", *taken));
  if (!record->second.healthy) {
    Finding("unhealthy", absl::StrCat("a job resumes from save ", *taken, ", which is diverged"));
  } else if (newest != nullptr && newest->step > record->second.step) {
    Finding("older", absl::StrCat("a job resumes from save ", *taken, " although there is ",
                                  Describe(*newest)));
  }
}

namespace {

constexpr int64_t kRows = 6, kColumns = 8;
constexpr char kId[] = "id";

Box Slice(int dim, int rank, int ranks) {
  Box box = {.global_offset = {0, 0}, .shape = {kRows, kColumns}};
  const int64_t size = box.shape[dim];
  box.global_offset[dim] = size * rank / ranks;
  box.shape[dim] = size * (rank + 1) / ranks - box.global_offset[dim];
  return box;
}

absl::Status LookInto(Storage& storage, const std::string& directory, bool is_place,
                      std::vector<Sighting>& found) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(directory));
  for (const std::string& name : names) {
    const bool is_temporary = name.find(".tmp-") != name.npos;
    if (!name.starts_with("manifest.pb") || is_temporary) continue;
    const auto bytes = ReadAll(storage, ckpt::JoinPath(directory, name), 1 << 20);
    const auto manifest = bytes.ok() ? ckpt::DecodeManifest(*bytes, ckpt::Checksums::kRequired)
                                     : absl::StatusOr<ckpt::Manifest>(bytes.status());
    if (!manifest.ok()) continue;
    Sighting sighting = {.id = IdOf(*manifest),
                         .step = manifest->trainer().step(),
                         .healthy = simulation::IsHealthy(*manifest),
                         .directory = directory,
                         .manifest = name,
                         .committed = is_place && name == "manifest.pb",
                         .complete = true};
    if (sighting.id < 0) continue;
    for (const ckpt::DataFile& file : manifest->files()) {
      const auto opened = storage.Open(ckpt::JoinPath(directory, file.path()));
      sighting.complete &= opened.ok() && (*opened)->size_bytes() == file.size_bytes();
    }
    found.push_back(std::move(sighting));
  }
  return absl::OkStatus();
}

}  // namespace

Content::Content(int rank, int ranks) {
  Add("w", ckpt::TensorRole::kWeight, {kRows, kColumns}, Slice(0, rank, ranks));
  Add("m", ckpt::TensorRole::kOptimizerState, {kRows, kColumns}, Slice(1, rank, ranks));
  Add("b", ckpt::TensorRole::kWeight, {kColumns}, {.global_offset = {0}, .shape = {kColumns}});
  for (size_t i = 0; i < parts_.size(); ++i) {
    state_.tensors[i].shards = {ckpt::Shard::Of(parts_[i].memory, parts_[i].box)};
  }
}

void Content::Add(std::string name, ckpt::TensorRole role, const Shape& shape, Box box) {
  int64_t elements = 1;
  for (const int64_t size : box.shape) elements *= size;
  parts_.push_back({std::move(box), std::vector<float>(elements)});
  ckpt::ShardedTensor tensor = {.name = std::move(name), .role = role};
  tensor.global_shape = shape;
  state_.tensors.push_back(std::move(tensor));
}

// Calls function(element of the memory, its value in the save).
template <typename Function>
void Content::ForEach(int64_t id, Function function) {
  for (size_t t = 0; t < parts_.size(); ++t) {
    Part& part = parts_[t];
    const Box& box = part.box;
    const int64_t columns = box.shape.back();
    for (size_t i = 0; i < part.memory.size(); ++i) {
      const int64_t row = box.shape.size() == 1 ? 0 : box.global_offset[0] + int64_t(i) / columns;
      const int64_t column = box.global_offset.back() + int64_t(i) % columns;
      const uint64_t index = row * kColumns + column;
      function(part.memory[i], static_cast<float>(Hash(id, t, index) % (1 << 24)));
    }
  }
}

void Content::Fill(int64_t id) {
  ForEach(id, [](float& element, float value) { element = value; });
}

bool Content::Is(int64_t id) const {
  bool same = true;
  const_cast<Content*>(this)->ForEach(
      id, [&](const float& element, float value) { same &= element == value; });
  return same;
}

double LossOf(int64_t id) { return 1e-9 * static_cast<double>(Hash(id, 77) % 1'000'000'000); }

ckpt::Metadata DescribeSave(int64_t id, int64_t step, bool healthy) {
  ckpt::Manifest manifest;
  ckpt::TrainerState& trainer = *manifest.mutable_trainer();
  trainer.set_step(step);
  trainer.mutable_health()->set_state_is_finite(healthy);
  trainer.mutable_health()->set_loss_is_sane(healthy);
  if (healthy) trainer.mutable_health()->set_validation_loss(LossOf(id));
  (*trainer.mutable_extra())[kId] = absl::StrCat(id);
  manifest.mutable_producer()->set_created_unix_ms(Scheduler::Get().WallClock() / kMillisecond);
  return ckpt::ToMetadata(std::move(manifest));
}

int64_t IdOf(const ckpt::Manifest& manifest) {
  const auto found = manifest.trainer().extra().find(kId);
  int64_t id = -1;
  if (found != manifest.trainer().extra().end() && !absl::SimpleAtoi(found->second, &id)) return -1;
  return id;
}

bool IsHealthy(const ckpt::Manifest& manifest) {
  return manifest.trainer().health().state_is_finite();
}

absl::StatusOr<std::vector<Sighting>> LookAround(Storage& storage) {
  std::vector<Sighting> found;
  std::vector<std::string> folders = {""};
  while (!folders.empty()) {
    const std::string folder = folders.back();
    folders.pop_back();
    const absl::StatusOr<std::vector<std::string>> names = storage.List(folder);
    if (absl::IsNotFound(names.status())) continue;
    TESSERA_RETURN_IF_ERROR(names.status());
    for (std::string name : *names) {
      if (!name.ends_with('/')) continue;
      name.pop_back();
      const std::string path = ckpt::JoinPath(folder, name);
      if (!name.starts_with("step-")) {
        folders.push_back(path);
        continue;
      }
      TESSERA_RETURN_IF_ERROR(
          LookInto(storage, path, ckpt::ParseStepDirectoryName(name).has_value(), found));
    }
  }
  return found;
}

std::string ReadBack(Storage& storage, const Sighting& sighting) {
  Content content(0, 1);
  const auto opened = ckpt::Checkpoint::Open(storage, sighting.directory);
  if (!opened.ok()) return std::string(opened.status().message());
  const auto loaded = opened->Load(content.state(), {.io_threads = 1});
  if (!loaded.ok()) return std::string(loaded.status().message());
  return content.Is(sighting.id) ? "" : "its contents are not those that were saved";
}

}  // namespace tessera::simulation
