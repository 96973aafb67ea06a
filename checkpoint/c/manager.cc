// The checkpoints of a job.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/c/handles.h"

namespace tessera::ckpt::c {
namespace {

using Json = nlohmann::ordered_json;

absl::Status CheckCount(int64_t value, std::string_view name) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), " is ", value));
}

absl::StatusOr<SaveScheduleOptions> ScheduleOf(const tessera_manager_options& from) {
  TESSERA_RETURN_IF_ERROR(CheckCount(from.last_step, "last_step"));
  TESSERA_RETURN_IF_ERROR(CheckCount(from.interval_steps, "interval_steps"));
  TESSERA_RETURN_IF_ERROR(CheckCount(from.rolling_interval_steps, "rolling_interval_steps"));
  SaveScheduleOptions schedule = {.saves = from.never_saves == 0,
                                  .interval_steps = from.interval_steps,
                                  .rolling_interval_steps = from.rolling_interval_steps,
                                  .last_step = from.last_step};
  TESSERA_RETURN_IF_ERROR(SetSeconds(from.interval_seconds, "interval_seconds", schedule.interval));
  TESSERA_RETURN_IF_ERROR(
      SetSeconds(from.exit_after_seconds, "exit_after_seconds", schedule.exit_after));
  return schedule;
}

absl::Status OpenManager(const std::string& name, const tessera_manager_options* from,
                         tessera_manager** out) {
  TESSERA_ASSIGN_OR_RETURN(const tessera_manager_options copy, ReadStruct(from, "options"));
  std::unique_ptr<tessera_manager> manager(new tessera_manager);
  CheckpointManagerOptions options;
  TESSERA_ASSIGN_OR_RETURN(const AsyncSaveOptions save,
                           ReadSaveOptions(copy.save, "save", manager->group));
  options.save = save.save;
  if (copy.background != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(options.background, ReadSaveOptions(copy.background, "background",
                                                                 manager->background_group));
  }
  TESSERA_ASSIGN_OR_RETURN(options.schedule, ScheduleOf(copy));
  TESSERA_RETURN_IF_ERROR(CheckCount(copy.keep_newest, "keep_newest"));
  TESSERA_RETURN_IF_ERROR(CheckCount(copy.keep_every_steps, "keep_every_steps"));
  options.keep = {.newest = copy.keep_newest, .every_steps = copy.keep_every_steps};
  TESSERA_RETURN_IF_ERROR(
      SetSeconds(copy.keep_within_seconds, "keep_within_seconds", options.keep.within));
  options.stop_file_path = TextOrEmpty(copy.stop_file_path);
  options.async_upload = copy.async_upload != 0;
  options.async_upload_tmp_folder = TextOrEmpty(copy.async_upload_tmp_folder);
  TESSERA_RETURN_IF_ERROR(
      SetSeconds(copy.lock_wait_seconds, "lock_wait_seconds", options.lock_wait));
  TESSERA_ASSIGN_OR_RETURN(manager->manager,
                           CheckpointManager::Open(name, std::move(options),
                                                   {.s3_endpoint = TextOrEmpty(copy.s3_endpoint)}));
  *out = manager.release();
  return absl::OkStatus();
}

absl::Status ReportResumed(CheckpointManager& manager, const absl::StatusOr<ResumeResult>& result,
                           int64_t* step, char** report) {
  TESSERA_RETURN_IF_ERROR(result.status());
  const ResumeResult& resumed = *result;
  if (step != nullptr) *step = resumed.checkpoint.has_value() ? resumed.checkpoint->step() : -1;
  Json json = {{"step", nullptr}, {"directory", nullptr}, {"skipped", Json::array()}};
  if (resumed.checkpoint.has_value()) {
    json["step"] = resumed.checkpoint->step();
    json["directory"] = resumed.checkpoint->directory();
  }
  for (const SkippedCheckpoint& skipped : resumed.skipped) {
    json["skipped"].push_back(Describe(manager.storage(), skipped));
  }
  return GiveJson(json, report);
}

absl::StatusOr<ResumeResult> ResumeBy(CheckpointManager& manager, tessera_load_checkpoint load,
                                      void* context, bool begin_anew) {
  const LoadOnThisRank load_here = [&](const Checkpoint& checkpoint) -> absl::Status {
    tessera_checkpoint* handle = nullptr;
    TESSERA_RETURN_IF_ERROR(Give(checkpoint, &handle));
    const absl::Status loaded = CallBack([&] { return load(context, handle); });
    Free(handle);
    return loaded;
  };
  return manager.TryResume(load_here, {.ignore_no_valid = begin_anew});
}

// The header has the numbers of the library.
static_assert(static_cast<int>(SaveKind::kRolling) == TESSERA_SAVE_ROLLING);
static_assert(static_cast<int>(SaveKind::kPermanent) == TESSERA_SAVE_PERMANENT);
static_assert(static_cast<int>(EndReason::kLastStep) == TESSERA_END_LAST_STEP);
static_assert(static_cast<int>(EndReason::kSignal) == TESSERA_END_SIGNAL);
static_assert(static_cast<int>(EndReason::kProgram) == TESSERA_END_PROGRAM);
static_assert(static_cast<int>(EndReason::kStopFile) == TESSERA_END_STOP_FILE);
static_assert(static_cast<int>(EndReason::kExitDuration) == TESSERA_END_DURATION);
static_assert(static_cast<int>(EndReason::kExitInterval) == TESSERA_END_INTERVAL);

absl::Status Save(CheckpointManager& manager, const StepState& now, const GiveStateToSave& describe,
                  tessera_decision* to, char** report) {
  // A program may know fewer members than the library, which writes only those.
  constexpr size_t kFirstVersion = offsetof(tessera_decision, end) + sizeof(to->end);
  if (to != nullptr && !IsStructSize<tessera_decision>(to->struct_bytes, kFirstVersion)) {
    return absl::InvalidArgumentError(absl::StrCat("decision: struct_bytes is ", to->struct_bytes));
  }
  TESSERA_ASSIGN_OR_RETURN(const SaveDecision decision, manager.TrySave(now, describe));
  if (to != nullptr) {
    to->save = static_cast<int32_t>(decision.save);
    to->end = static_cast<int32_t>(decision.end);
  }
  if (report == nullptr) return absl::OkStatus();  // outcomes stay for tessera_manager_poll()
  constexpr const char* kSaves[] = {nullptr, "rolling", "permanent"};
  constexpr const char* kEnds[] = {nullptr,     "last step", "signal",       "program",
                                   "stop file", "duration",  "exit interval"};
  const char* const save = kSaves[static_cast<int>(decision.save)];
  const char* const end = kEnds[static_cast<int>(decision.end)];
  return GiveJson({{"save", save == nullptr ? Json() : Json(save)},
                   {"end", end == nullptr ? Json() : Json(end)},
                   {"outcomes", ToJson(manager.Poll())}},
                  report);
}

}  // namespace
}  // namespace tessera::ckpt::c

using namespace tessera::ckpt::c;  // NOLINT(google-build-using-namespace)

extern "C" {

int32_t tessera_manager_open(const char* name, const tessera_manager_options* options,
                             tessera_manager** manager) {
  return Run([&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(manager, "manager"));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, Text(name, "name"));
    return OpenManager(text, options, manager);
  });
}

void tessera_manager_free(tessera_manager* manager) { Free(manager); }

int32_t tessera_manager_resume(tessera_manager* manager, const tessera_state* state, int64_t* step,
                               char** report) {
  return RunOn(manager, "manager", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckHandle(state, "state"));
    return ReportResumed(*manager->manager, manager->manager->TryResume(state->dict), step, report);
  });
}

int32_t tessera_manager_resume_by(tessera_manager* manager, tessera_load_checkpoint load,
                                  void* context, int32_t begin_anew, int64_t* step, char** report) {
  return RunOn(manager, "manager", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(reinterpret_cast<const void*>(load), "load"));
    return ReportResumed(*manager->manager,
                         ResumeBy(*manager->manager, load, context, begin_anew != 0), step, report);
  });
}

int32_t tessera_manager_begin(tessera_manager* manager, int64_t step, int64_t last_step) {
  return RunOn(manager, "manager", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckCount(step, "step"));
    manager->manager->Begin(step, last_step < 0 ? std::nullopt : std::optional(last_step));
    return absl::OkStatus();
  });
}

int32_t tessera_manager_abandon_later(tessera_manager* manager, int64_t step, char** report) {
  return RunOn(manager, "manager", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckCount(step, "step"));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> moved,
                             manager->manager->AbandonLater(step));
    return GiveJson(moved, report);
  });
}

int32_t tessera_manager_save(tessera_manager* manager, int64_t step, int32_t stop_signal,
                             int32_t healthy, const tessera_state* state,
                             tessera_decision* decision, char** report) {
  if (const absl::Status is_state = CheckHandle(state, "state"); !is_state.ok()) {
    return Report(is_state);
  }
  const auto give = [](void* context, const tessera_state** to) {
    *to = static_cast<const tessera_state*>(context);
    return static_cast<int32_t>(TESSERA_OK);
  };
  return tessera_manager_save_by(manager, step, stop_signal, healthy, give,
                                 const_cast<tessera_state*>(state), decision, report);
}

int32_t tessera_manager_save_by(tessera_manager* manager, int64_t step, int32_t stop_signal,
                                int32_t healthy, tessera_describe_state describe, void* context,
                                tessera_decision* decision, char** report) {
  return RunOn(manager, "manager", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(reinterpret_cast<const void*>(describe), "describe"));
    TESSERA_RETURN_IF_ERROR(CheckCount(step, "step"));
    const tessera::ckpt::StepState now = {
        .step = step, .stop_signal = stop_signal, .healthy = healthy != 0};
    const auto call = [&]() -> absl::StatusOr<tessera::ckpt::StateToSave> {
      const tessera_state* state = nullptr;
      TESSERA_RETURN_IF_ERROR(CallBack([&] { return describe(context, &state); }));
      TESSERA_RETURN_IF_ERROR(CheckHandle(state, "state"));
      return tessera::ckpt::StateToSave{&state->dict, &state->metadata};
    };
    return Save(*manager->manager, now, call, decision, report);
  });
}

int32_t tessera_manager_poll(tessera_manager* manager, int32_t wait, char** report) {
  return RunOn(manager, "manager", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckPointer(report, "report"));
    return GiveJson(ToJson(wait != 0 ? manager->manager->Finish() : manager->manager->Poll()),
                    report);
  });
}

int32_t tessera_manager_wait_copied(tessera_manager* manager, const void* data, size_t bytes) {
  return RunOn(manager, "manager", [&] { return WaitUntilCopied(*manager->manager, data, bytes); });
}

}  // extern "C"
