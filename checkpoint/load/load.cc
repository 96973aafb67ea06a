#include "checkpoint/load/load.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/format/pieces.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/internal/read_lock.h"
#include "checkpoint/load/compare.h"
#include "checkpoint/load/load_messages.pb.h"
#include "checkpoint/load/placer.h"
#include "checkpoint/load/shared_reader.h"
#include "checkpoint/load/verify_loaded.h"
#include "checkpoint/plan/load_plan.h"
#include "checkpoint/plan/rank_states.h"

// A load consists of up to five steps with an agreement each, so that no rank continues while
// another cannot:
// 1. rank 0 broadcasts its manifest. Options that must be equal and differ end the load here;
// 2. every rank compares it with its state; all mismatches of all ranks end the load here;
// 3. every rank plans its reads and opens its files; a missing or truncated file ends the load
//    here. Rank 0 assigns the reads to ranks. If ranks read for each other, they agree once more
//    that all buffers are allocated, and which of them other ranks have mapped;
// 4. every rank reads, checks and places. Only now does memory change;
// 5. on request, every rank reports the digests of its boxes, and rank 0 compares them with the
//    saved ones.

namespace tessera::ckpt {
namespace {

// The arguments of a load.
struct LoadArguments {
  Storage& storage;
  std::string_view checkpoint_dir;
  const StateDict& state;
  const LoadOptions& options;
  ProcessGroup& group;                // of one rank if the options name none
  ScanBuffers* buffers;               // may be null
  std::span<const RankList> readers;  // see LoadWithManifest()
};

// On rank 0: combines all ranks' comparisons into the unexpected tensors, or one error that lists
// everything.
absl::StatusOr<std::string> CombineComparisons(const LoadArguments& load, const Manifest& manifest,
                                               const std::vector<std::string>& payloads) {
  std::vector<std::string> lines;
  std::set<std::string> seen;
  std::vector<bool> used(manifest.tensors_size());
  for (size_t rank = 0; rank < payloads.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(const auto report, MessageFrom<CompareReport>(rank, payloads[rank]));
    for (const uint32_t tensor : report.used()) {
      if (tensor >= used.size()) return BadMessageFrom(rank);
      used[tensor] = true;
    }
    for (const std::string& line : report.mismatches()) {
      if (seen.insert(line).second) lines.push_back(line);
    }
  }
  CompareVerdict verdict;
  for (const std::string& name : UnexpectedTensors(manifest, used)) {
    if (load.options.allow_unexpected) {
      verdict.add_unexpected(name);
    } else {
      lines.push_back(absl::StrCat("tensor ", name, ": saved, not wanted"));
    }
  }
  if (!lines.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(lines.size(), lines.size() == 1 ? " mismatch" : " mismatches", " between ",
                     load.storage.Describe(load.checkpoint_dir), " and the state to load into:\n  ",
                     JoinFirst(lines, "\n  ")));
  }
  return verdict.SerializeAsString();
}

std::string ReportComparison(const Comparison& comparison) {
  CompareReport report;
  for (const std::string& line : comparison.mismatches) report.add_mismatches(line);
  for (uint32_t t = 0; t < comparison.used.size(); ++t) {
    if (comparison.used[t]) report.add_used(t);
  }
  return report.SerializeAsString();
}

// Checks the options that must be the same on all ranks. InvalidArgument names the ranks and the
// option.
absl::Status CheckSameOptions(const std::vector<std::string>& all) {
  const auto check = [](std::string_view option, size_t rank, bool first,
                        bool other) -> absl::Status {
    if (first == other) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("rank ", first ? 0 : rank, " loads with ",
                                                   View(option), ", rank ", first ? rank : 0,
                                                   " without it"));
  };
  LoadBegin first;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(const auto begin, MessageFrom<LoadBegin>(rank, all[rank]));
    if (rank == 0) first = begin;
    TESSERA_RETURN_IF_ERROR(
        check("verify_checksums", rank, first.verify_checksums(), begin.verify_checksums()));
    TESSERA_RETURN_IF_ERROR(
        check("verify_digests", rank, first.verify_digests(), begin.verify_digests()));
    TESSERA_RETURN_IF_ERROR(
        check("allow_unexpected", rank, first.allow_unexpected(), begin.allow_unexpected()));
  }
  return absl::OkStatus();
}

// Step 1. Calls prepare(), and returns the manifest of rank 0.
absl::StatusOr<std::string> ShareManifest(const LoadArguments& load, const Manifest& own,
                                          absl::FunctionRef<absl::Status()> prepare) {
  const absl::StatusOr<std::string> mine =
      CatchExceptions("load", [&]() -> absl::StatusOr<std::string> {
        TESSERA_RETURN_IF_ERROR(prepare());
        LoadBegin begin;
        begin.set_verify_checksums(load.options.verify_checksums);
        begin.set_verify_digests(load.options.verify_digests);
        begin.set_allow_unexpected(load.options.allow_unexpected);
        return begin.SerializeAsString();
      });
  const Combine combine = [&](const std::vector<std::string>& all) -> absl::StatusOr<std::string> {
    TESSERA_RETURN_IF_ERROR(CheckSameOptions(all));
    return own.SerializeAsString();
  };
  return Agree(load.group, mine, combine, load.options.timeout);
}

// Assigns reads: sends what this rank needs, or its error, to rank 0 and returns its part of the
// answer.
absl::StatusOr<ReadShare> ShareReading(const LoadArguments& load, const Manifest& manifest,
                                       const absl::Status& ready, const LoadPlan& plan) {
  const absl::StatusOr<std::string> needs =
      CatchExceptions("plan the reads", [&]() -> absl::StatusOr<std::string> {
        TESSERA_RETURN_IF_ERROR(ready);
        if (load.group.size() == 1) return "";
        return DescribeNeeds(manifest, plan, load.options.staging_bytes).SerializeAsString();
      });
  const CombineEach share = [&](const std::vector<std::string>& all) {
    return ShareReads(manifest, all, load.readers);
  };
  TESSERA_ASSIGN_OR_RETURN(const std::string reply,
                           AgreeEach(load.group, needs, share, load.options.timeout));
  return AnswerFrom<ReadShare>(load.group, reply);
}

// Steps 3 and 4.
absl::Status Read(const LoadArguments& load, const Manifest& manifest, const Comparison& comparison,
                  LoadReport& report) {
  const LoadOptions& options = load.options;
  LoadPlan plan;
  Scanner scanner(load.storage, load.checkpoint_dir, manifest,
                  {.io_threads = options.io_threads,
                   .staging_bytes = options.staging_bytes,
                   .verify_checksums = options.verify_checksums,
                   .is_cancelled = options.is_cancelled});
  const absl::StatusOr<Placer> placer =
      CatchExceptions("plan the reads", [&]() -> absl::StatusOr<Placer> {
        TESSERA_ASSIGN_OR_RETURN(plan, PlanLoad(manifest, comparison.wanted));
        TESSERA_RETURN_IF_ERROR(scanner.Open(FilesOf(plan)));
        return Placer::Create(manifest, plan, comparison.destinations, options);
      });
  // An error that names no damaged part is damage of the manifest, which asks for bytes that cannot
  // be read.
  TESSERA_ASSIGN_OR_RETURN(
      const ReadShare share,
      ShareReading(load, manifest, WithDamagedParts(placer.status(), {}), plan));
  report.bytes_needed = plan.bytes;  // ShareReading() has returned the error of a failed plan
  if (share.any_shared()) {
    return ReadTogether(manifest, scanner, *placer, share, load.group, options, report);
  }
  report.bytes_read = plan.bytes;
  const absl::Status placed = CatchExceptions("read", [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(scanner.Run(RangesOf(plan), placer->AsCallback(), load.buffers));
    return placer->Finish();
  });
  return AgreeOnStatus(load.group, placed, options.timeout);
}

// Step 5, on request.
absl::Status CheckDigests(const LoadArguments& load, const Manifest& manifest,
                          const Comparison& comparison, LoadReport& report) {
  const absl::Duration start = SteadyNow();
  TESSERA_ASSIGN_OR_RETURN(LoadedDigests digests,
                           VerifyLoaded(manifest, comparison, load.group, load.options.io_threads,
                                        load.options.timeout));
  report.digests_verified = digests.verified;
  report.digests_unverified = std::move(digests.unverified);
  report.verify_duration = SteadyNow() - start;
  return absl::OkStatus();
}

// Steps 2 to 5. `shared` is the manifest of rank 0; a group of one rank has its own.
absl::StatusOr<LoadReport> LoadState(const LoadArguments& load, const Manifest& own,
                                     std::string shared) {
  Manifest of_rank_0;
  const Manifest& manifest = load.group.size() == 1 ? own : of_rank_0;
  Comparison comparison;
  const absl::StatusOr<std::string> compared =
      CatchExceptions("compare the state", [&]() -> absl::StatusOr<std::string> {
        TESSERA_ASSIGN_OR_RETURN(of_rank_0, MessageFrom<Manifest>(0, shared));
        shared = std::string();
        comparison = Compare(manifest, load.state, load.options);
        if (load.options.verify_digests) DigestWhilePlacing(manifest, comparison);
        return ReportComparison(comparison);
      });
  const Combine combine = [&](const std::vector<std::string>& all) {
    return CombineComparisons(load, manifest, all);
  };
  TESSERA_ASSIGN_OR_RETURN(const std::string verdict_bytes,
                           Agree(load.group, compared, combine, load.options.timeout));
  TESSERA_ASSIGN_OR_RETURN(const auto verdict,
                           AnswerFrom<CompareVerdict>(load.group, verdict_bytes));
  LoadReport report;
  TESSERA_RETURN_IF_ERROR(Read(load, manifest, comparison, report));
  if (load.options.verify_digests) {
    TESSERA_RETURN_IF_ERROR(CheckDigests(load, manifest, comparison, report));
  }
  report.missing = std::move(comparison.missing);
  report.from_master = std::move(comparison.from_master);
  report.unexpected.assign(verdict.unexpected().begin(), verdict.unexpected().end());
  return report;
}

}  // namespace

absl::StatusOr<LoadReport> LoadWithManifest(Storage& storage, std::string_view checkpoint_dir,
                                            const Manifest& manifest, const StateDict& state,
                                            const LoadOptions& options, ScanBuffers* buffers,
                                            std::span<const RankList> readers) {
  SingleProcessGroup alone;
  const LoadArguments load = {.storage = storage,
                              .checkpoint_dir = checkpoint_dir,
                              .state = state,
                              .options = options,
                              .group = options.group != nullptr ? *options.group : alone,
                              .buffers = buffers,
                              .readers = readers};
  return CatchExceptionsIn(load.group, "load", [&]() -> absl::StatusOr<LoadReport> {
    const absl::Duration start = SteadyNow();
    ReadLock reading;
    const auto prepare = [&]() -> absl::Status {
      reading = ReadLock(storage, checkpoint_dir);
      TESSERA_RETURN_IF_ERROR(CheckDestinations(state));
      return CheckIoThreads(options.io_threads);
    };
    std::string shared;
    if (load.group.size() == 1) {
      TESSERA_RETURN_IF_ERROR(prepare());
    } else {
      TESSERA_ASSIGN_OR_RETURN(shared, ShareManifest(load, manifest, prepare));
    }
    TESSERA_ASSIGN_OR_RETURN(LoadReport report, LoadState(load, manifest, std::move(shared)));
    report.duration = SteadyNow() - start;
    return report;
  });
}

}  // namespace tessera::ckpt
