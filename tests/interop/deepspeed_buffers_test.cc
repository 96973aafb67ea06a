// Buffers of a DeepSpeed model, such as the running means of a norm, are in its file alone.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
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
#include "layout/dtype.h"
#include "tests/interop/foreign_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

using DeepSpeedBuffersTest = testing::ForeignTest;

// Writes a model's file with the shapes of these parameters, and a state dict of a buffer and of a
// tensor that cannot be read.
void WriteModelFile(const fs::path& path, const std::vector<ckpt::TensorInfo>& parameters,
                    const std::vector<float>& buffer) {
  ckpt::pickle::Writer writer;
  writer.BeginDict();
  writer.Text("dp_world_size").Int(2);
  writer.Text("param_shapes").BeginList();
  writer.BeginDict();
  for (const ckpt::TensorInfo& parameter : parameters) {
    writer.Text(parameter.name).IntTuple(parameter.global_shape);
  }
  writer.EndDict();
  writer.EndList();
  writer.Text("module").BeginDict();
  writer.Text("norm.running_mean");
  ckpt::convert::WriteTorchTensor(DType::kF32, {static_cast<int64_t>(buffer.size())}, 0, writer);
  writer.Text("norm.sparse").Global("torch._utils", "_rebuild_sparse_tensor");
  writer.BeginTuple();
  writer.EndTuple();
  writer.Call();
  writer.EndDict();
  writer.EndDict();
  std::string bytes(buffer.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), buffer.data(), bytes.size());
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      << ckpt::convert::TorchObjectFile("", std::move(writer).Finish(), bytes).header;
}

TEST_F(DeepSpeedBuffersTest, AreReadWithTheParametersOrNamed) {
  const std::string copy = CopyOf("tests/interop/deepspeed/zero1");
  fs::remove(copy + "/config.json");
  std::vector<ckpt::TensorInfo> parameters;
  {
    ASSERT_OK_AND_ASSIGN(const auto storage, ckpt::convert::OpenForeign(copy, {}));
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage, ""));
    for (const ckpt::TensorInfo& tensor : checkpoint.tensors()) {
      if (tensor.role == ckpt::TensorRole::kWeight && tensor.alias_of.empty()) {
        parameters.push_back(tensor);
      }
    }
  }
  const std::vector<float> buffer = {1.5, -2, 3};
  WriteModelFile(copy + "/global_step3/mp_rank_00_model_states.pt", parameters, buffer);
  ASSERT_OK_AND_ASSIGN(const auto storage, ckpt::convert::OpenForeign(copy, {}));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage, ""));
  ASSERT_OK_AND_ASSIGN(const auto found, checkpoint.LoadTensor<float>("norm.running_mean"));
  EXPECT_EQ(found, buffer);
  EXPECT_OK(checkpoint.Find(parameters.front().name));
  EXPECT_THAT(storage->notes(), Contains(HasSubstr("norm.sparse")));
}

}  // namespace
}  // namespace tessera
