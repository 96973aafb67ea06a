// Checkpoints written in torch's formats, read back.

#include "convert/formats/torch/write.h"

#include <algorithm>
#include <memory>
#include <set>
#include <span>

#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/torch/read.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"
#include "storage/zip.h"

namespace tessera::ckpt::convert {
namespace {

constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16,    DType::kBF16,  DType::kI64,
                            DType::kI32, DType::kI16, DType::kI8,     DType::kU8,    DType::kU16,
                            DType::kU32, DType::kU64, DType::kF8E4M3, DType::kF8E5M2};

// A committed checkpoint of tensors of every dtype, a tied one, optimizer state, a scalar and an
// empty tensor.
class Source {
 public:
  Source() {
    for (const DType dtype : kTypes) {
      Add("of." + std::to_string(static_cast<int>(dtype)), dtype, {5, 3}, TensorRole::kWeight);
    }
    Add("scalar", DType::kF32, {}, TensorRole::kBuffer);
    Add("empty", DType::kF32, {0, 4}, TensorRole::kWeight);
    Add("exp_avg.of.2", DType::kF32, {5, 3}, TensorRole::kOptimizerState);
    Add("master.of.4", DType::kF32, {5, 3}, TensorRole::kMasterWeight);
    for (const char* name : {"of.2.exp_avg_sq", "of.4.exp_avg", "of.4.exp_avg_sq"}) {
      Add(name, DType::kF32, {5, 3}, TensorRole::kOptimizerState);
    }
    state_.tensors.push_back(
        {.name = "tied", .dtype = DType::kF32, .global_shape = {5, 3}, .alias_of = "of.2"});
    EXPECT_OK(CheckpointFolder(storage_).Save(7, state_));
    manifest_ = OrFail(ReadManifest(storage_, StepDirectoryName(7)));
  }

  // Two parameters in two groups. The second one has a master weight.
  void DescribeOptimizer() {
    OptimizerState& optimizer = *manifest_.mutable_optimizer();
    for (const uint32_t group : {0, 1}) {
      (*optimizer.add_groups()->mutable_options())["weight_decay"] = 0.1 * (1 - group);
      OptimizerParameter& parameter = *optimizer.add_parameters();
      parameter.set_group(group);
      parameter.set_parameter(group == 0 ? "of.2" : "of.4");
      auto& states = *parameter.mutable_states();
      states["exp_avg"] = group == 0 ? "exp_avg.of.2" : "of.4.exp_avg";
      states["exp_avg_sq"] = parameter.parameter() + ".exp_avg_sq";
      if (group == 1) states["master"] = "master.of.4";
    }
  }

  Checkpoint output() { return CheckpointOfManifest(storage_, StepDirectoryName(7), manifest_); }
  const Manifest& manifest() const { return manifest_; }

 private:
  void Add(const std::string& name, DType dtype, const Shape& shape, TensorRole role) {
    auto memory = std::make_unique<std::vector<uint8_t>>(ElementCount(shape) * ElementSize(dtype));
    for (size_t i = 0; i < memory->size(); ++i) {
      (*memory)[i] = static_cast<uint8_t>((i * 7 + memory_.size() * 13) % 61);
    }
    state_.tensors.push_back({.name = name, .role = role, .dtype = dtype, .global_shape = shape});
    state_.tensors.back().shards = {Shard::Untyped(memory->data(), dtype, WholeBox(shape))};
    memory_.push_back(std::move(memory));
  }

  MemoryStorage storage_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> memory_;
  StateDict state_;
  Manifest manifest_;
};

// Writes files, reads them back with `read` and returns the digests of all tensors.
template <typename ReadFunction>
DigestsByName WriteAndRead(Source& source, const std::vector<OutputFile>& files,
                           const std::shared_ptr<MemoryStorage>& storage,
                           const ReadFunction& read) {
  EXPECT_OK(WriteOutput(source.output(), files, *storage, "", {}));
  auto checkpoint = OrFail(read(*storage));
  auto foreign = OrFail(ForeignStorage::Create(storage, std::move(checkpoint)));
  const auto manifest = OrFail(ReadManifest(*foreign, ""));
  for (const LogicalTensor& tensor : manifest.tensors()) {
    for (const LogicalTensor& in_source : source.manifest().tensors()) {
      if (in_source.name() != tensor.name()) continue;
      EXPECT_EQ(FromProto(tensor.role()), FromProto(in_source.role())) << tensor.name();
      EXPECT_EQ(tensor.alias_of(), in_source.alias_of()) << tensor.name();
    }
  }
  EXPECT_TRUE(foreign->notes().empty());
  return OrFail(ReadDigests(CheckpointOfManifest(*foreign, "", manifest), {}));
}

DigestsByName TorchDigests(Source& source, const PlanOptions& options,
                           const std::vector<std::string>& module_order = {}) {
  return WriteAndRead(source, PlanTorch(source.manifest(), options, module_order),
                      std::make_shared<MemoryStorage>(), [](Storage& storage) {
                        return ReadTorch(storage, std::vector<std::string>{"checkpoint.pt"});
                      });
}

DigestsByName DcpDigests(Source& source, const PlanOptions& options) {
  return WriteAndRead(source, *PlanDcp(source.manifest(), options),
                      std::make_shared<MemoryStorage>(),
                      [](Storage& storage) { return ReadDcp(storage, ""); });
}

TEST(WriteTorchFormatsTest, RoundTripsKeepEveryDigest) {
  Source source;
  ASSERT_OK_AND_ASSIGN(const auto expected, ReadDigests(source.output(), {}));
  EXPECT_EQ(expected.size(), std::size(kTypes) + 8);
  EXPECT_TRUE(TorchDigests(source, {}) == expected);
  EXPECT_TRUE(DcpDigests(source, {}) == expected);
  EXPECT_TRUE(DcpDigests(source, {.max_file_bytes = 5000}) == expected);
}

// Moments are in the place where optimizers have them, and read back under their names.
TEST(WriteTorchFormatsTest, MomentsAreThoseOfAnOptimizersStateDict) {
  Source source;
  ASSERT_OK_AND_ASSIGN(const auto expected, ReadDigests(source.output(), {}));
  source.DescribeOptimizer();
  EXPECT_TRUE(TorchDigests(source, {}) == expected);
  EXPECT_TRUE(TorchDigests(source, {}, {"of.4", "of.2"}) == expected);
  EXPECT_TRUE(DcpDigests(source, {}) == expected);
  const auto files = *PlanDcp(source.manifest(), {});
  const auto metadata =
      std::ranges::find(files, std::string(".metadata"), &OutputFile::name)->header;
  for (const char* key :
       {"model.of.2", "model.of.4", "optimizer.state.of.2.exp_avg", "optimizer.state.of.4.step",
        "optimizer.param_groups.of.2.lr", "tessera.names"}) {
    EXPECT_NE(metadata.find(key), metadata.npos) << key;
  }
  EXPECT_EQ(metadata.find("param_groups.of.3"), metadata.npos);
  const auto weights = TorchDigests(source, {.weights_only = true});
  EXPECT_EQ(weights.size(), std::size(kTypes) + 3);
  EXPECT_FALSE(weights.contains("master.of.4"));
}

// AMSGrad needs its own state, and is off without one.
TEST(WriteTorchFormatsTest, OtherStatesOfAdamAreInTheirPlaces) {
  Source source;
  source.DescribeOptimizer();
  Manifest manifest = source.manifest();
  (*manifest.mutable_optimizer()->mutable_parameters(0)->mutable_states())["max_exp_avg_sq"] =
      "exp_avg.of.2";
  SavedValue::Dict settings;
  settings.Add({std::string("amsgrad")}, {true});
  const SavedValue state =
      DictOf("optimizer", DictOf("param_groups", {SavedValue::List{{{settings}, {settings}}}}));
  const PlanOptions options = {.state = &state};
  const auto written = PlanStateDict(manifest, options, OptimizerForm::kNumbered);
  std::map<std::string, const SavedValue*> leaves;
  for (const Leaf& leaf : LeavesOf(written.root)) leaves[leaf.name] = leaf.value;
  EXPECT_TRUE(*leaves.at("optimizer.param_groups.0.amsgrad")->As<bool>());
  EXPECT_FALSE(*leaves.at("optimizer.param_groups.1.amsgrad")->As<bool>());
  EXPECT_EQ(leaves.at("optimizer.state.0.max_exp_avg_sq")->As<SavedValue::Tensor>()->name,
            "exp_avg.of.2");
  EXPECT_FALSE(leaves.contains("optimizer.state.1.max_exp_avg_sq"));
}

TEST(WriteTorchFormatsTest, FloatingWeightsAreConverted) {
  Source source;
  const auto files = *PlanDcp(source.manifest(), {.dtype = DType::kBF16});
  std::map<std::string, DType> dtypes;
  for (const OutputFile& file : files) {
    for (const OutputTensor& tensor : file.tensors) dtypes[tensor.name] = tensor.dtype;
  }
  EXPECT_EQ(dtypes.at("of.2"), DType::kBF16);
  EXPECT_EQ(dtypes.at("of.5"), DType::kI64);
  EXPECT_EQ(dtypes.at("exp_avg.of.2"), DType::kF32);
}

TEST(WriteTorchFormatsTest, FilesOfDcpAreSplit) {
  Source source;
  const auto files = *PlanDcp(source.manifest(), {.max_file_bytes = 5000});
  EXPECT_GT(files.size(), 3);
  std::set<std::string> names;
  for (const OutputFile& file : files) {
    EXPECT_LE(file.size_bytes, file.name == ".metadata" ? 100'000 : 5000) << file.name;
    EXPECT_TRUE(names.insert(file.name).second);
  }
}

TEST(ZipLayoutTest, SizesAndOffsetsBeyond32Bits) {
  // The records of an archive of five gigabytes, in a file that has nothing else.
  ZipLayout layout;
  const uint64_t large = 5'000'000'000;
  EXPECT_EQ(layout.Add("a/large", large) % kZipAlignmentBytes, 0);
  EXPECT_GT(layout.Add("a/small", 3), large);
  const std::string directory = layout.Directory();
  EXPECT_NE(directory.find("a/small"), directory.npos);
  class SparseFile final : public ReadableFile {
   public:
    absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
      std::fill(out.begin(), out.end(), std::byte{0});
      for (const auto& [at, bytes] : records) {
        for (size_t i = 0; i < bytes.size(); ++i) {
          if (at + i >= offset && at + i - offset < out.size()) {
            out[at + i - offset] = static_cast<std::byte>(bytes[i]);
          }
        }
      }
      return absl::OkStatus();
    }
    uint64_t size_bytes() const override { return size; }
    std::map<uint64_t, std::string> records;
    uint64_t size = 0;
  } file;
  file.records = {{layout.local_header_offset(0), layout.LocalHeader(0)},
                  {layout.local_header_offset(1), layout.LocalHeader(1)},
                  {layout.directory_offset(), directory}};
  file.size = layout.directory_offset() + directory.size();
  ASSERT_OK_AND_ASSIGN(const auto members, ReadZipDirectory(file, {0, file.size}));
  ASSERT_EQ(members.size(), 2);
  EXPECT_EQ(members[0].data.length, large);
  EXPECT_EQ(members[1].name, "a/small");
  EXPECT_EQ(members[1].data.offset % kZipAlignmentBytes, 0);
}

}  // namespace
}  // namespace tessera::ckpt::convert
