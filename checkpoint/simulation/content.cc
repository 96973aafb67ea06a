#include "checkpoint/simulation/content.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/load/load.h"
#include "checkpoint/simulation/scheduler.h"

namespace tessera::simulation {
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

absl::Status LookInto(ckpt::Storage& storage, const std::string& directory, bool is_place,
                      std::vector<Sighting>& found) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(directory));
  for (const std::string& name : names) {
    const bool is_temporary = name.find(".tmp-") != name.npos;
    if (!name.starts_with("manifest.pb") || is_temporary) continue;
    const auto bytes = ckpt::ReadAll(storage, ckpt::JoinPath(directory, name), 1 << 20);
    const auto manifest = bytes.ok() ? ckpt::DecodeManifest(*bytes, ckpt::Checksums::kRequired)
                                     : absl::StatusOr<ckpt::Manifest>(bytes.status());
    if (!manifest.ok()) continue;
    Sighting sighting = {.id = IdOf(*manifest),
                         .step = manifest->trainer().step(),
                         .healthy = IsHealthy(*manifest),
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

absl::StatusOr<std::vector<Sighting>> LookAround(ckpt::Storage& storage) {
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

std::string ReadBack(ckpt::Storage& storage, const Sighting& sighting) {
  Content content(0, 1);
  const auto loaded =
      ckpt::LoadCheckpoint(storage, sighting.directory, content.state(), {.io_threads = 1});
  if (!loaded.ok()) return std::string(loaded.status().message());
  return content.Is(sighting.id) ? "" : "its contents are not those that were saved";
}

}  // namespace tessera::simulation
