#include <string>

#include "base/testing.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/models.h"
#include "convert/formats/paddle/paddle.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;

Manifest LlamaOf(DType dtype) {
  Manifest manifest;
  manifest.mutable_model()->set_text(
      "architecture: LLAMA3 num_layers: 1 hidden_size: 8 num_attention_heads: 2 num_query_groups: "
      "1 vocab_size: 16 ffn_hidden_size: 8 max_position_embeddings: 8 use_rope_scaling: false "
      "untie_embeddings_and_output_weights: true");
  for (const LogicalParameter& parameter : DescribeModel(*ConfigOf(manifest.model())).parameters) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name(parameter.name);
    tensor.set_role(ToProto(TensorRole::kWeight));
    tensor.set_dtype(ToProto(dtype));
    tensor.mutable_global_shape()->Add(parameter.shape.begin(), parameter.shape.end());
  }
  return manifest;
}

TEST(PlanPaddleTest, DTypesThatAreNotWrittenForPaddleAreRefused) {
  EXPECT_OK(PlanPaddle(LlamaOf(DType::kBF16), {}).status());
  for (const DType dtype : {DType::kF8E4M3, DType::kU16}) {
    const absl::Status refused = PlanPaddle(LlamaOf(dtype), {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("the weights: " + ProtoName(dtype) + " is not written for Paddle"));
    EXPECT_OK(PlanPaddle(LlamaOf(dtype), {.dtype = DType::kF32}).status());
  }
}

}  // namespace
}  // namespace tessera::ckpt::convert
