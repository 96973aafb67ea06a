// What names mean. That whole checkpoints come out as runs write them is shown by
// tests/reshard_tool.

#include "checkpoint/tools/sharding_rules.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using Place = Sharding::Place;

Sharding Of(const std::string& name, const Shape& shape,
            const std::vector<SplitOverride>& overrides = {}) {
  const auto sharding = FindSharding(name, shape, overrides);
  EXPECT_TRUE(sharding.ok()) << sharding.status();
  return sharding.value_or(Sharding());
}

TEST(ShardingRulesTest, Gpt2) {
  const Sharding qkv = Of("transformer.h.11.attn.c_attn.weight", {64, 192});
  EXPECT_EQ(qkv.place, Place::kLayer);
  EXPECT_EQ(qkv.layer, 11);
  EXPECT_EQ(qkv.dim, 1);
  EXPECT_EQ(qkv.sections, 3);
  EXPECT_EQ(Of("h.0.attn.c_attn.bias", {192}).sections, 3);
  EXPECT_EQ(Of("h.0.attn.c_proj.weight", {64, 64}).dim, 0);
  EXPECT_EQ(Of("h.0.attn.c_proj.bias", {64}).dim, -1);
  EXPECT_EQ(Of("h.0.mlp.c_fc.weight", {64, 256}).dim, 1);
  EXPECT_EQ(Of("h.0.ln_1.weight", {64}).dim, -1);
  const Sharding table = Of("wte.weight", {211, 64});
  EXPECT_EQ(table.place, Place::kFirstStage);
  EXPECT_TRUE(table.is_vocabulary);
  EXPECT_EQ(Of("transformer.wpe.weight", {64, 64}).dim, -1);
  EXPECT_EQ(Of("transformer.ln_f.bias", {64}).place, Place::kLastStage);
}

TEST(ShardingRulesTest, Llama) {
  EXPECT_EQ(Of("model.layers.3.self_attn.q_proj.weight", {64, 64}).dim, 0);
  EXPECT_EQ(Of("model.layers.3.self_attn.o_proj.weight", {64, 64}).dim, 1);
  EXPECT_EQ(Of("model.layers.3.mlp.up_proj.weight", {64, 64}).fused,
            Of("model.layers.3.mlp.gate_proj.weight", {64, 64}).fused);
  EXPECT_EQ(Of("model.layers.3.mlp.down_proj.weight", {64, 64}).dim, 1);
  EXPECT_EQ(Of("model.norm.weight", {64}).place, Place::kLastStage);
  EXPECT_EQ(Of("lm_head.weight", {211, 64}).place, Place::kLastStage);
}

TEST(ShardingRulesTest, UnknownNames) {
  EXPECT_EQ(Of("encoder.2.mixer.kernel", {8, 8, 8}).dim, 0);
  EXPECT_EQ(Of("encoder.2.mixer.kernel", {8, 8, 8}).layer, 2);
  EXPECT_EQ(Of("encoder.2.mixer.scale", {8}).dim, -1);
  EXPECT_EQ(Of("patch_embedding", {8, 8}).place, Place::kFirstStage);
  EXPECT_EQ(Of("x.7", {8, 8}).place, Place::kFirstStage);  // a number without parts around it
  EXPECT_EQ(Of("steps", {}).dim, -1);
  // A known name with another shape.
  EXPECT_EQ(Of("h.0.attn.c_attn.weight", {192}).dim, -1);
  EXPECT_EQ(Of("h.0.attn.c_attn.weight", {64, 100}).sections, 1);
}

TEST(ShardingRulesTest, Overrides) {
  const auto split = [](const std::string& text) {
    const auto parsed = ParseSplitOverride(text);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.value_or(SplitOverride());
  };
  const std::vector<SplitOverride> overrides = {split("*.weight=1"), split("h.*.c_proj.*=whole"),
                                                split("a=b=0")};
  EXPECT_EQ(Of("h.0.mlp.c_proj.weight", {64, 64}, overrides).dim, -1);
  EXPECT_EQ(Of("h.0.mlp.c_proj.weight", {64, 64}, overrides).layer, 0);
  EXPECT_EQ(Of("h.0.attn.c_attn.weight", {64, 192}, overrides).sections, 1);
  EXPECT_EQ(Of("a=b", {64}, overrides).dim, 0);
  EXPECT_FALSE(FindSharding("ln_f.weight", {64}, overrides).ok());
  for (const char* bad : {"", "w", "=1", "w=", "w=-1", "w=1x", "w=99"}) {
    EXPECT_FALSE(ParseSplitOverride(bad).ok()) << bad;
  }
}

TEST(ShardingRulesTest, Patterns) {
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_TRUE(MatchesPattern("a*c*", "abcc"));
  EXPECT_TRUE(MatchesPattern("*ab", "aab"));
  EXPECT_FALSE(MatchesPattern("a*c", "abd"));
  EXPECT_FALSE(MatchesPattern("", "a"));
}

}  // namespace
}  // namespace tessera::ckpt
