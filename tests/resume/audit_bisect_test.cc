// The first state of a run that does not follow from those before it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "compute/device/testing/simulated_devices.h"
#include "compute/kernels/backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tensor/tensor.h"
#include "tests/resume/audit_run.h"
#include "tests/support/command.h"
#include "tests/support/session_run.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/optim/adamw.h"
#include "trainer/state/ledger.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Flips a bit of the element in the middle, in the memory of a device or of the host; bit 0 is the
// lowest of its mantissa.
void FlipBitOf(Backend& backend, const TensorView& values, int bit) {
  const int64_t middle = values.elements() / 2;
  const TensorView element = values.Reshape({values.elements()}).Slice(0, middle, middle + 1);
  uint32_t bits = 0;
  backend.Download(element, &bits);
  bits ^= uint32_t{1} << bit;
  backend.Upload(&bits, element);
}

// A run of so many steps.
struct RunLength {
  int fault;  // after which the memory changes
  int last;
};
constexpr RunLength kOnProcessors = {.fault = 14, .last = 24};
// A simulated GPU takes long for a step: the model has one layer, and sequences are shorter.
constexpr RunLength kOnGpu = {.fault = 6, .last = 8};
const Words kGpuBatch = {"--num-layers=1", "--seq-length=8", "--global-batch-size=2"};

class AuditBisectTest : public AuditTest {
 protected:
  using Fault = std::function<void(Backend&, const AdamW::ParameterState&)>;

  // A run in this process, whose memory changes: on the processors, or on a simulated GPU.
  void Train(int save_interval, const Fault& fault, bool on_gpu = false) const {
    const RunLength steps = on_gpu ? kOnGpu : kOnProcessors;
    const Words words = Joined(
        Joined(Joined({"train", Config()}, on_gpu ? kGpuBatch : Words()), kExact),
        Saving(
            "run", steps.last,
            {absl::StrCat("--save-interval=", save_interval), "--non-persistent-save-interval=0"}));
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    ASSERT_OK_AND_ASSIGN(const auto line,
                         ParseCommandLine(static_cast<int>(arguments.size()), arguments.data()));
    ASSERT_OK_AND_ASSIGN(auto config, ResolveConfig(line.config));
    if (on_gpu) config.mutable_training()->set_device(ComputeDevice::CUDA);
    SimulatedDevices devices({.seed = 3});
    const auto trained =
        testing::RunSessions(config, devices, [&](Session& session) -> absl::Status {
          TESSERA_RETURN_IF_ERROR(testing::OpenRecords(session));
          TESSERA_RETURN_IF_ERROR(testing::TrainUntil(session, steps.fault - 2));
          TESSERA_RETURN_IF_ERROR(testing::TrainUntil(session, steps.fault));
          fault(session.device->backend(), session.trainer->chunks()[0].optimizer->State(3));
          TESSERA_RETURN_IF_ERROR(testing::TrainUntil(session, steps.last));
          return session.metrics->status();
        });
    ASSERT_OK(trained);
  }
};

TEST_F(AuditBisectTest, WithoutAFaultAllStepsFollow) {
  Train(/*save_interval=*/4, [](Backend&, const auto&) {});
  for (const int step : {4, 8, 16}) fs::remove_all(StepDir("run", step));
  const Result result = MustAudit({"--bisect", "--data-parallel-size=2", "--zero-stage=1"});
  EXPECT_THAT(result.out, HasSubstr("3 checkpoints are whole, and hold what the records say"));
  EXPECT_THAT(result.out, HasSubstr("steps 13 to 20 follow from step 12"));
  EXPECT_THAT(result.out, HasSubstr("3 replays executed 24 steps"));
  EXPECT_THAT(result.out, HasSubstr("all 24 steps from the beginning to step 24 follow, and so do "
                                    "6 saved states"));
}

TEST_F(AuditBisectTest, ABitOfAWeightInMemory) {
  Train(/*save_interval=*/4,
        [](Backend& backend, const auto& state) { FlipBitOf(backend, state.value, 21); });
  EXPECT_THAT(
      MustAudit({"--bisect"}, 1).out,
      AllOf(HasSubstr("not proven: between step 12, whose state follows, and step 16, whose "
                      "state does not; the first line that differs is that of step 15: "
                      "loss_bits is "),
            HasSubstr("2 replays executed ")));
  // Replays that save nothing between are halved, too.
  EXPECT_THAT(Audit({"--bisect", "--save-interval=1000"}).out,
              AllOf(HasSubstr("steps 13 to 20 do not follow from step 12"),
                    HasSubstr("steps 13 to 16 do not follow from step 12"),
                    HasSubstr("3 replays executed "), HasSubstr("between step 12, whose state")));
}

TEST_F(AuditBisectTest, ABitOfAMomentInMemoryShowsOneStepLater) {
  Train(/*save_interval=*/4,
        [](Backend& backend, const auto& state) { FlipBitOf(backend, state.exp_avg, 22); });
  ExpectNotProven({"--bisect"},
                  "between step 12, whose state follows, and step 16, whose state does not; the "
                  "first line that differs is that of step 16: ");
}

// Processors execute the steps of a GPU: those before and after its memory changes.
TEST_F(AuditBisectTest, ABitInTheMemoryOfAGpu) {
  Train(
      /*save_interval=*/4,
      [](Backend& backend, const auto& state) { FlipBitOf(backend, state.exp_avg, 22); },
      /*on_gpu=*/true);
  EXPECT_THAT(ReadFile(RunDir("run") / "config.textproto"), HasSubstr("device: CUDA"));
  ExpectProven({"--steps=5-7", "--device=cpu", "--tensor-model-parallel-size=2"},
               "proven: steps 5 to 7, executed again from the checkpoint of step 4");
  ExpectNotProven({"--bisect", "--device=cpu"},
                  "between step 4, whose state follows, and step 8, whose state does not; the "
                  "first line that differs is that of step 8: ");
}

TEST_F(AuditBisectTest, ARunThatSavesEveryStepNamesTheStep) {
  Train(/*save_interval=*/1,
        [](Backend& backend, const auto& state) { FlipBitOf(backend, state.exp_avg, 12); });
  ExpectNotProven({"--bisect"},
                  "the state of step 15 does not follow from that of step 14; no line up to step "
                  "15 differs");
}

TEST_F(AuditBisectTest, AStateBetweenTheStepsOfTheIntervalIsComparedToo) {
  const Words flags = Joined(kExact, {"--save-interval=4", "--non-persistent-save-interval=0"});
  MustTrain("run", 6, flags);
  MustTrain("run", 16, flags);
  EXPECT_THAT(MustAudit({"--bisect"}).out,
              AllOf(HasSubstr("steps 5 to 6 follow from step 4"),
                    HasSubstr("all 16 steps from the beginning to step 16 follow, and so do 5 ")));
  fs::remove_all(StepDir("run", 6));
  std::istringstream saves(ReadFile(RunDir("run") / "saves.jsonl"));
  for (std::string line; std::getline(saves, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    if (record["step"] != 6) continue;
    record["state"] = std::string(64, '0');
    record["save"] = SaveDigest(6, record["ledger"].get<std::string>(), std::string(64, '0'));
    Edit("saves.jsonl", line, record.dump());
  }
  ExpectNotProven({"--bisect"},
                  "between step 4, whose state follows, and step 6, whose state does not; no line "
                  "up to step 6 differs");
}

TEST_F(AuditBisectTest, TokensThatHaveChanged) {
  MustTrain("run", 16, kExact);
  {
    std::fstream tokens(root_ / "tokens.bin", std::ios::in | std::ios::out | std::ios::binary);
    for (int token = 0; token < 200; ++token) tokens.seekp(14000 + 2 * token).put('\7');
  }
  ExpectNotProven({"--bisect"}, "step 1: the replay ended before it: ");
  // They have checksums of their own.
  fs::remove(root_ / "tokens.bin.crc32c");
  MustTrain("other", 16, kExact);
  const std::vector<nlohmann::json> one = Records("run"), other = Records("other");
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(one[i]["ledger"] == other[i]["ledger"], i < 12) << i;
  const Result result = MustAudit({"--bisect"}, 1);
  EXPECT_THAT(result.out,
              HasSubstr("not proven: the state of step 13 does not follow from that of step 12; "
                        "the first line that differs is that of step 13: loss_bits is "));
  EXPECT_THAT(result.out,
              HasSubstr("; the data that are here are not those of the checkpoint of step 8: "));
}

TEST_F(AuditBisectTest, CheckpointsThatHaveChanged) {
  const Words flags = Joined(kExact, {"--non-persistent-save-interval=0"});
  MustTrain("run", 8, flags);
  const fs::path file = DataFile(StepDir("run", 4), "model");
  FlipBit(file, -100);
  ExpectNotProven({"--bisect"},
                  "step 4: its checkpoint is damaged: " + file.string() + " at offset ");
  EXPECT_THAT(Audit({"--steps=5"}).out, HasSubstr(", tensor "));
  FlipBit(file, -100);
  FlipBit(StepDir("run", 4) / "manifest.pb", 200);
  ExpectNotProven({"--bisect"}, "step 4: its checkpoint is damaged: ");
  FlipBit(StepDir("run", 4) / "manifest.pb", 200);
  ExpectProven({"--bisect"}, "all 8 steps from the beginning to step 8 follow");
  FlipWeight(4);
  ExpectNotProven({"--bisect"}, "step 4: its checkpoint does not hold the state that");
  // A run that resumes from the edited checkpoint records the edited state.
  for (const int step : {6, 8}) fs::remove_all(StepDir("run", step));
  const std::string saves = ReadFile(RunDir("run") / "saves.jsonl");
  MustTrain("run", 12, flags);
  ExpectNotProven({"--bisect"}, "step 4: line 3 of " + (RunDir("run") / "saves.jsonl").string() +
                                    " has another state of it than a line before");
  const size_t first = saves.find('\n') + 1, second = saves.find('\n', first) + 1;
  Edit("saves.jsonl", saves.substr(first, second - first), "");
  ExpectNotProven({"--bisect"},
                  "between step 2, whose state follows, and step 4, whose state does not; no line "
                  "up to step 4 differs");
  ExpectProven({"--steps=5-12"}, "proven: steps 5 to 12");
}

TEST_F(AuditBisectTest, RecordsThatHaveChanged) {
  MustTrain("run", 8, kExact);
  Edit("metrics.jsonl", "\"skipped\":false,\"consumed_samples\":40",
       "\"skipped\":false,\"consumed_samples\":41");
  ExpectNotProven({"--bisect"}, "step 5: its line in metrics.jsonl is not the one");
  // All the digests are computed anew.
  std::vector<nlohmann::json> records = Records("run");
  std::ofstream lines(RunDir("run") / "metrics.jsonl");
  std::map<int64_t, std::string> heads;
  std::string head;
  for (nlohmann::json& record : records) {
    if (record["step"] == 5) {
      record["consumed_samples"] = 40;
      record["grad_norm"] = 0.5;
    }
    const auto step = record["step"].get<int64_t>();
    head = NextLink(head, record["settings"].get<std::string>(),
                    {.step = step,
                     .loss = record["loss"].get<double>(),
                     .grad_norm = record["grad_norm"].get<double>(),
                     .learning_rate = record["lr"].get<double>(),
                     .first_sample = record["first_sample"].get<int64_t>(),
                     .end_sample = record["consumed_samples"].get<int64_t>()});
    record["ledger"] = heads[step] = head;
    lines << record.dump() << "\n";
  }
  lines.close();
  ExpectNotProven({"--bisect"}, "step 5: its line in saves.jsonl does not fit the ledger");
  std::istringstream old_saves(ReadFile(RunDir("run") / "saves.jsonl"));
  std::ofstream saves(RunDir("run") / "saves.jsonl");
  for (std::string line; std::getline(old_saves, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    const auto step = record["step"].get<int64_t>();
    record["ledger"] = heads[step];
    record["save"] = SaveDigest(step, heads[step], record["state"].get<std::string>());
    saves << record.dump() << "\n";
  }
  saves.close();
  ExpectNotProven({"--bisect"}, "step 5: its checkpoint was saved by a run with another ledger");
  fs::remove_all(Checkpoints("run"));
  const Result result = MustAudit({"--bisect"}, 1);
  EXPECT_THAT(result.out, HasSubstr("not proven: step 5: grad_norm is 0.5 in the ledger, and "));
  EXPECT_THAT(result.out, HasSubstr(", though the state of step 5 follows: it is the record"));
  fs::remove(RunDir("run") / "saves.jsonl");
  ExpectNotProven({"--bisect"},
                  "the state of the beginning follows, and no later one could be "
                  "compared; the first line that differs is that of step 5: ");
}

TEST_F(AuditBisectTest, TheBeginningMayBeElsewhereOrGone) {
  MustTrain("before", 4, kExact);
  MustTrain("run", 10, Joined(kExact, {"--load=" + Checkpoints("before").string()}));
  ExpectProven({"--bisect"}, "all 6 steps from the beginning to step 10 follow");
  // It has gone on since, behind the steps in question.
  MustTrain("before", 8, kExact);
  ExpectProven({"--steps=5-6"}, "steps 5 to 6, executed again from the beginning, have the bits");
  fs::remove_all(StepDir("before", 4));
  ExpectRefused({"--steps=5-6"}, "step 5: the replay could not execute it: ");
  ExpectRefused({"--steps=3-6"}, "steps 3-6: metrics.jsonl has no ledger of [3]");
  ExpectRefused({"--steps=2-3"}, "steps 2-3: metrics.jsonl has no ledger of [2]");
  fs::remove_all(RunDir("before"));
  ExpectProven({"--bisect"}, "all 4 steps from step 6 to step 10 follow");
  fs::remove_all(Checkpoints("run"));
  ExpectRefused({"--bisect"}, "the run begins after step 4 with a checkpoint that is gone");
}

TEST_F(AuditBisectTest, TheFirstWeightsMayBeGone) {
  const fs::path file = root_ / "weights.bin", moved = root_ / "moved.bin";
  MustTrain("before", 2, Joined(kExact, {"--export-llmc=" + file.string()}));
  // A run that takes its weights from the file, and one that takes the moments from elsewhere, too.
  for (const Words& load : {Words(), Words({Load("before"), "--load-content=optimizer"})}) {
    fs::remove_all(RunDir("run"));
    MustTrain("run", 4, Joined(Joined(kExact, {"--llmc-filepath=" + file.string()}), load));
    ExpectProven({"--bisect"}, "all 4 steps from the beginning to step 4 follow");
    fs::rename(file, moved);
    ExpectProven({"--bisect"}, "all 3 steps from step 1 to step 4 follow");
    fs::rename(moved, file);
  }
}

// The updates are so large that gradients are not finite from then on.
TEST_F(AuditBisectTest, TheBitsOfANormThatIsNotFiniteAreCompared) {
  MustTrain("run", 3, Joined(kExact, {"--lr=1e30"}), 1);
  const Words steps = {"--steps=1-3"};
  const std::string same = "steps 1 to 3: their lines are those of the ledger";
  ExpectRefused(steps, same);
  const std::string field = "\"grad_norm_bits\":\"", other = "7ff8000000000001";
  const std::string bits = Records("run").back()["grad_norm_bits"];
  Edit("metrics.jsonl", field + bits, field + other);
  EXPECT_THAT(MustAudit(steps, 1).out,
              HasSubstr(": grad_norm_bits is " + other + " in the ledger, and " + bits));
  // Older versions did not record them.
  Edit("metrics.jsonl", field + other + "\",", "");
  ExpectRefused(steps, same);
}

// The resumed process loads all of the run's own checkpoint; its settings remain those of the run.
TEST_F(AuditBisectTest, ATunedRunThatWasResumedBeginsAsItBegan) {
  MustTrain("before", 4, kExact);
  const Words tuned = Joined(kExact, {"--load=" + Checkpoints("before").string(), "--finetune"});
  MustTrain("run", 4, tuned);
  MustTrain("run", 6, tuned);
  ExpectProven({"--steps=1-3"}, "steps 1 to 3, executed again from the beginning, have the bits");
  fs::rename(RunDir("before"), RunDir("moved"));
  ExpectProven({"--bisect"}, "all 4 steps from step 2 to step 6 follow");
  ExpectProven({"--bisect", "--load=" + Checkpoints("moved").string()},
               "all 6 steps from the beginning to step 6 follow");
}

}  // namespace
}  // namespace tessera
