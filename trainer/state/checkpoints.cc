#include "trainer/state/checkpoints.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/storage/posix_storage.h"
#include "trainer/state/saved_run.pb.h"

namespace tessera {
namespace {

// Where in `saved` the wanted checkpoint is.
absl::StatusOr<size_t> Choose(ckpt::Storage& storage, const CheckpointConfig& config,
                              const std::vector<ckpt::CheckpointInfo>& saved) {
  if (!config.has_ckpt_step()) return saved.size() - 1;
  std::vector<int64_t> steps;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (saved[i].step == config.ckpt_step()) return i;
    steps.push_back(saved[i].step);
  }
  return absl::NotFoundError(absl::StrCat("ckpt_step ", config.ckpt_step(),
                                          ": no such checkpoint in ", storage.Describe(""),
                                          "; there are steps ", absl::StrJoin(steps, ", ")));
}

// A checkpoint in the place of the folder that holds it would look like a folder without any.
absl::Status CheckFolder(std::string_view setting, const std::string& folder,
                         ckpt::Storage& storage) {
  if (absl::IsNotFound(ckpt::ReadManifest(storage, "").status())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(setting), "=", folder, " is a single checkpoint: expected the folder above it",
      setting == "load" ? "; --ckpt-step chooses a checkpoint by its step" : ""));
}

// Names the way round a checkpoint that cannot be read.
absl::Status WithOlderStep(const absl::Status& status, const SavedRun& saved) {
  if (!saved.older_step.has_value()) return status;
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; --ckpt-step=", *saved.older_step,
                                   " resumes from the checkpoint before"));
}

bool HasRole(const ckpt::Manifest& manifest, ckpt::Role role) {
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    if (tensor.role() == role) return true;
  }
  return false;
}

bool BelongsToOptimizer(ckpt::Role role) {
  return role == ckpt::OPTIMIZER_STATE || role == ckpt::MASTER_WEIGHT;
}

// Asks for the saved master weight in the place of every fp32 weight that was saved rounded. Returns
// whether there was one.
bool TakeWeightsFromMaster(const ckpt::Manifest& manifest, ckpt::StateDict& wanted) {
  std::unordered_map<std::string, const ckpt::LogicalTensor*> saved;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) saved[tensor.name()] = &tensor;
  bool any = false;
  for (ckpt::ShardedTensor& tensor : wanted.tensors) {
    if (tensor.role != ckpt::WEIGHT || tensor.dtype != ckpt::F32 || !tensor.alias_of.empty()) {
      continue;
    }
    const auto weight = saved.find(tensor.name);
    const std::string master = StateName(tensor.name, kMaster);
    if (weight == saved.end() || weight->second->dtype() == ckpt::F32 || !saved.contains(master)) {
      continue;
    }
    any = true;
    tensor.name = master;
    tensor.role = ckpt::MASTER_WEIGHT;
  }
  return any;
}

// Asks for weights in the place of master weights: "x.master" becomes "x".
ckpt::StateDict MastersFromWeights(ckpt::StateDict optimizer) {
  ckpt::StateDict masters;
  for (ckpt::ShardedTensor& tensor : optimizer.tensors) {
    if (tensor.role != ckpt::MASTER_WEIGHT) continue;
    tensor.name.resize(tensor.name.size() - kMaster.size() - 1);
    tensor.role = ckpt::WEIGHT;
    masters.tensors.push_back(std::move(tensor));
  }
  return masters;
}

void RemoveMasters(ckpt::StateDict& state) {
  std::erase_if(state.tensors, [](const ckpt::ShardedTensor& tensor) {
    return tensor.role == ckpt::MASTER_WEIGHT;
  });
}

void Append(ckpt::StateDict from, ckpt::StateDict& to) {
  for (ckpt::ShardedTensor& tensor : from.tensors) to.tensors.push_back(std::move(tensor));
}

// Saved tensors that no rank asked for, except those that are left out on purpose and weights whose
// master weight some rank asked for instead: rank 0's error.
absl::Status CheckUnexpected(const SavedRun& saved, const ckpt::StateDict& wanted,
                             const std::function<bool(const ckpt::LogicalTensor&)>& left_out,
                             const RankGroup& group) {
  std::string mine;
  for (const ckpt::ShardedTensor& tensor : wanted.tensors)
    absl::StrAppend(&mine, tensor.name, "\n");
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                           group.ranks.Gather(mine, group.deadline));
  if (group.ranks.rank() != 0) return absl::OkStatus();
  absl::flat_hash_set<absl::string_view> names;
  for (const std::string& lines : ranks) {
    for (const absl::string_view name : absl::StrSplit(lines, '\n')) names.insert(name);
  }
  const auto is_wanted = [&names](const ckpt::LogicalTensor& tensor) {
    if (names.contains(tensor.name())) return true;
    return tensor.role() == ckpt::WEIGHT && names.contains(StateName(tensor.name(), kMaster));
  };
  std::vector<std::string> unexpected;
  for (const ckpt::LogicalTensor& tensor : saved.manifest.tensors()) {
    if (!is_wanted(tensor) && !left_out(tensor)) unexpected.push_back(tensor.name());
  }
  if (unexpected.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      saved.Describe(),
      " holds tensors that this model has no place for: ", absl::StrJoin(unexpected, ", ")));
}

absl::StatusOr<std::optional<SavedRun>> FindOnThisRank(const CheckpointConfig& config) {
  absl::StatusOr<std::unique_ptr<ckpt::Storage>> storage = ckpt::OpenPosixStorage(config.load());
  // Who asks for weights does not mean a fresh start.
  const bool required =
      config.exit_on_missing_checkpoint() || config.has_ckpt_step() || config.finetune();
  if (absl::IsNotFound(storage.status()) && !required) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(storage.status());
  TESSERA_RETURN_IF_ERROR(CheckFolder("load", config.load(), **storage));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ckpt::CheckpointInfo> saved,
                           ckpt::List(**storage, ""));
  if (saved.empty()) {
    if (!required) return std::nullopt;
    return absl::NotFoundError(absl::StrCat("load: no checkpoint in ", config.load()));
  }
  SavedRun run{.storage = *std::move(storage)};
  TESSERA_ASSIGN_OR_RETURN(const size_t chosen, Choose(*run.storage, config, saved));
  run.directory = saved[chosen].directory;
  if (chosen > 0) run.older_step = saved[chosen - 1].step;
  absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(*run.storage, run.directory);
  if (!manifest.ok()) return WithOlderStep(manifest.status(), run);
  run.manifest = *std::move(manifest);
  return run;
}

// What rank 0 tells the others about the checkpoint that it has found.
std::string Encode(const std::optional<SavedRun>& run) {
  SavedRunMessage message;
  message.set_found(run.has_value());
  if (run.has_value()) {
    message.set_directory(run->directory);
    if (run->older_step.has_value()) message.set_older_step(*run->older_step);
    message.set_manifest(run->manifest.SerializeAsString());
  }
  return message.SerializeAsString();
}

absl::StatusOr<std::optional<SavedRun>> Decode(const std::string& bytes,
                                               const CheckpointConfig& config) {
  SavedRunMessage message;
  SavedRun run;
  if (!message.ParseFromString(bytes) || !run.manifest.ParseFromString(message.manifest())) {
    return absl::InternalError("rank 0's message about the checkpoint does not parse");
  }
  if (!message.found()) return std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(run.storage, ckpt::OpenPosixStorage(config.load()));
  run.directory = message.directory();
  if (message.has_older_step()) run.older_step = message.older_step();
  return run;
}

// What rank 0 finds out before anybody saves.
absl::StatusOr<std::unique_ptr<FolderLock>> ReserveOnThisRank(const CheckpointConfig& config,
                                                              int64_t step) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::Storage> storage,
                           ckpt::OpenPosixStorage(config.save(), {.create_root = true}));
  TESSERA_RETURN_IF_ERROR(CheckFolder("save", config.save(), *storage));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<FolderLock> lock, FolderLock::Acquire(config.save()));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ckpt::CheckpointInfo> saved, ckpt::List(*storage, ""));
  std::vector<int64_t> later;
  for (const ckpt::CheckpointInfo& info : saved) {
    if (info.step > step) later.push_back(info.step);
  }
  if (later.empty()) return lock;
  return absl::FailedPreconditionError(
      absl::StrCat("save: ", config.save(), " holds checkpoints of later steps (",
                   absl::StrJoin(later, ", "), ") than this run starts from (", step,
                   "); resume with --load=", config.save(), ", or save to another folder"));
}

}  // namespace

absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const CheckpointConfig& config,
                                                     const RankGroup& group) {
  if (config.load().empty()) return std::nullopt;
  if (group.ranks.rank() != 0) {
    TESSERA_ASSIGN_OR_RETURN(const std::string found, group.ranks.Broadcast("", group.deadline));
    return Decode(found, config);
  }
  TESSERA_ASSIGN_OR_RETURN(std::optional<SavedRun> run, FindOnThisRank(config));
  TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast(Encode(run), group.deadline).status());
  return run;
}

absl::StatusOr<LoadNotes> LoadTensors(const SavedRun& saved, StateChunks chunks,
                                      bool with_optimizer, const RankGroup& group) {
  LoadNotes notes;
  if (with_optimizer && !HasRole(saved.manifest, ckpt::OPTIMIZER_STATE)) {
    return absl::FailedPreconditionError(absl::StrCat(
        saved.Describe(),
        " was saved without optimizer state; --no-load-optim resumes with a fresh one"));
  }
  ckpt::StateDict wanted = WeightState(chunks);
  if (TakeWeightsFromMaster(saved.manifest, wanted)) {
    notes.sentences.push_back("fp32 weights come from the master weights");
  }

  const bool has_master = with_optimizer && chunks.front().optimizer->has_master();
  const bool masters_from_weights = has_master && !HasRole(saved.manifest, ckpt::MASTER_WEIGHT);
  if (with_optimizer) Append(OptimizerTensors(chunks), wanted);
  if (masters_from_weights) RemoveMasters(wanted);
  const auto left_out = [&](const ckpt::LogicalTensor& tensor) {
    return (!has_master && tensor.role() == ckpt::MASTER_WEIGHT) ||
           (!with_optimizer && BelongsToOptimizer(tensor.role()));
  };
  TESSERA_RETURN_IF_ERROR(CheckUnexpected(saved, wanted, left_out, group));

  ckpt::LoadOptions options;
  options.allow_unexpected = true;  // checked above, with what is left out on purpose
  options.deadline = group.deadline;
  const absl::StatusOr<ckpt::LoadReport> loaded =
      ckpt::Load(*saved.storage, saved.directory, wanted, group.ranks, options);
  if (!loaded.ok()) return WithOlderStep(loaded.status(), saved);
  notes.report = *loaded;
  if (masters_from_weights) {
    ckpt::StateDict masters = MastersFromWeights(OptimizerTensors(chunks));
    TESSERA_ASSIGN_OR_RETURN(
        const ckpt::LoadReport report,
        ckpt::Load(*saved.storage, saved.directory, masters, group.ranks, options));
    notes.report.bytes_needed += report.bytes_needed;
    notes.report.bytes_read += report.bytes_read;
    notes.report.bytes_received += report.bytes_received;
    notes.report.bytes_sent += report.bytes_sent;
    notes.report.buffer_bytes = std::max(notes.report.buffer_bytes, report.buffer_bytes);
    notes.report.seconds += report.seconds;
    notes.sentences.push_back("master weights come from the saved weights");
  }
  return notes;
}

absl::StatusOr<std::unique_ptr<FolderLock>> ReserveSaveFolder(const CheckpointConfig& config,
                                                              int64_t step,
                                                              const RankGroup& group) {
  if (config.save().empty()) return nullptr;
  std::unique_ptr<FolderLock> lock;
  if (group.ranks.rank() == 0) {
    TESSERA_ASSIGN_OR_RETURN(lock, ReserveOnThisRank(config, step));
  }
  // The folder is there, and is ours, before anybody goes on.
  TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast("", group.deadline).status());
  return lock;
}

}  // namespace tessera
