#include "trainer/state/run_state.h"

#include "base/testing.h"
#include "gtest/gtest.h"
#include "models/model_config.h"

namespace tessera {
namespace {

ckpt::Manifest Describe(const Progress& progress) {
  ModelConfig model;
  model.set_architecture(ModelConfig::GPT2);
  model.set_num_layers(2);
  model.set_num_attention_heads(4);
  return DescribeRun(TrainConfig(), model, progress,
                     {.fingerprint = {.sampled = 5, .complete = 7},
                      .sequence_length = 32,
                      .samples_per_epoch = 100},
                     NumericsFingerprint());
}

// Expects that the message of `status` contains each of `parts`.
void ExpectNames(const absl::Status& status, absl::StatusCode code,
                 const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos)
        << part << ": " << status;
  }
}

TEST(RunStateTest, ProgressComesBack) {
  const Progress before{.step = 7,
                        .updates = 6,
                        .consumed_samples = 250,
                        .last_loss = 3.25,
                        .last_learning_rate = 1e-3,
                        .best_loss = 3.5,
                        .best_training_loss = 10 / 3.0,
                        .best_loss_data = "its data",
                        .seed = 9,
                        .partial_resumes = "step 4 without sampler"};
  const ckpt::Manifest manifest = Describe(before);
  EXPECT_EQ(manifest.trainer().data().epoch(), 2);
  EXPECT_EQ(manifest.model().architecture(), "gpt2");
  EXPECT_EQ(manifest.trainer().schedule().name(), "linear");
  ASSERT_OK_AND_ASSIGN(const Progress after, ReadProgress(manifest));
  EXPECT_EQ(after.step, before.step);
  EXPECT_EQ(after.updates, before.updates);
  EXPECT_EQ(after.consumed_samples, before.consumed_samples);
  EXPECT_EQ(after.last_loss, before.last_loss);
  EXPECT_EQ(after.last_learning_rate, before.last_learning_rate);
  EXPECT_EQ(after.best_loss, before.best_loss);
  EXPECT_EQ(after.best_training_loss, before.best_training_loss);
  EXPECT_EQ(after.best_loss_data, before.best_loss_data) << "of a run without evaluations";
  EXPECT_EQ(after.seed, before.seed);
  EXPECT_EQ(after.partial_resumes, before.partial_resumes);
}

TEST(RunStateTest, AProgramThatKnowsNoBestLossHasNone) {
  ckpt::Manifest manifest = Describe({});
  manifest.mutable_trainer()->clear_best_loss();
  const Progress progress = OrFail(ReadProgress(manifest));
  EXPECT_EQ(progress.best_loss, std::numeric_limits<double>::infinity());
  EXPECT_EQ(progress.best_training_loss, std::numeric_limits<double>::infinity());
}

TEST(RunStateTest, ImpossibleProgressIsRefused) {
  ckpt::Manifest manifest = Describe({.step = 7, .updates = 8});
  ExpectNames(ReadProgress(manifest).status(), absl::StatusCode::kDataLoss, {"updates 8"});
  manifest = Describe({.consumed_samples = std::numeric_limits<int64_t>::max()});
  ExpectNames(ReadProgress(manifest).status(), absl::StatusCode::kDataLoss, {"consumed_samples 9"});
  manifest = Describe({.step = -1});
  ExpectNames(ReadProgress(manifest).status(), absl::StatusCode::kDataLoss, {"step -1"});
  manifest = Describe({.best_loss = std::numeric_limits<double>::quiet_NaN()});
  ExpectNames(ReadProgress(manifest).status(), absl::StatusCode::kDataLoss, {"best_loss"});
  manifest = Describe({});
  (*manifest.mutable_trainer()->mutable_extra())["optimizer_updates"] = "many";
  ExpectNames(ReadProgress(manifest).status(), absl::StatusCode::kDataLoss,
              {"optimizer_updates", "many"});
  for (const char* loss : {"low", "nan", ""}) {
    manifest = Describe({});
    (*manifest.mutable_trainer()->mutable_extra())["best_training_loss"] = loss;
    ExpectNames(ReadProgress(manifest).status(), absl::StatusCode::kDataLoss,
                {"best_training_loss", loss});
  }
}

// A run that has loaded an optimizer, but not its step, has more updates than steps.
TEST(RunStateTest, UpdatesFromBeforeTheFirstStepComeBack) {
  const ckpt::Manifest manifest = Describe({.step = 7, .updates = 106, .earlier_updates = 100});
  ASSERT_OK_AND_ASSIGN(const Progress after, ReadProgress(manifest));
  EXPECT_EQ(after.updates, 106);
  EXPECT_EQ(after.earlier_updates, 100);
  for (const Progress& impossible : {Progress{.step = 7, .updates = 108, .earlier_updates = 100},
                                     Progress{.step = 7, .updates = 3, .earlier_updates = 4}}) {
    ExpectNames(ReadProgress(Describe(impossible)).status(), absl::StatusCode::kDataLoss,
                {"impossible trainer state"});
  }
}

TEST(RunStateTest, WhatChangesTheBitsIsSaid) {
  TrainConfig config;
  config.mutable_parallel()->set_numerics(Numerics::EXACT);
  config.mutable_parallel()->set_exact_tp_shards(2);
  config.mutable_training()->set_micro_batch_size(2);
  const NumericsFingerprint numerics = {.instruction_set = "avx512", .library = "oneDNN 2.6.3"};
  ckpt::Manifest manifest = DescribeRun(config, ModelConfig(), {}, {}, numerics);
  EXPECT_TRUE(DescribeChanges(manifest, config, numerics).empty());
  config.mutable_training()->set_micro_batch_size(4);
  EXPECT_TRUE(DescribeChanges(manifest, config, numerics).empty());
  config.mutable_training()->set_micro_batch_size(6);
  EXPECT_EQ(DescribeChanges(manifest, config, numerics),
            std::vector<std::string>{"saved with micro_batch_size 2, going on with 6: the bits of "
                                     "later losses differ from the saved run's"});
  config.mutable_parallel()->set_data_parallel_size(2);
  config.mutable_parallel()->set_numerics(Numerics::FAST);
  EXPECT_EQ(DescribeChanges(manifest, config, numerics),
            std::vector<std::string>{"resharded from single to dp2"});
  config.mutable_parallel()->set_data_parallel_size(1);
  config.mutable_parallel()->set_tensor_model_parallel_size(2);
  manifest = DescribeRun(config, ModelConfig(), {}, {}, numerics);
  EXPECT_OK(CheckSameTopology(manifest, config));
  config.mutable_parallel()->set_sequence_parallel(true);
  EXPECT_EQ(DescribeChanges(manifest, config, numerics),
            std::vector<std::string>{"changed from tp2 to tp2_sp"});
  ExpectNames(CheckSameTopology(manifest, config), absl::StatusCode::kFailedPrecondition,
              {"tp2 to tp2_sp"});
  manifest.clear_topology();
  EXPECT_OK(CheckSameTopology(manifest, config));
}

TEST(RunStateTest, OtherArithmeticThanTheSavedRunsIsSaid) {
  const NumericsFingerprint saved = {.instruction_set = "avx512",
                                     .library = "oneDNN 2.6.3 avx512_core",
                                     .products_hash = 1,
                                     .loops_hash = 2};
  NumericsFingerprint here = saved;
  here.instruction_set = "avx2";
  here.products_hash = 3;
  for (const bool exact : {false, true}) {
    TrainConfig config;
    config.mutable_parallel()->set_numerics(exact ? Numerics::EXACT : Numerics::FAST);
    ckpt::Manifest manifest = DescribeRun(config, ModelConfig(), {}, {}, saved);
    EXPECT_EQ(FromProto(manifest.trainer().numerics()), saved);
    EXPECT_TRUE(DescribeChanges(manifest, config, saved).empty());
    EXPECT_EQ(DescribeChanges(manifest, config, here),
              std::vector<std::string>{
                  std::string(exact ? "WARNING: " : "") +
                  "saved where numbers are computed otherwise (instruction set avx512, here avx2; "
                  "other bits of matrix products): the bits of later losses differ from the saved "
                  "run's"});
    // Checkpoints of older versions do not record it.
    manifest.mutable_trainer()->clear_numerics();
    EXPECT_TRUE(DescribeChanges(manifest, config, here).empty());
  }
}

TEST(RunStateTest, ChangedPrecisionAndNumericsAreNotTakenForAnotherPlace) {
  const NumericsFingerprint saved = {.products_hash = 1, .loops_hash = 2};
  const NumericsFingerprint now = {.library = "contract 1", .products_hash = 3, .loops_hash = 4};
  TrainConfig config;
  config.mutable_training()->set_bf16(false);
  config.mutable_parallel()->set_numerics(Numerics::EXACT);
  const ckpt::Manifest manifest = DescribeRun(config, ModelConfig(), {}, {}, saved);
  EXPECT_EQ(DescribeChanges(manifest, config, now).size(), 1);
  TrainConfig changed = config;
  changed.mutable_training()->set_bf16(true);
  EXPECT_TRUE(DescribeChanges(manifest, changed, now).empty());
  changed = config;
  changed.mutable_parallel()->set_numerics(Numerics::FAST);
  EXPECT_TRUE(DescribeChanges(manifest, changed, now).empty());
}

// --no-load-rng can only help where the progress itself is read in spite of them.
TEST(RunStateTest, ForeignRandomNumbersAreRefusedApartFromTheProgress) {
  ckpt::Manifest manifest = Describe({.step = 7, .updates = 7});
  EXPECT_OK(CheckSameRandomNumbers(manifest));
  manifest.mutable_trainer()->mutable_rng()->set_algorithm("mt19937");
  ExpectNames(CheckSameRandomNumbers(manifest), absl::StatusCode::kFailedPrecondition,
              {"mt19937", "philox4x32-10", "--no-load-rng"});
  EXPECT_OK(ReadProgress(manifest));
  manifest.mutable_trainer()->clear_rng();
  EXPECT_OK(CheckSameRandomNumbers(manifest));
}

TEST(RunStateTest, EveryDifferenceOfModelAndDataIsNamed) {
  const ckpt::Manifest manifest = Describe({});
  ModelConfig other;
  other.set_architecture(ModelConfig::GPT2);
  other.set_num_layers(3);
  other.set_num_attention_heads(8);
  ExpectNames(CheckSameModel(manifest, other), absl::StatusCode::kFailedPrecondition,
              {"num_layers: saved 2, wanted 3", "num_attention_heads: saved 4, wanted 8"});
  ckpt::Manifest later = manifest;
  later.mutable_model()->mutable_text()->append(" added_by_a_later_version: 1");
  ExpectNames(CheckSameModel(later, other), absl::StatusCode::kFailedPrecondition,
              {"settings that this version does not know", "num_layers: saved 2, wanted 3"});
  ExpectNames(CheckSameData(manifest, {.fingerprint = {.sampled = 6}, .sequence_length = 64}),
              absl::StatusCode::kFailedPrecondition,
              {"fingerprint 5, found 6", "seq_length: saved 32, wanted 64"});
  EXPECT_OK(CheckSameData(manifest, {.fingerprint = {.sampled = 5}, .sequence_length = 32}));
}

// Files of other programs have reals in fp32, and a factor that nothing uses computes nothing.
TEST(RunStateTest, ValuesThatComputeTheSameAreNoOtherModel) {
  ModelConfig model;
  model.set_size("llama3-tiny");
  model.set_use_rope_scaling(false);
  ASSERT_OK_AND_ASSIGN(const ModelConfig saved, ResolveModelConfig(model));
  model.set_norm_epsilon(1e-5F);
  model.set_rope_scaling_factor(32);
  ASSERT_OK_AND_ASSIGN(ModelConfig wanted, ResolveModelConfig(model));
  const ckpt::Manifest manifest = DescribeRun(TrainConfig(), saved, {}, {}, {});
  EXPECT_OK(CheckSameModel(manifest, wanted));
  wanted.set_use_rope_scaling(true);
  ExpectNames(CheckSameModel(manifest, wanted), absl::StatusCode::kFailedPrecondition,
              {"use_rope_scaling: saved false, wanted true", "rope_scaling_factor: saved 8"});
}

TEST(RunStateTest, WhatAnotherProgramDidNotKnowOfItsDataIsNotCompared) {
  ckpt::Manifest manifest;
  manifest.mutable_trainer()->mutable_data()->set_consumed_samples(16);
  const DataIdentity data = {.fingerprint = {.sampled = 6, .complete = 8}, .sequence_length = 64};
  EXPECT_FALSE(KnowsItsData(manifest));
  EXPECT_OK(CheckSameData(manifest, data));
  manifest.mutable_trainer()->mutable_data()->set_sequence_length(32);
  ExpectNames(CheckSameData(manifest, data), absl::StatusCode::kFailedPrecondition,
              {"16 samples", "seq_length: saved 32, wanted 64"});
  EXPECT_TRUE(KnowsItsData(Describe({})));
}

TEST(RunStateTest, CheckpointsWithOldFingerprintsAreComparedByTheOldRule) {
  const auto check = [](const ckpt::Manifest& manifest, const DataFingerprint& fingerprint) {
    return CheckSameData(manifest, {.fingerprint = fingerprint, .sequence_length = 32});
  };
  ckpt::Manifest manifest = Describe({});
  EXPECT_OK(check(manifest, {.sampled = 5, .complete = 7}));
  // The sampled fingerprint is the same, but other tokens differ.
  ExpectNames(check(manifest, {.sampled = 5, .complete = 8}), absl::StatusCode::kFailedPrecondition,
              {"fingerprint 7, found 8"});
  manifest.mutable_trainer()->mutable_data()->clear_complete_fingerprint();
  EXPECT_OK(check(manifest, {.sampled = 5, .complete = 8}));
  ExpectNames(check(manifest, {.sampled = 6, .complete = 8}), absl::StatusCode::kFailedPrecondition,
              {"fingerprint 5, found 6"});
}

}  // namespace
}  // namespace tessera
