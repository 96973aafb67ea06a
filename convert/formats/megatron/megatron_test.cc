// Checkpoints of Megatron-LM that are written here, changed and read back.

#include "convert/formats/megatron/megatron.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "convert/core/models.h"
#include "convert/core/output.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/formats/megatron/run.h"
#include "convert/formats/megatron/state_buffer.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/write.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What a master weight is, of one that rounds to its weight.
using Master = std::function<float(float)>;

// A saved GPT-2 with bf16 weights, moments and fp32 master weights.
class SavedRun {
 public:
  explicit SavedRun(const Master& master) {
    ModelProto model;
    model.set_text(
        "architecture: GPT2 num_layers: 1 hidden_size: 4 num_attention_heads: 2 "
        "max_position_embeddings: 4 vocab_size: 8");
    const auto config = OrFail(ConfigOf(model));
    const ModelDescription described = DescribeModel(config);
    StateDict state;
    Manifest metadata;
    *metadata.mutable_model() = described.config;
    metadata.mutable_optimizer()->set_algorithm("adamw");
    (*metadata.mutable_trainer()->mutable_extra())["optimizer_updates"] = "5";
    metadata.mutable_trainer()->mutable_schedule()->set_learning_rate(0.375);
    for (const LogicalParameter& parameter : described.parameters) {
      const auto count = static_cast<size_t>(ElementCount(parameter.shape));
      std::vector<uint16_t> weights(count);
      std::vector<float> masters(count);
      for (size_t i = 0; i < count; ++i) {
        const uint32_t bits = 0x3d800000 + static_cast<uint32_t>(i + memory_.size()) * 0x10000;
        weights[i] = static_cast<uint16_t>(bits >> 16);
        float weight = 0;
        std::memcpy(&weight, &bits, sizeof(weight));
        masters[i] = master(weight);
      }
      const auto add = [&](const std::string& name, TensorRole role, DType dtype,
                           const void* from) {
        const auto* const bytes = static_cast<const char*>(from);
        memory_.push_back(std::make_unique<std::string>(bytes, bytes + count * ElementSize(dtype)));
        state.tensors.push_back(
            {.name = name, .role = role, .dtype = dtype, .global_shape = parameter.shape});
        state.tensors.back().shards = {
            Shard::Untyped(memory_.back()->data(), dtype, WholeBox(parameter.shape))};
      };
      add(parameter.name, TensorRole::kWeight, DType::kBF16, weights.data());
      add(parameter.name + ".master", TensorRole::kMasterWeight, DType::kF32, masters.data());
      for (const char* moment : {".exp_avg", ".exp_avg_sq"}) {
        add(parameter.name + moment, TensorRole::kOptimizerState, DType::kF32, masters.data());
      }
    }
    EXPECT_OK(CheckpointFolder(storage_).Save(
        {.step = 7, .metadata = ToMetadata(std::move(metadata))}, state));
    manifest_ = OrFail(ReadManifest(storage_, StepDirectoryName(7)));
  }

  std::vector<OutputFile> Plan() { return OrFail(PlanMegatron(manifest_, {})); }
  absl::StatusOr<ForeignCheckpoint> WriteAndRead() {
    EXPECT_OK(WriteOutput(CheckpointOfManifest(storage_, StepDirectoryName(7), manifest_), Plan(),
                          written_, "", {}));
    return ReadMegatron(written_);
  }

 private:
  MemoryStorage storage_, written_;
  std::vector<std::unique_ptr<std::string>> memory_;
  Manifest manifest_;
};

bool HasMasters(const ForeignCheckpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.tensors, [](const ForeignTensor& tensor) {
    return tensor.role == TensorRole::kMasterWeight;
  });
}

TEST(MegatronTest, RemaindersOfMasterWeightsAreLeftOut) {
  // The second is a run with fp8 weights: its master weights do not round to them.
  const Master same = [](float weight) { return weight; };
  const Master nearby = [](float weight) { return weight * 1.05F; };
  for (const Master& master : {same, nearby}) {
    ASSERT_OK_AND_ASSIGN(const auto read, SavedRun(master).WriteAndRead());
    EXPECT_TRUE(HasMasters(read));
    EXPECT_THAT(read.notes, IsEmpty());
  }
  const Master remainder = [](float weight) { return std::trunc(weight * 1e5F) - 20000; };
  ASSERT_OK_AND_ASSIGN(const auto read, SavedRun(remainder).WriteAndRead());
  EXPECT_FALSE(HasMasters(read));
  EXPECT_THAT(read.notes, Contains(HasSubstr("16-bit remainders")));
  for (const OptimizerParameter& parameter : read.description.optimizer().parameters()) {
    EXPECT_EQ(parameter.states().size(), 2) << parameter.parameter();
  }
}

// The integers that dp_reshardable stores. Its states have no names that could be trusted instead.
TEST(MegatronTest, RemaindersThatAreIntegersAreNoProof) {
  MemoryStorage storage;
  ASSERT_OK(WriteAll(storage, "file", std::string(8, '\1')));
  const auto tensor = [](const std::string& name, TensorRole role, DType dtype) {
    return ForeignTensor{.name = name,
                         .role = role,
                         .dtype = dtype,
                         .shape = {2},
                         .pieces = {{WholeBox({2}), "file", 0, {1}}}};
  };
  const ForeignTensor weight = tensor("w", TensorRole::kWeight, DType::kBF16);
  const auto check = [&](DType dtype) {
    return CheckMasterWeights(storage,
                              {weight, tensor("w.master", TensorRole::kMasterWeight, dtype)});
  };
  EXPECT_OK(check(DType::kBF16));
  EXPECT_TRUE(absl::IsDataLoss(check(DType::kF16))) << check(DType::kF16);
  const absl::Status integers = check(DType::kI16);
  EXPECT_TRUE(absl::IsUnimplemented(integers)) << integers;
  EXPECT_THAT(std::string(integers.message()), HasSubstr("the fp32 weights of w"));
  EXPECT_THAT(std::string(integers.message()), HasSubstr("16-bit remainders"));
}

TEST(MegatronTest, BucketsOfSeveralOptimizersAreRefused) {
  BucketStates buckets("");
  const std::string bucket = ".optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_0.";
  const auto add = [&](const std::string& name) {
    return buckets.AddTensor({.name = name, .dtype = DType::kF32, .shape = {4}});
  };
  EXPECT_OK(add("chained_0" + bucket + "exp_avg"));
  EXPECT_OK(add("chained_0" + bucket + "exp_avg_sq"));
  const absl::Status second = add("chained_1" + bucket + "exp_avg");
  EXPECT_EQ(second.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(second.message()), HasSubstr("the states of several optimizers"));
}

TEST(MegatronTest, AnUnknownPositionInTheDataStaysUnknown) {
  SavedRun run([](float weight) { return weight; });
  ASSERT_OK_AND_ASSIGN(const auto read, run.WriteAndRead());
  EXPECT_EQ(read.description.trainer().step(), 7);
  EXPECT_FALSE(read.description.trainer().has_data());
}

TEST(MegatronTest, GroupsHaveAdamsOwnNumberOfUpdates) {
  SavedRun run([](float weight) { return weight; });
  const std::vector<OutputFile> files = run.Plan();
  EXPECT_TRUE(files.back().commits);
  for (const OutputFile& file : files) {
    if (file.name != kMegatronCommonFile) continue;
    const StringFile common(file.header);
    ASSERT_OK_AND_ASSIGN(const auto archive, ReadTorchArchive(common, {0, common.size_bytes()}));
    const pickle::Value root = archive.contents.root();
    const pickle::Value groups = root.Find("optimizer").Find("optimizer").Find("param_groups");
    ASSERT_EQ(groups.size(), 2);
    EXPECT_EQ(groups[0].Find("step").AsInt(), 5);
    EXPECT_EQ(groups[1].Find("step").AsInt(), 5);
    EXPECT_EQ(groups[0].Find("lr").AsFloat(), 0.375);
    EXPECT_EQ(groups[1].Find("lr").AsFloat(), 0.375);
    EXPECT_EQ(groups[0].Find("wd_mult").AsFloat(), 1);
    EXPECT_EQ(groups[1].Find("wd_mult").AsFloat(), 0);
    EXPECT_EQ(root.Find("iteration").AsInt(), 7);
    const pickle::Value arguments = root.Find("args").state();
    EXPECT_EQ(arguments.Find("use_distributed_optimizer").AsBool(), true);
  }
}

struct Arguments {
  bool bias_gelu_fusion, swiglu, openai_gelu;
};

TEST(MegatronTest, AnExactGeluIsNotedAndListsOfArgumentsAreKept) {
  for (const auto& [fusion, swiglu, openai] : {Arguments{false, false, false},
                                               {true, false, false},
                                               {false, true, false},
                                               {false, false, true}}) {
    pickle::Writer writer;
    writer.BeginDict();
    writer.Text("args").Global("argparse", "Namespace");
    writer.NewObject();
    writer.BeginDict();
    writer.Text("bias_gelu_fusion").Bool(fusion);
    writer.Text("swiglu").Bool(swiglu);
    writer.Text("openai_gelu").Bool(openai);
    writer.Text("window_size").IntTuple({127, 0});
    writer.Text("no_rope_freq").BeginList();
    writer.Int(1);
    writer.EndList();
    writer.EndDict();
    writer.SetState();
    writer.EndDict();
    const StringFile file(TorchObjectFile("common.pt", std::move(writer).Finish()).header);
    ASSERT_OK_AND_ASSIGN(const auto archive, ReadTorchArchive(file, {0, file.size_bytes()}));
    const MegatronRun run(archive.contents.root());
    ForeignCheckpoint checkpoint;
    run.Describe(checkpoint);
    EXPECT_EQ(checkpoint.notes.size(), !fusion && !swiglu && !openai ? 1 : 0);
    if (!checkpoint.notes.empty()) {
      EXPECT_THAT(checkpoint.notes[0], HasSubstr("without bias_gelu_fusion computes GELU exactly"));
    }
    const std::string json = run.ArgumentsAsJson();
    EXPECT_THAT(json, HasSubstr("\"window_size\":[]"));
    EXPECT_THAT(json, HasSubstr("\"no_rope_freq\":[]"));
  }
}

}  // namespace
}  // namespace tessera::ckpt::convert
