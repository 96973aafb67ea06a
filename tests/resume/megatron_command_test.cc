// Runs that go on from checkpoints that megatron-core has written.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resume/command.h"
#include "tests/resume/parallel_command.h"
#include "trainer/data/token_file.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class MegatronCommandTest : public ParallelCommandTest {
 protected:
  void SetUp() override {
    ParallelCommandTest::SetUp();
    std::mt19937 random(3);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 5000; ++i) tokens.push_back(static_cast<int32_t>(random() % 61));
    auto writer = TokenFileWriter::Create((root_ / "small.bin").string(), TokenFormat::kGpt2);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(tokens).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }

  // The sizes are those of tests/interop/megatron/make_fixtures.py.
  void UseModel(const std::string& of_architecture) const {
    std::ofstream(root_ / "run.textproto")
        << "model { num_layers: 2 hidden_size: 8 num_attention_heads: 4 "
        << "max_position_embeddings: 13 vocab_size: 61 " << of_architecture << "}\n"
        << R"pb(
          training { micro_batch_size: 2 global_batch_size: 8 seq_length: 12 threads: 1 }
          parallel { numerics: EXACT exact_tp_shards: 2 }
          optimizer { lr: 1e-3 lr_decay_iters: 100 }
        )pb"
        << "data { train_data_path: \"" << (root_ / "small.bin").string() << "\" }\n";
  }

  // The losses of steps 8 and 9.
  std::map<int64_t, std::string> Continue(const std::string& fixture, const std::string& topology,
                                          int processes) const {
    const std::string run = fixture + "-" + topology;
    const Result result =
        Run(Mpirun(processes, Saving(run, 9,
                                     {"--topology=" + topology,
                                      "--load=" + Runfile("tests/interop/megatron/" + fixture),
                                      "--load-content=model,optimizer,scheduler"})));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("(step 7)"));
    return Losses(run);
  }

  // `others` are the same state in other formats.
  void ExpectTheSameLosses(const std::string& consolidated, const std::string& sharded,
                           const std::vector<std::string>& others) const {
    const std::map<int64_t, std::string> expected = Continue(consolidated, "single", 1);
    ASSERT_EQ(expected.size(), 2);
    EXPECT_EQ(Continue(sharded, "single", 1), expected);
    EXPECT_EQ(Continue(sharded, "tp2", 2), expected);
    EXPECT_EQ(Continue(sharded, "pp2", 2), expected);
    EXPECT_EQ(Continue(sharded, "dp2_zero2_tp2_pp2", 8), expected);
    for (const std::string& other : others) {
      EXPECT_EQ(Continue(other, "dp2_zero2_tp2_pp2", 8), expected) << other;
    }
  }
};

TEST_F(MegatronCommandTest, Gpt2) {
  UseModel("architecture: GPT2 ffn_hidden_size: 32");
  ExpectTheSameLosses("gpt2_single", "gpt2_tp2_pp2", {"legacy_gpt2_tp2_pp2"});
}

TEST_F(MegatronCommandTest, Llama3) {
  UseModel(
      "architecture: LLAMA3 ffn_hidden_size: 24 num_query_groups: 2 rotary_base: 10000 "
      "use_rope_scaling: false untie_embeddings_and_output_weights: true ");
  ExpectTheSameLosses("llama3_untied_single", "llama3_untied_dp2_tp2_pp2",
                      {"legacy_llama3_untied_dp2_tp2"});
}

}  // namespace
}  // namespace tessera
