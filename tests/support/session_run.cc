#include "tests/support/session_run.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "compute/device/cuda_device.h"
#include "layout/topology.h"
#include "trainer/app/train_loop.h"
#include "trainer/config/config.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"

namespace tessera::testing {
namespace {

absl::Status RunLoop(Session& session) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> null(std::fopen("/dev/null", "w"),
                                                             std::fclose);
  ProgressLine line({.total_steps = session.config.training().train_iters(),
                     .out = null.get(),
                     .detect_terminal = false});
  return TrainLoop(session, line).Run();
}

}  // namespace

absl::StatusOr<std::string> RunSessions(const TrainConfig& config, ComputeDevices& devices,
                                        const SessionBody& body) {
  std::string notes;
  const auto rank_main = [&](Communicator* world) -> absl::Status {
    const bool first = world == nullptr || world->rank() == 0;
    const absl::StatusOr<std::unique_ptr<Session>> session =
        BuildSession(config, world, devices, [&](const std::string& note) {
          if (first) absl::StrAppend(&notes, note, "\n");
        });
    absl::Status status = session.status();
    if (session.ok()) status = body(**session);
    if (session.ok() && first && !(*session)->trains) notes += "nothing left to train\n";
    if (!status.ok() && world != nullptr) world->Abort(status);
    return status;
  };
  const int ranks = ConfigTopology(config).world_size();
  TESSERA_RETURN_IF_ERROR(
      ranks == 1 ? rank_main(nullptr)
                 : ThreadWorld(ranks).Run([&](Communicator& world) { return rank_main(&world); }));
  return notes;
}

absl::Status OpenRecords(Session& session) {
  if (!session.first_rank()) return absl::OkStatus();
  const std::string& run_dir = session.config.output().run_dir();
  TESSERA_RETURN_IF_ERROR(WriteConfig(session.config, run_dir));
  const auto resumed_step =
      session.resumed ? std::optional<int64_t>(session.progress.step) : std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(session.metrics,
                           MetricsWriter::Open(run_dir + "/metrics.jsonl", resumed_step));
  TESSERA_ASSIGN_OR_RETURN(session.saves,
                           MetricsWriter::Open(run_dir + "/saves.jsonl", resumed_step));
  return absl::OkStatus();
}

absl::Status TrainUntil(Session& session, int64_t last) {
  const int64_t all = session.config.training().train_iters();
  session.config.mutable_training()->set_train_iters(last);
  const absl::Status status = RunLoop(session);
  session.config.mutable_training()->set_train_iters(all);
  return status;
}

absl::Status TrainSession(Session& session) {
  if (!session.trains) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(OpenRecords(session));
  TESSERA_RETURN_IF_ERROR(RunLoop(session));
  return session.metrics == nullptr ? absl::OkStatus() : session.metrics->status();
}

absl::StatusOr<std::string> TrainOnProcessors(const TrainConfig& resolved_config,
                                              const SessionBody& body) {
  const std::unique_ptr<ComputeDevices> devices = MakeCudaDevices();
  return RunSessions(resolved_config, *devices, body);
}

}  // namespace tessera::testing
