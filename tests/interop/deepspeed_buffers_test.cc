// Buffers of a DeepSpeed model, such as the running means of a norm, are in its file alone. What
// cannot be read with the parameters is noted.

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/open_foreign.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/write.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

struct ModelFile {
  std::vector<ckpt::TensorInfo> parameters;  // their shapes alone
  std::string buffer;                        // its name
  Shape shape;
  std::vector<float> elements;
  std::vector<std::string> shared = {};  // further names of the first parameter
  DType dtype = DType::kF32;             // of the buffer
};

// Writes a model's file with a state dict of a buffer and of a tensor that cannot be read, and with
// a tensor in a program's own state.
void WriteModelFile(const fs::path& path, const ModelFile& file) {
  ckpt::pickle::Writer writer;
  writer.BeginDict();
  writer.Text("dp_world_size").Int(2);
  writer.Text("param_shapes").BeginList();
  writer.BeginDict();
  for (const ckpt::TensorInfo& parameter : file.parameters) {
    writer.Text(parameter.name).IntTuple(parameter.global_shape);
  }
  writer.EndDict();
  writer.EndList();
  writer.Text("shared_params").BeginDict();
  for (const std::string& name : file.shared) writer.Text(name).Text(file.parameters.front().name);
  writer.EndDict();
  writer.Text("module").BeginDict();
  writer.Text(file.buffer);
  ckpt::convert::WriteTorchTensor(file.dtype, file.shape, 0, writer);
  writer.Text("norm.sparse").Global("torch._utils", "_rebuild_sparse_tensor");
  writer.BeginTuple();
  writer.EndTuple();
  writer.Call();
  writer.EndDict();
  writer.Text("average").BeginDict();
  writer.Text("of").BeginList();
  ckpt::convert::WriteTorchTensor(file.dtype, file.shape, 0, writer);
  writer.EndList();
  writer.EndDict();
  writer.EndDict();
  std::string bytes(file.elements.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), file.elements.data(), bytes.size());
  WriteFile(path, ckpt::convert::TorchObjectFile("", std::move(writer).Finish(), bytes).header);
}

class DeepSpeedBuffersTest : public testing::ForeignTest {
 protected:
  // A copy of a checkpoint, without the model's description.
  const std::string copy_ = CopyOf("tests/interop/deepspeed/zero1");
  const std::string config_ = ReadFile(copy_ + "/config.json");
  const std::string model_ = copy_ + "/global_step3/mp_rank_00_model_states.pt";

  std::vector<ckpt::TensorInfo> Parameters() {
    fs::remove(copy_ + "/config.json");
    std::vector<ckpt::TensorInfo> parameters;
    const auto storage = ckpt::convert::OpenForeign(copy_, {});
    EXPECT_OK(storage.status());
    const auto checkpoint = ckpt::Checkpoint::Open(**storage, "");
    EXPECT_OK(checkpoint.status());
    for (const ckpt::TensorInfo& tensor : checkpoint->tensors()) {
      if (tensor.role == ckpt::TensorRole::kWeight && tensor.alias_of.empty()) {
        parameters.push_back(tensor);
      }
    }
    return parameters;
  }
};

TEST_F(DeepSpeedBuffersTest, AreReadWithTheParametersOrNamed) {
  const ModelFile file = {Parameters(), "norm.running_mean", {3}, {1.5, -2, 3}};
  WriteModelFile(model_, file);
  ASSERT_OK_AND_ASSIGN(const auto storage, ckpt::convert::OpenForeign(copy_, {}));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage, ""));
  ASSERT_OK_AND_ASSIGN(const auto found, checkpoint.LoadTensor<float>("norm.running_mean"));
  EXPECT_EQ(found, file.elements);
  EXPECT_OK(checkpoint.Find(file.parameters.front().name));
  EXPECT_THAT(storage->notes(), Contains(HasSubstr("norm.sparse")));
  EXPECT_THAT(storage->notes(), Contains("Left out: tensors of the program's own: average.of.0."));
}

TEST_F(DeepSpeedBuffersTest, AThirdNameOfAParameterIsNoted) {
  WriteModelFile(model_, {Parameters(), "mean", {1}, {1}, {"second", "third"}});
  ASSERT_OK_AND_ASSIGN(const auto storage, ckpt::convert::OpenForeign(copy_, {}));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage, ""));
  EXPECT_OK(checkpoint.Find("second"));
  EXPECT_THAT(storage->notes(),
              Contains(HasSubstr("Left out: further names of tied parameters: third.")));
}

TEST_F(DeepSpeedBuffersTest, ACopyOfATiedHeadIsNoted) {
  WriteModelFile(model_, {Parameters(), "lm_head.weight", {29, 8}, std::vector<float>(29 * 8)});
  WriteFile(copy_ + "/config.json", config_);
  ASSERT_OK_AND_ASSIGN(const auto storage, ckpt::convert::OpenForeign(copy_, {}));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage, ""));
  ASSERT_OK_AND_ASSIGN(const auto head, checkpoint.LoadTensor<float>("lm_head.weight"));
  ASSERT_OK_AND_ASSIGN(const auto tied, checkpoint.LoadTensor<float>("transformer.wte.weight"));
  EXPECT_EQ(head, tied);
  EXPECT_THAT(storage->notes(), Contains(HasSubstr("file: lm_head.weight.")));
}

TEST_F(DeepSpeedBuffersTest, TensorsOfTheModelThatAreNotReadAreNoted) {
  const std::vector<ckpt::TensorInfo> parameters = Parameters();
  const std::string first = parameters.front().name;
  WriteModelFile(model_, {parameters, "cut.weight", {0}, {1}});
  ASSERT_OK_AND_ASSIGN(auto storage, ckpt::convert::OpenForeign(copy_, {}));
  EXPECT_THAT(storage->notes(),
              Contains(HasSubstr("misshapen tensors of the model's file: cut.weight.")));
  WriteModelFile(model_, {parameters, first, {1}, {1}});
  ASSERT_OK_AND_ASSIGN(storage, ckpt::convert::OpenForeign(copy_, {}));
  EXPECT_THAT(storage->notes(),
              Contains(HasSubstr("misshapen tensors of the model's file: " + first + ".")));
}

TEST_F(DeepSpeedBuffersTest, AParameterWithoutAWeightIsDataLoss) {
  std::vector<ckpt::TensorInfo> parameters = Parameters();
  parameters.push_back({.name = "lost.weight", .global_shape = {3}});
  WriteModelFile(model_, {parameters, "mean", {1}, {1}});
  absl::Status status = ckpt::convert::OpenForeign(copy_, {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("no file has lost.weight"));
  // Its rounded copy alone, where others have fp32 weights.
  WriteModelFile(model_, {parameters, "lost.weight", {3}, {1, 2}, {}, DType::kBF16});
  status = ckpt::convert::OpenForeign(copy_, {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("no file has lost.weight.master"));
}

// Weights can be read without the optimizer.
TEST_F(DeepSpeedBuffersTest, ASingleMomentIsLeftOutWithANote) {
  const std::string source = "tests/interop/deepspeed/universal",
                    copy = CopyOf(source, "universal");
  const std::string lost = "zero/transformer.ln_f.weight/exp_avg.pt";
  ASSERT_TRUE(fs::remove(copy + "/global_step3/" + lost));
  {
    ASSERT_OK_AND_ASSIGN(const auto storage, ckpt::convert::OpenForeign(copy, {}));
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage, ""));
    EXPECT_THAT(storage->notes(), Contains(HasSubstr(lost)));
    EXPECT_FALSE(checkpoint.Find("transformer.ln_f.weight.exp_avg_sq").ok());
    EXPECT_OK(checkpoint.Find("transformer.ln_f.bias.exp_avg_sq"));
  }
  for (const std::string& from : {source, copy}) {
    const std::string to = from == copy ? In("from_copy") : In("from_source");
    ASSERT_EQ(Run({"convert", from, to, "--to=hf"}), 0) << err_;
  }
  EXPECT_EQ(Run({"diff", In("from_source"), In("from_copy"), "--data"}), 0) << out_ << err_;
}

}  // namespace
}  // namespace tessera
