// Folders of checkpoints, checkpoints, and saves in the background.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/c/handles.h"
#include "checkpoint/format/manifest_codec.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::c {
namespace {

using Json = nlohmann::ordered_json;

std::function<void(uint64_t, uint64_t)> ProgressOf(tessera_progress progress, void* context) {
  if (progress == nullptr) return nullptr;
  return [=](uint64_t done, uint64_t total) { progress(context, done, total); };
}

absl::StatusOr<LoadOptions> ReadLoadOptions(const tessera_load_options& from) {
  LoadOptions options;
  TESSERA_RETURN_IF_ERROR(SetSeconds(from.timeout_seconds, "timeout_seconds", options.timeout));
  TESSERA_RETURN_IF_ERROR(SetCount(from.io_threads, "io_threads", options.io_threads));
  options.allow_missing = from.allow_missing != 0;
  options.allow_unexpected = from.allow_unexpected != 0;
  options.verify_digests = from.verify_digests != 0;
  options.convert_dtype = from.exact_dtypes == 0;
  options.allow_overflow = from.allow_overflow != 0;
  options.allow_shared_memory = from.allow_shared_memory != 0;
  if (from.staging_bytes > 0) options.staging_bytes = from.staging_bytes;
  options.progress = ProgressOf(from.progress, from.progress_context);
  options.is_cancelled = IsSet(from.cancelled);
  return options;
}

Json ToJson(const SaveReport& report) {
  return {{"directory", report.directory},
          {"bytes_written", report.bytes_written},
          {"seconds", absl::ToDoubleSeconds(report.duration)},
          {"copied_seconds", absl::ToDoubleSeconds(report.copied_after)},
          {"blocked_seconds", absl::ToDoubleSeconds(report.blocked)},
          {"note", report.note}};
}

Json ToJson(const SaveOutcome& outcome) {
  Json json = {{"step", outcome.step}};
  if (outcome.report.ok()) {
    json.update(ToJson(*outcome.report));
  } else {
    json["code"] = static_cast<int32_t>(outcome.report.status().code());
    json["error"] = std::string(outcome.report.status().message());
  }
  return json;
}

Json ToJson(const LoadReport& report) {
  return {{"missing", report.missing},
          {"unexpected", report.unexpected},
          {"from_master", report.from_master},
          {"bytes_read", report.bytes_read},
          {"bytes_needed", report.bytes_needed},
          {"seconds", absl::ToDoubleSeconds(report.duration)},
          {"digests_verified", report.digests_verified}};
}

absl::Status List(const CheckpointFolder& folder, char** report) {
  TESSERA_ASSIGN_OR_RETURN(FolderContents contents, folder.ListAll());
  std::vector<CheckpointInfo>& all = contents.committed;
  all.insert(all.end(), contents.unreadable.begin(), contents.unreadable.end());
  std::ranges::stable_sort(all, {}, &CheckpointInfo::step);
  Json json = Json::array();
  for (const CheckpointInfo& info : all) {
    Json entry = {{"step", info.step}, {"directory", info.directory}};
    if (!info.readable.ok()) entry["error"] = std::string(info.readable.message());
    json.push_back(std::move(entry));
  }
  return GiveJson(json, report);
}

absl::StatusOr<Checkpoint> OpenByName(const std::string& name, const OpenStorageOptions& options,
                                      std::vector<std::string>& notes) {
  TESSERA_ASSIGN_OR_RETURN(const CheckpointFolder folder, CheckpointFolder::Open(name, options));
  absl::StatusOr<Checkpoint> itself = Checkpoint::Open(name, options);
  if (!absl::IsNotFound(itself.status())) return itself;
  TESSERA_ASSIGN_OR_RETURN(FoundCheckpoint latest, folder.FindLatest());
  notes = std::move(latest.notes);
  return folder.At(latest.checkpoint);
}

absl::Status Describe(const tessera_checkpoint& handle, char** report) {
  const Checkpoint& checkpoint = handle.checkpoint;
  Json json = {{"step", checkpoint.step()},
               {"directory", checkpoint.directory()},
               {"program", handle.metadata.program},
               {"format", handle.format.empty() ? "tessera" : handle.format},
               {"entries", Json::array()},
               {"notes", handle.notes},
               {"values", handle.values},
               {"masters", MasterNames(checkpoint.manifest())},
               {"tensors", Json::array()}};
  for (const auto& [name, bytes] : handle.metadata.entries) json["entries"].push_back(name);
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"role", static_cast<int>(tensor.role)},
                               {"dtype", static_cast<int>(tensor.dtype)},
                               {"shape", tensor.global_shape},
                               {"alias_of", tensor.alias_of}});
    const auto foreign = handle.foreign_names.find(tensor.name);
    if (foreign != handle.foreign_names.end()) {
      json["tensors"].back()["foreign_name"] = foreign->second;
    }
  }
  return GiveJson(json, report);
}

absl::Status ReadTensor(const Checkpoint& checkpoint, const std::string& name, int32_t dtype,
                        int32_t dims, const int64_t* offset, const int64_t* shape,
                        const int64_t* strides, void* data, int64_t elements,
                        const LoadOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const TensorInfo info, checkpoint.Find(name));
  if (dims < 0 || static_cast<size_t>(dims) != info.global_shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", name, " has ", info.global_shape.size(), " dims, not ", dims));
  }
  if (dtype < 0 || ElementSize(static_cast<DType>(dtype)) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("there is no dtype ", dtype));
  }
  if ((offset == nullptr) != (shape == nullptr)) {
    return absl::InvalidArgumentError("offset and shape: one of them is NULL");
  }
  std::optional<Box> wanted;
  if (offset != nullptr) wanted = Box{{offset, offset + dims}, {shape, shape + dims}};
  if (elements < -1) return absl::InvalidArgumentError("elements is negative");
  Shard shard = {.data = data, .dtype = static_cast<DType>(dtype), .memory_elements = elements};
  TESSERA_ASSIGN_OR_RETURN(shard.box, checkpoint.BoxOf(name, wanted));
  if (strides != nullptr) shard.strides = {strides, strides + dims};
  return checkpoint.LoadTensor(name, shard, options);
}

absl::Status CreateSaver(const tessera_folder& folder, const tessera_save_options* from,
                         tessera_saver** out) {
  auto saver = std::unique_ptr<tessera_saver>(new tessera_saver{.folder = folder.folder});
  TESSERA_ASSIGN_OR_RETURN(const AsyncSaveOptions options,
                           ReadSaveOptions(from, "options", saver->group));
  saver->saver = std::make_unique<AsyncSaver>(saver->folder.storage(), options);
  *out = saver.release();
  return absl::OkStatus();
}

}  // namespace

absl::Status Give(absl::StatusOr<Checkpoint> opened, tessera_checkpoint** out,
                  std::vector<std::string> notes) {
  TESSERA_RETURN_IF_ERROR(opened.status());
  auto checkpoint = std::unique_ptr<tessera_checkpoint>(
      new tessera_checkpoint{.checkpoint = *std::move(opened), .notes = std::move(notes)});
  checkpoint->metadata = checkpoint->checkpoint.metadata();
  *out = checkpoint.release();
  return absl::OkStatus();
}

absl::StatusOr<AsyncSaveOptions> ReadSaveOptions(const tessera_save_options* structure,
                                                 std::string_view name,
                                                 std::unique_ptr<ProcessGroup>& group) {
  TESSERA_ASSIGN_OR_RETURN(const tessera_save_options from, ReadStruct(structure, name));
  AsyncSaveOptions all;
  SaveOptions& options = all.save;
  TESSERA_RETURN_IF_ERROR(SetSeconds(from.timeout_seconds, "timeout_seconds", options.timeout));
  TESSERA_RETURN_IF_ERROR(SetCount(from.io_threads, "io_threads", options.io_threads));
  if (from.checksum_chunk_bytes > 0) options.checksum_chunk_bytes = from.checksum_chunk_bytes;
  if (from.max_file_bytes > 0) options.max_file_bytes = from.max_file_bytes;
  if (from.staging_bytes > 0) options.staging_bytes = from.staging_bytes;
  options.progress = ProgressOf(from.progress, from.progress_context);
  options.is_cancelled = IsSet(from.cancelled);
  options.overwrite = from.overwrite != 0;
  if (from.skip_when_busy != 0) all.when_busy = AsyncSaveOptions::WhenBusy::kSkip;
  TESSERA_ASSIGN_OR_RETURN(group, MakeGroup(from.group));
  options.group = group.get();
  return all;
}

Json ToJson(const std::vector<SaveOutcome>& outcomes) {
  Json json = Json::array();
  for (const SaveOutcome& outcome : outcomes) json.push_back(ToJson(outcome));
  return json;
}

}  // namespace tessera::ckpt::c

using namespace tessera::ckpt::c;  // NOLINT(google-build-using-namespace)
using tessera::ckpt::Checkpoint;
using tessera::ckpt::CheckpointFolder;

extern "C" {

int32_t tessera_folder_open(const char* name, int32_t flags, const char* s3_endpoint,
                            tessera_folder** folder) {
  return Run([&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(folder, "folder"));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, Text(name, "name"));
    if ((flags & ~TESSERA_CREATE) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("there are no flags ", flags));
    }
    TESSERA_ASSIGN_OR_RETURN(
        CheckpointFolder opened,
        CheckpointFolder::Open(text, {.create_root = flags == TESSERA_CREATE,
                                      .s3_endpoint = TextOrEmpty(s3_endpoint)}));
    *folder = new tessera_folder{.folder = std::move(opened)};
    return absl::OkStatus();
  });
}

void tessera_folder_free(tessera_folder* folder) { Free(folder); }

int32_t tessera_folder_save(tessera_folder* folder, int64_t step, const tessera_state* state,
                            const tessera_save_options* options, char** report) {
  return RunOn(folder, "folder", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckHandle(state, "state"));
    std::unique_ptr<tessera::ckpt::ProcessGroup> group;
    TESSERA_ASSIGN_OR_RETURN(const auto read, ReadSaveOptions(options, "options", group));
    TESSERA_ASSIGN_OR_RETURN(
        const auto saved,
        folder->folder.Save({.step = step, .metadata = state->metadata}, state->dict, read.save));
    return GiveJson(ToJson(saved), report);
  });
}

int32_t tessera_folder_list(tessera_folder* folder, char** report) {
  return RunOn(folder, "folder", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(report, "report"));
    return List(folder->folder, report);
  });
}

int32_t tessera_folder_prune(tessera_folder* folder, int32_t keep, int64_t saved_step) {
  return RunOn(folder, "folder", [&]() -> absl::Status {
    if (keep < 1) return absl::InvalidArgumentError(absl::StrCat("keep is ", keep));
    return folder->folder.Prune(keep, saved_step < 0 ? std::nullopt : std::optional(saved_step));
  });
}

int32_t tessera_folder_open_latest(tessera_folder* folder, tessera_checkpoint** checkpoint) {
  return RunOn(folder, "folder", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(checkpoint, "checkpoint"));
    TESSERA_ASSIGN_OR_RETURN(auto latest, folder->folder.FindLatest());
    return Give(folder->folder.At(latest.checkpoint), checkpoint, std::move(latest.notes));
  });
}

int32_t tessera_folder_open_step(tessera_folder* folder, int64_t step,
                                 tessera_checkpoint** checkpoint) {
  return RunOn(folder, "folder", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(checkpoint, "checkpoint"));
    if (step < 0) return absl::InvalidArgumentError(absl::StrCat("step is ", step));
    return Give(folder->folder.At(step), checkpoint);
  });
}

int32_t tessera_checkpoint_open(const char* name, const char* s3_endpoint,
                                tessera_checkpoint** checkpoint) {
  return Run([&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(checkpoint, "checkpoint"));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, Text(name, "name"));
    std::vector<std::string> notes;
    absl::StatusOr<Checkpoint> opened =
        OpenByName(text, {.s3_endpoint = TextOrEmpty(s3_endpoint)}, notes);
    return Give(std::move(opened), checkpoint, std::move(notes));
  });
}

void tessera_checkpoint_free(tessera_checkpoint* checkpoint) { Free(checkpoint); }

int32_t tessera_checkpoint_step(const tessera_checkpoint* checkpoint, int64_t* step) {
  return RunOn(checkpoint, "checkpoint", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(step, "step"));
    *step = checkpoint->checkpoint.step();
    return absl::OkStatus();
  });
}

int32_t tessera_checkpoint_describe(const tessera_checkpoint* checkpoint, char** report) {
  return RunOn(checkpoint, "checkpoint", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(report, "report"));
    return Describe(*checkpoint, report);
  });
}

int32_t tessera_checkpoint_entry(const tessera_checkpoint* checkpoint, const char* name,
                                 const void** data, size_t* bytes) {
  return RunOn(checkpoint, "checkpoint", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(data, "data"));
    TESSERA_RETURN_IF_ERROR(CheckPointer(bytes, "bytes"));
    TESSERA_ASSIGN_OR_RETURN(const std::string entry, Text(name, "name"));
    const auto found = checkpoint->metadata.entries.find(entry);
    if (found == checkpoint->metadata.entries.end()) {
      return absl::NotFoundError(absl::StrCat("the checkpoint has no entry ", entry));
    }
    *data = found->second.data();
    *bytes = found->second.size();
    return absl::OkStatus();
  });
}

int32_t tessera_checkpoint_load(const tessera_checkpoint* checkpoint, const tessera_state* state,
                                const tessera_load_options* options, char** report) {
  return RunOn(checkpoint, "checkpoint", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckHandle(state, "state"));
    TESSERA_ASSIGN_OR_RETURN(const tessera_load_options copy, ReadStruct(options, "options"));
    TESSERA_ASSIGN_OR_RETURN(tessera::ckpt::LoadOptions load, ReadLoadOptions(copy));
    TESSERA_ASSIGN_OR_RETURN(const auto group, MakeGroup(copy.group));
    load.group = group.get();
    TESSERA_ASSIGN_OR_RETURN(const auto loaded, checkpoint->checkpoint.Load(state->dict, load));
    return GiveJson(ToJson(loaded), report);
  });
}

int32_t tessera_checkpoint_read_tensor(const tessera_checkpoint* checkpoint, const char* name,
                                       int32_t dtype, int32_t dims, const int64_t* offset,
                                       const int64_t* shape, const int64_t* strides, void* data,
                                       int64_t elements, const tessera_load_options* options) {
  return RunOn(checkpoint, "checkpoint", [&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string text, Text(name, "name"));
    TESSERA_ASSIGN_OR_RETURN(const tessera_load_options copy, ReadStruct(options, "options"));
    TESSERA_ASSIGN_OR_RETURN(const tessera::ckpt::LoadOptions load, ReadLoadOptions(copy));
    return ReadTensor(checkpoint->checkpoint, text, dtype, dims, offset, shape, strides, data,
                      elements, load);
  });
}

int32_t tessera_saver_create(tessera_folder* folder, const tessera_save_options* options,
                             tessera_saver** saver) {
  return RunOn(folder, "folder", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(saver, "saver"));
    return CreateSaver(*folder, options, saver);
  });
}

void tessera_saver_free(tessera_saver* saver) { Free(saver); }

int32_t tessera_saver_start(tessera_saver* saver, int64_t step, const tessera_state* state) {
  return RunOn(saver, "saver", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckHandle(state, "state"));
    saver->saver->Start({.step = step, .metadata = state->metadata}, state->dict);
    return absl::OkStatus();
  });
}

int32_t tessera_saver_refuse(tessera_saver* saver, int64_t step, int32_t code,
                             const char* message) {
  return RunOn(saver, "saver", [&]() -> absl::Status {
    if (code <= TESSERA_OK || code > TESSERA_UNAUTHENTICATED) {
      return absl::InvalidArgumentError(absl::StrCat("there is no error ", code));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string text, Text(message, "message"));
    saver->saver->Refuse(step, {static_cast<absl::StatusCode>(code), text});
    return absl::OkStatus();
  });
}

int32_t tessera_saver_wait_copied(tessera_saver* saver, const void* data, size_t bytes) {
  return RunOn(saver, "saver", [&] { return WaitUntilCopied(*saver->saver, data, bytes); });
}

int32_t tessera_saver_poll(tessera_saver* saver, int32_t wait, char** report) {
  return RunOn(saver, "saver", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(report, "report"));
    return GiveJson(ToJson(wait != 0 ? saver->saver->Finish() : saver->saver->Poll()), report);
  });
}

}  // extern "C"
