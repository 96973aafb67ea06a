// Guarantees besides the round trip: errors, conversions, aliases, listing and pruning.

#include "checkpoint/include/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "base/text.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

Manifest AtStep(int64_t step) {
  Manifest metadata;
  metadata.mutable_trainer()->set_step(step);
  return metadata;
}

class CheckpointTest : public testing::Test {
 protected:
  std::string MustSave(const StateDict& state, int64_t step = 1) {
    const auto report = CheckpointFolder(storage_).Save(step, state);
    EXPECT_OK(report);
    return report.ok() ? report->directory : "";
  }
  absl::Status TrySave(const StateDict& state, const Manifest& metadata = AtStep(1),
                       const SaveOptions& options = {}) {
    return CheckpointFolder(storage_)
        .Save({.step = metadata.trainer().step(), .metadata = ToMetadata(metadata)}, state, options)
        .status();
  }

  MemoryStorage storage_;
  SingleProcessGroup group_;
};

TEST_F(CheckpointTest, TheManifestOfAnOpenedCheckpointIsNotReadAgain) {
  std::vector<float> values = {1, 2, 3};
  const std::string directory =
      MustSave({{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {3})}});
  FaultInjectingStorage counting(storage_);
  const absl::StatusOr<Checkpoint> opened = Checkpoint::Open(counting, directory);
  ASSERT_OK(opened);
  counting.FailWhere(
      [](const Operation& operation) { return operation.path.ends_with("manifest.pb"); },
      absl::InternalError("read again"));
  RunRanks(2, [&](ProcessGroup& group) {
    std::vector<float> loaded(3);
    EXPECT_EQ(opened
                  ->Load({{TensorOf("x", TensorRole::kWeight, DType::kF32, loaded, {3})}},
                         {.group = &group})
                  .status(),
              absl::OkStatus());
    EXPECT_EQ(loaded, values);
  });
}

// Metadata can be read in part: a file's header says what the manifest says of that file.
TEST_F(CheckpointTest, AFileSaysWhatItHoldsWithoutTheManifest) {
  std::string directory;
  RunRanks(3, [&](ProcessGroup& group) {
    std::vector<float> whole = {1, 2, 3};
    std::vector<double> part(4);
    StateDict state = {{TensorOf("a", TensorRole::kWeight, DType::kF32, whole, {3}),
                        TensorOf("b.m", TensorRole::kOptimizerState, DType::kF64, part, {6, 2})}};
    state.tensors[1].shards[0].box = {{2 * group.rank(), 0}, {2, 2}};
    ASSERT_OK_AND_ASSIGN(const SaveReport report,
                         CheckpointFolder(storage_).Save(1, state, {.group = &group}));
    if (group.rank() == 0) directory = report.directory;
  });
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(storage_, directory));
  std::set<std::string> by_manifest, by_headers;
  const auto line = [&](int file, uint64_t offset, const std::string& key, DType dtype) {
    return absl::StrCat(manifest.files(file).path(), " ", offset, " ", key, " ",
                        View(DTypeName(dtype)));
  };
  for (const LogicalTensor& tensor : manifest.tensors()) {
    const Shape shape(tensor.global_shape().begin(), tensor.global_shape().end());
    const std::vector<Box> boxes = ShardBoxes(tensor);
    for (int i = 0; i < static_cast<int>(boxes.size()); ++i) {
      by_manifest.insert(
          line(static_cast<int>(tensor.shards().file_index(i)), tensor.shards().file_offset(i),
               ShardKey(tensor.name(), shape, boxes[i]), static_cast<DType>(tensor.dtype())));
    }
  }
  for (int file = 0; file < manifest.files_size(); ++file) {
    ASSERT_OK_AND_ASSIGN(
        const std::string bytes,
        ReadAll(storage_, absl::StrCat(directory, "/", manifest.files(file).path()), 1 << 20));
    ASSERT_OK_AND_ASSIGN(const uint64_t header_bytes,
                         SafetensorsHeaderBytes(bytes.substr(0, 8), bytes.size()));
    ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                         ParseSafetensorsHeader(bytes.substr(0, header_bytes), bytes.size()));
    for (const SafetensorsEntry& entry : header.entries) {
      by_headers.insert(line(file, entry.file_offset, entry.key, entry.dtype));
    }
  }
  EXPECT_EQ(by_manifest.size(), 4);
  EXPECT_EQ(by_headers, by_manifest);
}

TEST_F(CheckpointTest, StepsSortAsNumbers) {
  std::vector<float> values = {1};
  for (const int64_t step :
       {int64_t{1000000}, int64_t{999999}, int64_t{100000000}, int64_t{7}, int64_t{99999999}}) {
    MustSave({{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {1})}}, step);
  }
  EXPECT_EQ(StepDirectoryName(42), "step-00000042");
  ASSERT_OK_AND_ASSIGN(const auto list, CheckpointFolder(storage_).List());
  std::vector<int64_t> steps;
  for (const CheckpointInfo& info : list) steps.push_back(info.step);
  EXPECT_THAT(steps, ElementsAre(7, 999999, 1000000, 99999999, 100000000));
  ASSERT_OK(CheckpointFolder(storage_).Prune(2));
  EXPECT_EQ(CheckpointFolder(storage_).List()->size(), 2);
  EXPECT_EQ(CheckpointFolder(storage_).List()->front().step, 99999999);
  ASSERT_OK(CheckpointFolder(storage_).Prune(0));
  ASSERT_EQ(CheckpointFolder(storage_).List()->size(), 1);
  EXPECT_EQ(CheckpointFolder(storage_).List()->front().step, 100000000);
}

TEST_F(CheckpointTest, ListIgnoresWhatIsNoCheckpoint) {
  ASSERT_OK(storage_.MakeDirectory("step-00000003"));
  ASSERT_OK(storage_.MakeDirectory("step-3"));
  ASSERT_OK(storage_.MakeDirectory("other"));
  ASSERT_OK(WriteAll(storage_, "step-00000009", "a file"));
  EXPECT_TRUE(CheckpointFolder(storage_).List()->empty());
  EXPECT_TRUE(ListStepDirectories(storage_, "not/there")->empty());
  ASSERT_OK(CheckpointFolder(storage_).Prune(1));
  EXPECT_OK(storage_.List("step-00000003")) << "nothing committed is newer than it";
}

TEST_F(CheckpointTest, ACommittedCheckpointIsOverwrittenOnlyOnRequest) {
  std::vector<float> values = {1};
  MustSave({{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {1})}});
  values[0] = 2;
  StateDict state = {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {1})}};
  EXPECT_TRUE(absl::IsAlreadyExists(TrySave(state)));
  ASSERT_OK(LoadCheckpoint(storage_, StepDirectoryName(1), state));
  EXPECT_EQ(values[0], 1);
  values = {7};
  ASSERT_OK(TrySave(state, AtStep(1), {.overwrite = true}));
  values = {0};
  ASSERT_OK(LoadCheckpoint(storage_, StepDirectoryName(1), state));
  EXPECT_EQ(values[0], 7);
  ASSERT_OK(TrySave(state, AtStep(2), {.overwrite = true})) << "nothing is there yet";
}

// A damaged one is replaced like any other, and what was quarantined stays.
TEST_F(CheckpointTest, WhatIsOverwrittenMayBeDamaged) {
  MemoryStorage storage(/*renames_directories=*/false);
  std::vector<float> values = {1};
  const StateDict state = {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {1})}};
  const std::string directory = CheckpointFolder(storage).Save(1, state)->directory;
  const auto quarantined = Removal::In(storage)->Quarantine(directory, "damaged");
  ASSERT_OK(quarantined);
  const Manifest kept = *DecodeManifest(*ReadAll(storage, *quarantined, 1 << 20));
  values = {2};
  ASSERT_OK(CheckpointFolder(storage).Save(1, state));
  ASSERT_OK(WriteAll(storage, directory + "/manifest.pb", "TESSERA"));
  values = {3};
  ASSERT_OK(CheckpointFolder(storage).Save(1, state, {.overwrite = true}));
  values = {0};
  ASSERT_OK(LoadCheckpoint(storage, directory, state));
  EXPECT_EQ(values[0], 3);
  for (const DataFile& file : kept.files()) {
    EXPECT_OK(storage.Open(directory + "/" + file.path())) << "of the quarantined checkpoint";
  }
}

TEST_F(CheckpointTest, BadRequestsAreNamedBeforeAnythingIsWritten) {
  std::vector<float> values(8);
  const ShardedTensor good = TensorOf("good", TensorRole::kWeight, DType::kF32, values, {2, 4});
  const auto expect = [&](const StateDict& state, const Manifest& metadata,
                          const SaveOptions& options, const std::string& part) {
    const absl::Status status = TrySave(state, metadata, options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr(part));
  };
  SaveOptions options;
  options.checksum_chunk_bytes = 12;
  expect({{good}}, AtStep(1), options, "checksum_chunk_bytes");
  options = {};
  options.io_threads = 0;
  expect({{good}}, AtStep(1), options, "io_threads");
  expect({{good}}, AtStep(-1), {}, "step must not be negative");
  Manifest metadata = AtStep(1);
  metadata.add_tensors();
  expect({{good}}, metadata, {}, "tensors");
  metadata = AtStep(1);
  metadata.mutable_optimizer()->add_parameters()->set_parameter("nobody");
  expect({{good}}, metadata, {}, "nobody");

  expect({{good, good}}, AtStep(1), {}, "good");
  ShardedTensor bad = good;
  bad.name = "bad";
  bad.dtype = static_cast<DType>(99);
  expect({{bad}}, AtStep(1), {}, "dtype");
  bad = good;
  bad.name = "bad";
  bad.shards[0].box.shape = {3, 4};
  expect({{bad}}, AtStep(1), {}, "bad");
  bad.shards[0].box.shape = {1, 4};
  expect({{bad}}, AtStep(1), {}, "[1,0]");  // the first element that no rank holds
  bad.shards.push_back(bad.shards[0]);
  expect({{bad}}, AtStep(1), {}, "overlap");
  bad.shards = {{WholeBox({2, 4}), nullptr, {}}};
  expect({{bad}}, AtStep(1), {}, "no memory");
  bad.shards = {{WholeBox({2, 4}), values.data(), {1}}};
  expect({{bad}}, AtStep(1), {}, "strides");
  ShardedTensor alias;
  alias.name = "alias";
  alias.role = TensorRole::kWeight;
  alias.dtype = DType::kF32;
  alias.global_shape = {2, 4};
  alias.alias_of = "not there";
  expect({{good, alias}}, AtStep(1), {}, "not there");
  EXPECT_TRUE(storage_.List("")->empty());
}

TEST_F(CheckpointTest, AllMismatchesAtOnceAndNothingChanged) {
  std::vector<float> a(6, 1), b(4, 2), c(2, 3);
  std::vector<int32_t> n(3, 4);
  MustSave({{TensorOf("a", TensorRole::kWeight, DType::kF32, a, {2, 3}),
             TensorOf("b", TensorRole::kWeight, DType::kF32, b, {4}),
             TensorOf("n", TensorRole::kBuffer, DType::kI32, n, {3}),
             TensorOf("left.over", TensorRole::kWeight, DType::kF32, c, {2})}});
  std::vector<float> new_a(6, -1), new_b(4, -1), new_c(2, -1), new_n(3, -1);
  StateDict state = {{TensorOf("a", TensorRole::kWeight, DType::kF32, new_a, {3, 2}),
                      TensorOf("b", TensorRole::kBuffer, DType::kF32, new_b, {4}),
                      TensorOf("n", TensorRole::kBuffer, DType::kF32, new_n, {3}),
                      TensorOf("wanted", TensorRole::kWeight, DType::kF32, new_c, {2})}};
  const absl::Status status = LoadCheckpoint(storage_, StepDirectoryName(1), state).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("5 mismatches"),
                                     HasSubstr("tensor a: saved with shape [2,3], wanted"),
                                     HasSubstr("tensor b: saved as WEIGHT, wanted as BUFFER"),
                                     HasSubstr("tensor n: saved as I32, wanted as F32"),
                                     HasSubstr("tensor wanted: wanted, not in the checkpoint"),
                                     HasSubstr("tensor left.over: saved, not wanted")));
  EXPECT_THAT(new_a, testing::Each(-1));
  EXPECT_THAT(new_b, testing::Each(-1));

  // What all ranks find is listed once.
  RunRanks(2, [&](ProcessGroup& group) {
    StateDict only_a = {{state.tensors[0]}};
    const absl::Status of_all = LoadCheckpoint(storage_, StepDirectoryName(1), only_a,
                                               {.group = &group, .allow_unexpected = true})
                                    .status();
    EXPECT_THAT(Message(of_all), HasSubstr("1 mismatch between memory:step-00000001 and the state "
                                           "to load into:\n  tensor a: saved with shape"));
  });

  // From the hundreds of names of another model, as many as are useful.
  StateDict other;
  for (int i = 0; i < 150; ++i) {
    other.tensors.push_back(
        TensorOf("other." + std::to_string(i), TensorRole::kWeight, DType::kF32, new_a, {6}));
  }
  const absl::Status many = LoadCheckpoint(storage_, StepDirectoryName(1), other).status();
  EXPECT_THAT(Message(many), AllOf(HasSubstr("154 mismatches"), HasSubstr("other.9: wanted, not"),
                                   Not(HasSubstr("other.10:")), HasSubstr("\n  and 144 more")));

  LoadOptions lenient;
  lenient.allow_missing = lenient.allow_unexpected = true;
  StateDict some = {{TensorOf("b", TensorRole::kWeight, DType::kF32, new_b, {4}),
                     TensorOf("wanted", TensorRole::kWeight, DType::kF32, new_c, {2})}};
  ASSERT_OK_AND_ASSIGN(const auto report,
                       LoadCheckpoint(storage_, StepDirectoryName(1), some, lenient));
  EXPECT_THAT(report.missing, ElementsAre("wanted"));
  EXPECT_THAT(report.unexpected, ElementsAre("a", "n", "left.over"));
  EXPECT_EQ(new_b, b);
  EXPECT_THAT(new_c, testing::Each(-1));
}

TEST_F(CheckpointTest, OneTensorIsLoadedByOneRankAloneInItsOwnDtype) {
  std::vector<float> values = {1, 2, 3};
  MustSave({{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {3})}});
  ASSERT_OK_AND_ASSIGN(const Checkpoint opened, Checkpoint::Open(storage_, StepDirectoryName(1)));
  RunRanks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) return;
    std::vector<float> loaded(3);
    const Shard shard = {WholeBox({3}), loaded.data(), {}};
    EXPECT_OK(opened.LoadTensor("x", shard, {.group = &group, .timeout = absl::Seconds(5)}));
    EXPECT_EQ(loaded, values);
  });
  const absl::Status none = opened.Find("y").status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_EQ(Message(none), "no tensor y in memory:step-00000001, which has 1");
}

TEST_F(CheckpointTest, UncoveredTensorInAManifestIsAMismatch) {
  std::vector<float> a(6, 1);
  StateDict state = {{TensorOf("a", TensorRole::kWeight, DType::kF32, a, {2, 3})}};
  const std::string directory = MustSave(state);
  Manifest manifest = *ReadManifest(storage_, directory);
  manifest.mutable_tensors(0)->mutable_shards()->set_shape(0, 1);  // one row of two
  ASSERT_OK(WriteAll(storage_, directory + "/manifest.pb", *EncodeManifest(manifest)));
  const absl::Status status = LoadCheckpoint(storage_, directory, state).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("tensor a"), HasSubstr("[1,0]")));
}

TEST_F(CheckpointTest, ADirectoryNamedForAnotherStepIsDamaged) {
  std::vector<float> a(6, 1);
  StateDict state = {{TensorOf("a", TensorRole::kWeight, DType::kF32, a, {2, 3})}};
  const std::string directory = MustSave(state, 7);
  Manifest manifest = *ReadManifest(storage_, directory);
  manifest.mutable_trainer()->set_step(9);
  ASSERT_OK(WriteAll(storage_, directory + "/manifest.pb", *EncodeManifest(manifest)));
  for (const absl::Status& status : {ReadManifest(storage_, directory).status(),
                                     LoadCheckpoint(storage_, directory, state).status()}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("step 9"), HasSubstr("step-00000007")));
  }
  EXPECT_EQ(VerifyCheckpoint(storage_, directory, {.io_threads = 1})->damage.size(), 1);
}

TEST_F(CheckpointTest, AMessageNamesTheManifestOnce) {
  std::vector<float> a(6, 1);
  StateDict state = {{TensorOf("a", TensorRole::kWeight, DType::kF32, a, {2, 3})}};
  const std::string directory = MustSave(state);
  ASSERT_OK(WriteAll(storage_, directory + "/manifest.pb", "TESSERA"));
  const std::string message = Message(ReadManifest(storage_, directory).status());
  EXPECT_THAT(message, HasSubstr("manifest.pb: offset 7"));
  EXPECT_EQ(message.find("manifest.pb"), message.rfind("manifest.pb")) << message;
}

TEST_F(CheckpointTest, WeightsComeFromMasterWeights) {
  std::vector<float> master = {1.0f, 1.00390625f, 1.01171875f, -3.0f};  // two of them halfway
  Manifest metadata = AtStep(1);
  OptimizerParameter& parameter = *metadata.mutable_optimizer()->add_parameters();
  metadata.mutable_optimizer()->add_groups();
  parameter.set_parameter("w");
  (*parameter.mutable_states())["master"] = "optimizer.w.master";
  ASSERT_EQ(
      TrySave(
          {{TensorOf("optimizer.w.master", TensorRole::kMasterWeight, DType::kF32, master, {4})}},
          metadata),
      absl::OkStatus());
  std::vector<uint16_t> weights(4, 0xffff);
  std::vector<float> new_master(4);
  StateDict state = {
      {TensorOf("w", TensorRole::kWeight, DType::kBF16, weights, {4}),
       TensorOf("optimizer.w.master", TensorRole::kMasterWeight, DType::kF32, new_master, {4})}};
  ASSERT_OK_AND_ASSIGN(const auto report, LoadCheckpoint(storage_, StepDirectoryName(1), state));
  EXPECT_THAT(report.from_master, ElementsAre("w"));
  EXPECT_EQ(new_master, master);
  EXPECT_THAT(weights, ElementsAre(0x3f80, 0x3f80, 0x3f82, 0xc040));  // ties go to even
  LoadOptions options;
  options.weights_from_master = false;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      LoadCheckpoint(storage_, StepDirectoryName(1), state, options).status()));
  options.weights_from_master = true;
  options.convert_dtype = false;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      LoadCheckpoint(storage_, StepDirectoryName(1), state, options).status()));
}

TEST_F(CheckpointTest, TiedParametersAreSavedOnce) {
  std::vector<float> values = {1, 2, 3, 4};
  ShardedTensor head;
  head.name = "lm_head.weight";
  head.role = TensorRole::kWeight;
  head.dtype = DType::kF32;
  head.global_shape = {4};
  head.alias_of = "wte.weight";
  StateDict tied = {{head, TensorOf("wte.weight", TensorRole::kWeight, DType::kF32, values, {4})}};
  const std::string directory = MustSave(tied);
  values = {0, 0, 0, 0};
  ASSERT_OK(LoadCheckpoint(storage_, directory, tied));
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4));

  // Untied in the loading program: both names get the value.
  std::vector<float> own_head(4);
  StateDict untied = {{TensorOf("lm_head.weight", TensorRole::kWeight, DType::kF32, own_head, {4}),
                       TensorOf("wte.weight", TensorRole::kWeight, DType::kF32, values, {4})}};
  ASSERT_OK(LoadCheckpoint(storage_, directory, untied));
  EXPECT_EQ(own_head, values);

  // Another tensor has the second name there.
  StateDict elsewhere = {{head, TensorOf("other", TensorRole::kWeight, DType::kF32, own_head, {4}),
                          TensorOf("wte.weight", TensorRole::kWeight, DType::kF32, values, {4})}};
  elsewhere.tensors[0].alias_of = "other";
  EXPECT_THAT(
      Message(LoadCheckpoint(storage_, directory, elsewhere, {.allow_missing = true}).status()),
      HasSubstr("lm_head.weight: saved as an alias of wte.weight, wanted as an alias of other"));

  // In the reverse direction, one of two values would be lost.
  MustSave(untied, 2);
  const absl::Status status = LoadCheckpoint(storage_, StepDirectoryName(2), tied).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(Message(status), HasSubstr("lm_head.weight: saved as a tensor of its own"));
}

TEST_F(CheckpointTest, FullDiskLosesNothing) {
  std::vector<float> values(1000, 1);
  StateDict state = {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {1000})}};
  MustSave(state, 1);
  FaultInjectingStorage faulty(storage_);
  faulty.SetDiskBytes(3000);
  const absl::Status status = CheckpointFolder(faulty).Save(2, state).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("needs"), HasSubstr("3000")));
  EXPECT_FALSE(CheckpointFolder(storage_).Latest()->is_kept());  // in memory, without locks
  EXPECT_EQ(CheckpointFolder(storage_).List()->size(), 1);
  EXPECT_TRUE(VerifyCheckpoint(storage_, StepDirectoryName(1), {.digests = true, .io_threads = 1})
                  ->damage.empty());
}

TEST_F(CheckpointTest, WritesAreOfTheSizeThatTheStoragePrefers) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  std::vector<float> values(5 * kMiB, 1);  // 20 MiB and a header
  const StateDict state = {{TensorOf("x", TensorRole::kWeight, DType::kF32, values, {5 * kMiB})}};
  for (const uint64_t preferred : {2 * kMiB, 8 * kMiB}) {
    MemoryStorage storage;
    FaultInjectingStorage recording(storage);
    recording.SetPreferredWriteBytes(preferred);
    ASSERT_OK(CheckpointFolder(recording).Save(1, state));
    uint64_t largest = 0;
    for (const Operation& operation : recording.operations()) {
      if (operation.kind == OperationKind::kWriteAt) {
        largest = std::max(largest, operation.size_bytes);
      }
    }
    EXPECT_EQ(largest, preferred);
  }
}

TEST(PosixCheckpointTest, ACopyElsewhereLoads) {
  const TestFolder folder;
  const std::string& root = folder.path();
  const auto storage = *OpenPosixStorage(root);
  std::mt19937_64 random(3);
  const WholeTensor tensor =
      RandomTensor("x", TensorRole::kWeight, DType::kF32, {300, 1001}, random);
  LocalState state;
  state.Add(tensor, {WholeBox(tensor.shape)}, true);
  ASSERT_OK_AND_ASSIGN(const auto saved, SaveNow(*storage, {.step = 3}, state.dict, {},
                                                 {.choose_root = In("runs/a")}));
  std::filesystem::create_directories(root + "/elsewhere");
  std::filesystem::copy(root + "/" + saved.directory, root + "/elsewhere/best",
                        std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(root + "/runs");
  LocalState loaded;
  loaded.Add(tensor, {{{7, 5}, {200, 900}}}, false);
  ASSERT_OK_AND_ASSIGN(const auto report, LoadCheckpoint(*storage, "elsewhere/best", loaded.dict));
  EXPECT_LT(report.bytes_read, tensor.bytes.size() + 8192);
  EXPECT_TRUE(LocalState::Holds(loaded.dict.tensors[0].shards[0], tensor));
  EXPECT_TRUE(VerifyCheckpoint(*storage, "elsewhere/best", {.digests = true, .io_threads = 2})
                  ->damage.empty());
}

}  // namespace
}  // namespace tessera::ckpt
