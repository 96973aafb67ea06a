#include "checkpoint/save/run_save.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/errno_status.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/trace.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/save/coordinator.h"
#include "checkpoint/save/save_messages.pb.h"

// The steps of a save. FORMAT.md, "Commit protocol", has the same numbers and gives the reasons. It
// says what a crash after each step leaves, why two attempts at one step cannot harm each other,
// and what is different for an overwrite and in an object store.
//
// 1. Plan(): every rank describes its state, and rank 0 makes one plan. Whatever is wrong with the
//    request ends the save here, before anything is written.
// 2. Coordinator::Prepare(): rank 0 discards what earlier attempts left and creates the directory.
// 3. Write(): every rank writes its data files, makes their contents and then their names durable,
//    checks their sizes, and calls SaveOptions::before_commit.
// 4. Commit(): every rank reports checksums and digests, or its error, which fails all.
// 5. to 7. Coordinator::Commit(): rank 0 writes the manifest under a temporary name, renames it,
//    which is the commit, and checks before and after that all data files are there.

namespace tessera::ckpt {
namespace {

// Not a real step: for plans made ahead of the first save.
constexpr int64_t kNoStep = -1;

constexpr char kDescribing[] = "describe the state";

absl::Status CheckOptions(const SaveOptions& options) {
  if (options.checksum_chunk_bytes == 0 || options.checksum_chunk_bytes % 8 != 0 ||
      options.checksum_chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("checksum_chunk_bytes must be a multiple of 8 in (0, ", kMaxChunkBytes,
                     "], not ", options.checksum_chunk_bytes));
  }
  if (options.max_file_bytes == 0) return absl::InvalidArgumentError("max_file_bytes is 0");
  return CheckIoThreads(options.io_threads);
}

absl::Status CheckMetadata(const Manifest& manifest) {
  if (manifest.trainer().step() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the step must not be negative, not ", manifest.trainer().step()));
  }
  if (manifest.tensors_size() > 0 || manifest.files_size() > 0) {
    return absl::InvalidArgumentError("metadata: tensors and files must be empty");
  }
  return absl::OkStatus();
}

absl::StatusOr<RankState> Describe(const Manifest& manifest, const StateDict& state,
                                   const SaveOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  TESSERA_RETURN_IF_ERROR(CheckMetadata(manifest));
  TESSERA_RETURN_IF_ERROR(CheckStateDict(state));
  return DescribeState(state);
}

SavePlanOptions PlanOptions(const SaveOptions& options) {
  return {.max_file_bytes = options.max_file_bytes,
          .checksum_chunk_bytes = options.checksum_chunk_bytes};
}

// Performs steps 1 and 2.
absl::StatusOr<SaveTask> Plan(const SaveContext& context, const absl::StatusOr<RankState>& local,
                              const SaveRequest& request, const PrepareSave& prepare) {
  const TraceSpan span("save", "plan");
  absl::StatusOr<SaveTask> task = AgreeOnSave(local, {.group = context.group,
                                                      .step = request.step,
                                                      .overwrite = context.options.overwrite,
                                                      .options = PlanOptions(context.options),
                                                      .metadata = request.metadata,
                                                      .cache = context.plan_cache,
                                                      .prepare = prepare,
                                                      .timeout = context.options.timeout});
  if (!task.ok()) return In("planning", task.status());
  return task;
}

absl::StatusOr<std::shared_ptr<DataWriter>> MakeWriter(const SaveContext& context,
                                                       const StateDict& state,
                                                       const RankState& local,
                                                       const SaveTask& task) {
  return CatchExceptions("prepare the data files", [&] {
    return DataWriter::Make(context.storage, task.directory, state, local, task.plan,
                            {.save = context.options,
                             .traits = context.storage.Traits(),
                             .copy_threads = context.copy_threads,
                             .copy_ahead_bytes = context.copy_ahead_bytes},
                            context.staging);
  });
}

// Performs step 3 of a save that began at `start`.
absl::StatusOr<std::string> Write(
    const absl::StatusOr<std::shared_ptr<DataWriter>>& writer,
    const std::function<void(std::shared_ptr<DataWriter>)>& on_planned,
    const std::function<absl::Status()>& before_commit, absl::Duration start) {
  if (!writer.ok()) return writer.status();
  const double planning = SecondsSince(start);
  const TraceSpan span("save", "data files");
  if (on_planned) on_planned(*writer);
  TESSERA_ASSIGN_OR_RETURN(WriteReport report, (*writer)->Run());
  if (before_commit) TESSERA_RETURN_IF_ERROR(before_commit());
  report.set_planning(planning);
  report.set_seconds(SecondsSince(start));
  return report.SerializeAsString();
}

// Frees the space of a failed save, unless an error of the group leaves other ranks writing.
// Returns the error of the save.
absl::Status EndFailed(const SaveContext& context, Coordinator& coordinator,
                       const absl::Status& error) {
  if (context.group.abandoned().ok()) coordinator.Abandon();
  return context.hooks.on_failed ? context.hooks.on_failed(error) : error;
}

// Performs steps 4 to 7, with this rank's report or error. Returns the bytes that all ranks wrote.
absl::StatusOr<uint64_t> Commit(const SaveContext& context,
                                const absl::StatusOr<std::string>& written,
                                Coordinator& coordinator) {
  const Combine commit = [&](const std::vector<std::string>& all) -> absl::StatusOr<std::string> {
    const TraceSpan span("save", "commit");
    const absl::StatusOr<uint64_t> bytes = coordinator.Commit(all);
    if (!bytes.ok()) return In("committing", bytes.status());
    CommitVerdict verdict;
    verdict.set_bytes(*bytes);
    return verdict.SerializeAsString();
  };
  const absl::StatusOr<std::string> committed =
      Agree(context.group, written, commit, context.options.timeout);
  if (!committed.ok()) return EndFailed(context, coordinator, committed.status());
  // The checkpoint is there, whatever this rank understands of its size.
  return AnswerFrom<CommitVerdict>(context.group, *committed).value_or(CommitVerdict()).bytes();
}

// Returns the initial manifest of a save, without tensors and files.
Manifest MakeManifest(const SaveRequest& request, bool by_manager) {
  const Metadata& metadata = request.metadata;
  Manifest manifest;
  if (metadata.manifest != nullptr) manifest = *metadata.manifest;
  if (by_manager || manifest.producer().created_unix_ms() == 0) {
    manifest.mutable_producer()->set_created_unix_ms(absl::ToUnixMillis(absl::Now()));
  }
  if (!metadata.program.empty()) manifest.mutable_producer()->set_program(metadata.program);
  TrainerState& trainer = *manifest.mutable_trainer();
  trainer.set_step(request.step);
  if (!request.healthy && !trainer.has_health()) {
    trainer.mutable_health()->set_state_is_finite(true);  // as far as is known
    trainer.mutable_health()->set_loss_is_sane(false);
  }
  for (const auto& [name, bytes] : metadata.entries) (*trainer.mutable_extra())[name] = bytes;
  return manifest;
}

// Calls call(context) with the context of a save in the foreground.
template <typename Call>
auto InForeground(Storage& storage, const SaveOptions& options, const SaveHooks& hooks,
                  const Call& call) {
  SingleProcessGroup alone;
  PlanCache plan_cache;
  StagingPool staging;
  const SaveContext context = {
      .storage = storage,
      .hooks = hooks,
      .group = options.group != nullptr ? *options.group : alone,
      .options = options,
      .copy_threads = 0,
      .plan_cache = hooks.plan_cache != nullptr ? *hooks.plan_cache : plan_cache,
      .staging = staging};
  return CatchExceptionsIn(context.group, "save", [&] { return call(context); });
}

}  // namespace

absl::StatusOr<SaveReport> RunSave(
    const SaveContext& context, const SaveRequest& request, const StateDict& state,
    const std::function<void(std::shared_ptr<DataWriter>)>& on_planned) {
  const absl::Duration start = SteadyNow();
  TraceSpan span("save", "save");
  span.Add("step", request.step);
  const SaveHooks& hooks = context.hooks;
  Manifest manifest;
  const auto choose_root = [&](uint64_t data_bytes) -> absl::StatusOr<std::string> {
    if (!hooks.choose_root) return "";
    return hooks.choose_root({request.step, hooks.rolling, data_bytes, &manifest});
  };
  // An exception is this rank's error, which all ranks learn in the next agreement.
  std::optional<Coordinator> coordinator;
  const absl::StatusOr<RankState> local = CatchExceptions(kDescribing, [&] {
    manifest = MakeManifest(request, /*by_manager=*/hooks.choose_root != nullptr);
    coordinator.emplace(context.storage, manifest, choose_root, context.options.overwrite,
                        hooks.may_commit);
    return Describe(manifest, state, context.options);
  });
  const absl::StatusOr<SaveTask> task =
      Plan(context, local, request,
           [&](const PlannedManifest& planned) { return coordinator->Prepare(planned); });
  if (!task.ok() && coordinator.has_value()) {
    return EndFailed(context, *coordinator, task.status());
  }
  TESSERA_RETURN_IF_ERROR(task.status());

  const absl::StatusOr<std::shared_ptr<DataWriter>> writer =
      MakeWriter(context, state, *local, *task);
  const absl::StatusOr<std::string> written = CatchExceptions("write the data files", [&] {
    return Write(writer, on_planned, context.options.before_commit, start);
  });
  SaveReport report;
  TESSERA_ASSIGN_OR_RETURN(report.bytes_written, Commit(context, written, *coordinator));
  report.directory = task->directory;
  report.duration = SteadyNow() - start;
  report.ranks = coordinator->phases();
  report.copied_after = (*writer)->copied_at().value_or(start) - start;
  report.processor_time = absl::Seconds((*writer)->processor_seconds());
  report.note = context.staging.note();
  return report;
}

absl::StatusOr<SaveReport> SaveNow(Storage& storage, const SaveRequest& request,
                                   const StateDict& state, const SaveOptions& options,
                                   const SaveHooks& hooks) {
  return InForeground(storage, options, hooks, [&](const SaveContext& context) {
    return RunSave(context, request, state, /*on_planned=*/nullptr);
  });
}

absl::Status RefuseNow(Storage& storage, int64_t step, const absl::Status& reason,
                       const SaveOptions& options, const SaveHooks& hooks) {
  return InForeground(storage, options, hooks, [&](const SaveContext& context) {
    return RefuseSave(context, step, reason);
  });
}

absl::Status RefuseSave(const SaveContext& context, int64_t step, const absl::Status& reason) {
  return Plan(context, reason, {.step = step}, nullptr).status();
}

absl::Status PlanAhead(const SaveContext& context, const StateDict& state) {
  const absl::StatusOr<RankState> local =
      CatchExceptions(kDescribing, [&] { return Describe(Manifest(), state, context.options); });
  const auto check_plan = [](const PlannedManifest& planned) -> absl::StatusOr<SaveTarget> {
    if (planned.is_new) TESSERA_RETURN_IF_ERROR(Coordinator::CheckPlan(planned.layout));
    return SaveTarget();
  };
  TESSERA_ASSIGN_OR_RETURN(const SaveTask task,
                           Plan(context, local, {.step = kNoStep}, check_plan));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<DataWriter> writer,
                           MakeWriter(context, state, *local, task));
  context.staging.Want(writer->staged_bytes());
  return absl::OkStatus();
}

}  // namespace tessera::ckpt
