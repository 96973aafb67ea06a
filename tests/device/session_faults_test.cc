// Sessions on simulated GPUs whose kernels and copies fail, whose memory is short, or which
// replicate their state. All ranks end alike, and take as much memory as was announced.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/is_waiting.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/manager_options.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/device/testing/simulated_devices.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "layout/dtype.h"
#include "layout/topology.h"
#include "models/layers/model.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "tensor/device.h"
#include "tensor/tensor.h"
#include "tests/device/simulated_session.h"
#include "tests/support/session_run.h"
#include "trainer/app/host_share.h"
#include "trainer/app/measurements.h"
#include "trainer/app/session.h"
#include "trainer/app/train_loop.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/run_saver.h"
#include "trainer/state/run_state.h"
#include "trainer/state/state_chunks.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

using testing::Described;
using ::testing::HasSubstr;
using testing::kLastStep;
using testing::kSavedStep;
using testing::Losses;
using testing::SimulatedSessionTest;
using Body = testing::SessionBody;

absl::Status Train(Session& session) { return testing::TrainSession(session); }

// A kernel that fails on one rank ends its step, and with it the run of all ranks.
TEST_F(SimulatedSessionTest, AnErrorOfAKernelEndsTheRunOnAllRanks) {
  TrainConfig config = Config("run", "dp2", true);
  Mutex mutex;
  std::map<int, absl::Status> statuses;
  const auto body = [&](Session& session) {
    const int rank = session.mesh->rank();
    if (rank == 1) {
      session.trainer->set_before_overwrite([&session](const TensorView&) {
        session.device->gpu()->context->KeepError("a kernel", absl::InternalError("has failed"));
      });
    }
    const absl::Status status = Train(session);
    const MutexLock lock(&mutex);
    statuses[rank] = status;
    return status;
  };
  EXPECT_FALSE(Run(config, body).ok());
  ASSERT_EQ(statuses.size(), 2);
  EXPECT_EQ(statuses[1], absl::InternalError("a kernel: has failed"));
  EXPECT_FALSE(statuses[0].ok());
}

// A GPU of one rank runs out of memory, which another program has taken: in the middle of a step,
// in an evaluation, in sampling, or where a trainer is built. All ranks end with its message.
TEST_F(SimulatedSessionTest, AGpuThatRunsOutOfMemoryEndsTheRunOnAllRanks) {
  const std::vector<int32_t> context = {1, 5, 2};
  const auto step = [](Session& session) {
    return session.trainer->Step(*session.train_data->loader, {}).status();
  };
  const auto evaluate = [](Session& session) { return EvaluateSession(session).status(); };
  const auto sample = [&](Session& session) {
    return session.trainer->NextLogits(context).status();
  };
  const auto build = [](Session& session) {
    return Trainer::Create(session.config, {}, *session.mesh, session.device->backend()).status();
  };
  struct Case {
    const char* topology;
    const char* purpose;
    Body body;
    int64_t left_bytes = 0;  // for token ids and logits, or for the state of a trainer
  };
  for (const Case& c :
       {Case{"single", "workspace", step}, Case{"dp2", "pieces to reduce", step},
        Case{"pp2", "gradients", step}, Case{"dp2_zero2", "gradients", step},
        Case{"dp2", "activations", evaluate, 100}, Case{"pp2", "activations", evaluate, 100},
        Case{"tp2", "activations", sample, 300}, Case{"dp2", "activations", build, 222'000}}) {
    SCOPED_TRACE(absl::StrCat(c.topology, ": ", c.purpose));
    Mutex mutex;
    std::map<int, absl::Status> statuses;
    const auto body = [&](Session& session) -> absl::Status {
      const int rank = session.mesh->rank();
      std::optional<DeviceBuffer> taken;
      if (rank == session.mesh->topology().world_size() - 1) {
        TrainingDevice& gpu = *session.device->gpu();
        TESSERA_ASSIGN_OR_RETURN(const auto memory, gpu.context->runtime().Memory());
        TESSERA_ASSIGN_OR_RETURN(
            DeviceBuffer buffer,
            DeviceBuffer::Allocate(*gpu.compute, memory.free_bytes - c.left_bytes, "others"));
        taken.emplace(std::move(buffer));
      }
      // A rank that is still on its way would end without a status of its own.
      Communicator* const world = session.mesh->world();
      absl::Status status = world == nullptr ? absl::OkStatus() : world->Barrier();
      if (status.ok()) status = c.body(session);
      const MutexLock lock(&mutex);
      statuses[rank] = status;
      return status;
    };
    SimulatedDevices devices({.count = 2, .memory_bytes = [](int) { return int64_t{16} << 20; }});
    EXPECT_FALSE(Run(Config("run", c.topology, true), devices, body).ok());
    ASSERT_EQ(statuses.size(), c.topology == std::string("single") ? 1 : 2);
    for (const auto& [rank, status] : statuses) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << rank << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("out of device memory: ")) << rank;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat(" bytes of ", c.purpose, " do not fit beside ")))
          << rank;
    }
  }
}

// A copy that fails on one rank is the end of the save, or of the replica, on all of them, which
// does not wait for it, and the next one works.
TEST_F(SimulatedSessionTest, ACopyThatFailsOnOneRankEndsTheSaveOnAll) {
  for (const bool replicates : {false, true}) {
    const TrainConfig config =
        replicates ? Replicating("replicating", true) : Config("run", "dp2", true);
    Mutex mutex;
    std::map<int, std::vector<absl::Status>> outcomes;
    const auto body = [&](Session& session) -> absl::Status {
      const int rank = session.mesh->rank();
      for (const bool fails : {true, false}) {
        session.progress.step += 1;
        if (replicates) {
          session.saver->Replicate(Described(session));
        } else {
          TESSERA_RETURN_IF_ERROR(
              session.saver->Save(Described(session), ckpt::SaveKind::kPermanent));
        }
        if (fails && rank == 1) {
          session.device->gpu()->context->KeepError("a copy", absl::InternalError("has failed"));
        }
        for (const ckpt::SaveOutcome& outcome :
             replicates ? session.saver->FinishReplicas() : session.saver->Finish()) {
          const MutexLock lock(&mutex);
          outcomes[rank].push_back(outcome.report.status());
        }
      }
      return absl::OkStatus();
    };
    ASSERT_OK(Run(config, body));
    for (const int rank : {0, 1}) {
      ASSERT_EQ(outcomes[rank].size(), 2) << rank;
      EXPECT_THAT(std::string(outcomes[rank][0].message()), HasSubstr("a copy: has failed"))
          << rank;
      EXPECT_OK(outcomes[rank][1]) << rank;
    }
  }
}

// Replicas hold the state that their step has left on the GPUs, though the next one overwrites it
// at once: a run goes on from them with the same bits.
TEST_F(SimulatedSessionTest, ReplicasAreTakenOfTheStateOnGpus) {
  ASSERT_OK(Run(Config("calm", "dp2_zero2", true), Train));
  Losses expected = LossesOf("calm");
  for (int64_t step = 1; step <= kSavedStep; ++step) expected.erase(step);
  for (const bool async_save : {false, true}) {
    const std::string name = absl::StrCat("replicating", async_save);
    const TrainConfig config = Replicating(name, async_save);
    const auto body = [](Session& session) -> absl::Status {
      Progress& progress = session.progress;
      while (true) {
        TESSERA_RETURN_IF_ERROR(
            session.trainer
                ->Step(*session.train_data->loader, {progress.step, progress.consumed_samples})
                .status());
        if (progress.step == kSavedStep) break;  // a step that is lost
        // Nothing is skipped because of the one before.
        for (const ckpt::SaveOutcome& outcome : session.saver->FinishReplicas()) {
          TESSERA_RETURN_IF_ERROR(outcome.report.status());
        }
        progress.step += 1;
        progress.updates += 1;
        progress.consumed_samples += session.config.training().global_batch_size();
        session.saver->Replicate(Described(session));
      }
      const std::vector<ckpt::SaveOutcome> last = session.saver->FinishReplicas();
      EXPECT_EQ(last.size(), 1);
      return last.empty() ? absl::OkStatus() : last.back().report.status();
    };
    ASSERT_OK(Run(config, body));
    ASSERT_OK_AND_ASSIGN(const std::string notes, Run(config, Train, /*seed=*/5));
    EXPECT_THAT(notes, HasSubstr(": complete and intact, found in "));
    EXPECT_EQ(LossesOf(name), expected);
    EXPECT_EQ(DigestsOf(name, kLastStep), DigestsOf("calm", kLastStep));
  }
}

// The state is overwritten, and saved again, while the copy of a save or a replica has not begun:
// the plan of the copy needs the other rank, which comes later.
TEST_F(SimulatedSessionTest, ACopyIsOfItsOwnStepWhateverFollowsAtOnce) {
  const auto finish = [](Session& session) {
    absl::Status status;
    for (const ckpt::SaveOutcome& outcome : session.saver->FinishReplicas()) {
      status.Update(outcome.report.status());
    }
    for (const ckpt::SaveOutcome& outcome : session.saver->Finish()) {
      status.Update(outcome.report.status());
    }
    return status;
  };
  const auto save_loaded = [&](Session& session) -> absl::Status {
    session.progress.step = 1;
    TESSERA_RETURN_IF_ERROR(session.saver->Save(Described(session), ckpt::SaveKind::kPermanent));
    return finish(session);
  };
  ASSERT_OK(Run(Config("calm", "dp2_zero2", /*on_gpus=*/false), save_loaded));
  for (const bool on_gpus : {false, true}) {
    for (const bool replicates : {false, true}) {
      const std::string name = absl::StrCat("run", on_gpus, replicates);
      SCOPED_TRACE(name);
      TrainConfig config = Replicating(name, /*async_save=*/true);
      if (!on_gpus) config.mutable_training()->clear_device();
      absl::Notification first_goes_on;
      std::atomic<pid_t> first_thread = 0;
      const auto body = [&](Session& session) -> absl::Status {
        const bool first = session.first_rank();
        if (first) first_thread = gettid();
        if (!first) {
          first_goes_on.WaitForNotificationWithTimeout(absl::Minutes(1));
          for (int waits = 0; waits < 20; waits = IsWaiting(first_thread) ? waits + 1 : 0) {
            absl::SleepFor(absl::Milliseconds(1));
          }
        }
        session.progress.step = 1;
        if (replicates) {
          session.saver->Replicate(Described(session));
        } else {
          TESSERA_RETURN_IF_ERROR(
              session.saver->Save(Described(session), ckpt::SaveKind::kPermanent));
        }
        // It waits before it overwrites the memory that is copied: the state, or its mirror.
        if (first && !on_gpus) first_goes_on.Notify();
        for (const StateChunk& chunk : session.state()) {
          for (const TensorView& buffer : StateBuffers(chunk)) {
            session.saver->BeforeOverwrite(buffer);
            session.backend().Upload(std::string(buffer.bytes(), '\0').data(), buffer);
          }
        }
        if (first && on_gpus) first_goes_on.Notify();
        session.progress.step = 2;
        TESSERA_RETURN_IF_ERROR(
            session.saver->Save(Described(session), ckpt::SaveKind::kPermanent));
        return finish(session);
      };
      ASSERT_OK(Run(config, body));
      std::filesystem::remove_all(Checkpoints(name) / "step-00000002");
      if (replicates) {
        ASSERT_OK_AND_ASSIGN(const std::string notes, Run(config, save_loaded));
        EXPECT_THAT(notes, HasSubstr(": complete and intact, found in "));
      }
      EXPECT_EQ(DigestsOf(name, 1), DigestsOf("calm", 1));
    }
  }
}

TEST_F(SimulatedSessionTest, ASaveThatMayNotCommitCommitsNothing) {
  for (const bool async_save : {false, true}) {
    const auto body = [&](Session& session) -> absl::Status {
      TrainConfig config = session.config;
      config.mutable_checkpoint()->set_save(root_ / "refused");
      config.mutable_checkpoint()->set_async_save(async_save);
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<RunSaver> saver,
                               RunSaver::Open(config, /*world=*/nullptr, {.before_commit = [] {
                                                return absl::DataLossError("no records");
                                              }}));
      TESSERA_RETURN_IF_ERROR(saver->Begin(session.state()));
      absl::Status saved = saver->Save(Described(session), ckpt::SaveKind::kPermanent);
      for (const ckpt::SaveOutcome& outcome : saver->Finish()) {
        saved.Update(outcome.report.status());
      }
      EXPECT_THAT(std::string(saved.message()), HasSubstr("no records"));
      return absl::OkStatus();
    };
    ASSERT_OK(Run(Config("run", "single", /*on_gpus=*/false), body));
  }
}

// Announced and allocated memory differ by at most 5 percent, with an evaluation and without.
TEST_F(SimulatedSessionTest, TheMemoryThatIsAnnouncedIsWhatIsTaken) {
  for (const bool evaluates : {true, false}) {
    TrainConfig config = Config(evaluates ? "evaluates" : "trains", "single", /*on_gpus=*/true);
    config.mutable_model()->set_hidden_size(64);
    config.mutable_model()->set_ffn_hidden_size(256);
    config.mutable_training()->set_micro_batch_size(4);
    if (!evaluates) config.mutable_training()->set_eval_interval(0);
    ASSERT_OK(Run(config, [&](Session& session) -> absl::Status {
      auto& gpu = static_cast<SimulatedDevice&>(*session.device->gpu());
      TESSERA_ASSIGN_OR_RETURN(const Trainer::Memory announced,
                               GpuMemory(session.config, *session.trainer, gpu));
      EXPECT_EQ(announced.evaluation > 0, evaluates);
      TESSERA_RETURN_IF_ERROR(session.trainer->Step(*session.train_data->loader, {}).status());
      if (evaluates) TESSERA_RETURN_IF_ERROR(EvaluateSession(session).status());
      const auto taken = static_cast<double>(gpu.runtime->peak_bytes());
      EXPECT_NEAR(static_cast<double>(SumOf(announced)) / taken, 1, 0.05) << Describe(announced);
      return absl::OkStatus();
    }));
  }
}

// What an H200 was measured to give for GPT-2 124M, with 64x1024 and no evaluation: 23.2 GB. The
// part of its driver, which a run measures, is assumed to be 0.5 GB.
TEST_F(SimulatedSessionTest, TheMemoryOfGpt2IsThatOfAMeasurement) {
  TrainConfig config = Config("gpt2", "single", /*on_gpus=*/true);
  ModelConfig size;
  size.set_size("gpt2-124m");
  *config.mutable_model() = OrFail(ResolveModelConfig(size));
  config.mutable_training()->set_micro_batch_size(64);
  config.mutable_training()->set_seq_length(1024);
  config.mutable_training()->set_bf16(true);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  const std::unique_ptr<Model> model = OrFail(MakeModel(
      config.model(), {.compute_dtype = DType::kBF16, .with_gradients = false}, *backend));
  Trainer::Memory memory = EstimateState(config, /*trains=*/true);
  memory.activations = model->ActivationBytes(64, 1024, ActivationUse::kTrainingWithNorms);
  constexpr double kMeasured = 23.2e9, kDriver = 0.5e9;
  EXPECT_NEAR(static_cast<double>(SumOf(memory)) + kDriver, kMeasured, 0.05 * kMeasured);
}

// Where one GPU has no memory for them, both compute the outputs of norms again, because they
// exchange them: the same bits.
TEST_F(SimulatedSessionTest, OutputsOfNormsAreKeptWhereMemoryAllows) {
  struct Memory {
    int64_t activations = 0, used = 0;
  };
  const auto run = [&](const std::string& name, int64_t memory_of_one) {
    std::map<int, Memory> memory;
    Mutex mutex;
    SimulatedDevices devices({.count = 2, .memory_bytes = [=](int index) {
                                return index == 1 ? memory_of_one : int64_t{1} << 30;
                              }});
    const auto body = [&](Session& session) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const auto left, session.device->gpu()->context->runtime().Memory());
      {
        const MutexLock lock(&mutex);
        memory[session.mesh->rank()] = {session.trainer->memory().activations,
                                        left.total_bytes - left.free_bytes};
      }
      return Train(session);
    };
    EXPECT_OK(Run(Config(name, "tp2_sp", true), devices, body));
    return memory;
  };
  const auto kept = run("kept", int64_t{1} << 30);
  // An eighth of the memory is left beside all that the run has allocated, but not beside more.
  const auto again = run("again", kept.at(1).used * 8 / 7 - 1000);
  for (const int rank : {0, 1}) {
    const int64_t norms = 2 * 2 * 8 * 16 * int64_t{sizeof(float)};
    EXPECT_EQ(kept.at(rank).activations - again.at(rank).activations, norms);
  }
  EXPECT_EQ(LossesOf("kept"), LossesOf("again"));
  EXPECT_EQ(DigestsOf("kept", kLastStep), DigestsOf("again", kLastStep));
}

}  // namespace
}  // namespace tessera
