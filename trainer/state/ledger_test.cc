#include "trainer/state/ledger.h"

#include <limits>
#include <set>

#include "absl/status/status.h"
#include "base/testing.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "gtest/gtest.h"
#include "trainer/config/config.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

constexpr LedgerStep kStep{.step = 4,
                           .loss = 2.5,
                           .grad_norm = 0.125,
                           .learning_rate = 1e-3,
                           .first_sample = 24,
                           .end_sample = 32};

std::string SettingsOfRun(const std::string& more, uint64_t seed = 1, uint64_t data_seed = 1) {
  TrainConfig config = *ParseConfig(
      "model { size: 'gpt2-tiny' vocab_size: 100 } optimizer { lr_decay_iters: 100 } "
      "training { micro_batch_size: 2 global_batch_size: 8 seq_length: 32 train_iters: 100 } "
      "data { train_data_path: 'tokens.bin' } parallel { numerics: EXACT exact_tp_shards: 2 }",
      "test");
  config.MergeFrom(*ParseConfig(more, "test"));
  return SettingsDigest(OrFail(ResolveConfig(config)), seed, data_seed);
}

// Expected values: from another implementation.
TEST(LedgerTest, ALinkIsTheDigestOfItsText) {
  LedgerStep first = kStep;
  first.step = 3;
  first.learning_rate = std::numeric_limits<double>::infinity();
  first.first_sample = 16;
  first.end_sample = 24;
  const std::string link = NextLink("", "s", first);
  EXPECT_EQ(link, "68a4c47b7a67f7814509868a87fe206baf20ee6ae4dbcdc916536d492cbd3e04");
  EXPECT_EQ(NextLink(link, "s", kStep),
            "2e6860772cac45b3e78a803296a661f5f0642b4d48fa7817200fc0f95adf422d");
  EXPECT_TRUE(IsLedgerDigest(link));
  EXPECT_FALSE(IsLedgerDigest(link.substr(1)));
  EXPECT_FALSE(IsLedgerDigest("Z" + link.substr(1)));
}

TEST(LedgerTest, EveryBitOfAStepCounts) {
  std::set<std::string> links = {NextLink("p", "s", kStep), NextLink("q", "s", kStep),
                                 NextLink("p", "t", kStep)};
  for (int field = 0; field < 6; ++field) {
    LedgerStep step = kStep;
    if (field == 0) step.step = 5;
    if (field == 1) step.loss = 2.5000000000000004;
    if (field == 2) step.grad_norm = 0.12500000000000003;
    if (field == 3) step.learning_rate = 1.0000000000000002e-3;
    if (field == 4) step.first_sample = 25;
    if (field == 5) step.end_sample = 33;
    links.insert(NextLink("p", "s", step));
  }
  EXPECT_EQ(links.size(), 9);
}

TEST(LedgerTest, OnlySettingsOfTheComputationCount) {
  const std::string same = SettingsOfRun("");
  for (const std::string more :
       {"parallel { data_parallel_size: 2 zero_stage: 1 tensor_model_parallel_size: 2 }",
        "training { threads: 2 exit_interval: 7 eval_iters: 3 train_iters: 200 }",
        "checkpoint { save: 'y' save_interval: 3 async_save: true }", "output { run_dir: 'x' }",
        "data { train_data_path: 'elsewhere' }", "training { micro_batch_size: 1 }"}) {
    EXPECT_EQ(SettingsOfRun(more), same) << more;
  }
  for (const std::string more :
       {"parallel { exact_tp_shards: 4 }", "parallel { numerics: FAST exact_tp_shards: 1 }",
        "training { bf16: true }", "optimizer { lr: 1e-5 }", "model { hidden_dropout: 0.5 }"}) {
    EXPECT_NE(SettingsOfRun(more), same) << more;
  }
  EXPECT_NE(SettingsOfRun("training { micro_batch_size: 6 global_batch_size: 24 }"),
            SettingsOfRun("training { global_batch_size: 24 }"));
  EXPECT_NE(SettingsOfRun("", 2), same);
  EXPECT_NE(SettingsOfRun("", 1, 2), same);
  // The seed of the run counts, which a resume takes from the checkpoint.
  EXPECT_EQ(SettingsOfRun("training { seed: 9 }"), same);
}

TEST(LedgerTest, TheDigestOfAStateIsThatOfItsTensorsInAnyOrderAndLayout) {
  ckpt::Manifest manifest;
  for (const std::string name : {"a", "b"}) {
    ckpt::LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name(name);
    tensor.add_global_shape(3);
    tensor.mutable_digest()->set_lo(static_cast<uint64_t>(name[0]));
  }
  const std::string digest = StateDigest(manifest);
  ckpt::Manifest other = manifest;
  other.mutable_tensors()->SwapElements(0, 1);
  other.mutable_tensors(0)->add_padded_shape(4);
  other.mutable_tensors(0)->mutable_shards()->add_file_index(7);
  other.mutable_topology()->set_data_parallel(2);
  EXPECT_EQ(StateDigest(other), digest);
  other.mutable_tensors(0)->mutable_digest()->set_hi(1);
  EXPECT_NE(StateDigest(other), digest);
  other = manifest;
  other.mutable_tensors(1)->set_global_shape(0, 4);
  EXPECT_NE(StateDigest(other), digest);
  EXPECT_NE(SaveDigest(1, "h", digest), SaveDigest(2, "h", digest));
  EXPECT_NE(SaveDigest(1, "h", digest), SaveDigest(1, "g", digest));
  EXPECT_NE(SaveDigest(1, "h", digest), SaveDigest(1, "h", "s"));
}

TEST(LedgerTest, TheHeadIsInTheManifest) {
  const auto describe = [](const std::string& head) {
    return DescribeRun(TrainConfig(), ModelConfig(), {.step = 4, .ledger = head}, {},
                       NumericsFingerprint());
  };
  const std::string head = NextLink("", "s", kStep);
  ASSERT_OK_AND_ASSIGN(const Progress progress, ReadProgress(describe(head)));
  EXPECT_EQ(progress.ledger, head);
  // An older checkpoint has none.
  EXPECT_EQ(ReadProgress(describe(""))->ledger, "");
  EXPECT_TRUE(absl::IsDataLoss(ReadProgress(describe("x")).status()));
}

}  // namespace
}  // namespace tessera
