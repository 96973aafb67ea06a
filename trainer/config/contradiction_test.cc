// Settings that contradict each other are answered by one line, which names them. What each setting
// needs besides is in testdata/flags.golden.

#include <fstream>
#include <string>
#include <vector>

#include "base/flag_options.pb.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "trainer/config/config.h"
#include "trainer/config/flags.h"

namespace tessera {
namespace {

struct Contradiction {
  std::vector<std::string> flags;  // of a run that is complete and consistent without them
  std::string message;
};

const Contradiction kContradictions[] = {
    // Batches.
    {{"--micro-batch-size=0"}, "micro_batch_size=0: must be at least 1"},
    {{"--global-batch-size=0"}, "global_batch_size=0: must be at least 1"},
    {{"--seq-length=0"}, "seq_length=0: must be at least 1"},
    {{"--micro-batch-size=4", "--global-batch-size=6"},
     "global_batch_size=6 is not divisible by micro_batch_size=4 * data_parallel_size=1 "
     "(4 and 8 are)"},
    {{"--seq-length=65"}, "seq_length=65 is more than max_position_embeddings=64"},
    {{"--train-iters=-1"}, "train_iters=-1: must not be negative"},
    {{"--seed=-1"}, "seed=-1: must not be negative"},
    {{"--threads=1025"}, "threads=1025: must be at most 1024"},
    {{"--save=s", "--async-save", "--async-save-copy-gb-per-second=1.5"},
     "async_save_copy_gb_per_second is set but device=cpu"},
    {{"--device=cuda", "--save=s", "--async-save-copy-gb-per-second=1"},
     "async_save_copy_gb_per_second is set but async_save is not"},
    {{"--save=s", "--max-failed-saves=5"}, "max_failed_saves is set but async_save is not"},
    {{"--log-interval=0"}, "log_interval=0: must be at least 1"},
    {{"--run-dir=r", "--trace-steps=all"},
     "trace_steps=all: expected a step or a range of steps, as 100-103"},
    {{"--run-dir=r", "--trace-steps=3-"},
     "trace_steps=3-: expected a step or a range of steps, as 100-103"},
    {{"--run-dir=r", "--trace-steps=0-3"}, "trace_steps=0-3: steps are counted from 1"},
    {{"--run-dir=r", "--trace-steps=-3"}, "trace_steps=-3: steps are counted from 1"},
    {{"--run-dir=r", "--trace-steps=7-3"}, "trace_steps=7-3 ends before it begins"},
    {{"--run-dir=r", "--trace-steps=101-103"},
     "trace_steps=101-103 begins after the last step, train_iters=100"},
    {{"--train-data-path="}, "train_iters=100 but train_data_path is not set"},
    {{"--eval-interval=5", "--valid-data-path=v", "--eval-iters=0"},
     "eval_interval=5 but eval_iters=0"},
    {{"--global-batch-size=4611686018427387904"},
     "global_batch_size=4611686018427387904 * seq_length=64: must be at most 1099511627776 "
     "tokens"},
    {{"--train-iters=4611686018427387904"},
     "train_iters=4611686018427387904: must be at most 72057594037927936 with global batches of 64 "
     "tokens"},
    {{"--eval-iters=4611686018427387904"},
     "eval_iters=4611686018427387904: must be at most 17179869184 with global batches of 64 "
     "tokens"},
    // Optimizer.
    {{"--lr=-1"}, "lr=-1: must be finite in fp32, and not negative"},
    {{"--lr=1e300"}, "lr=1e+300: must be finite in fp32, and not negative"},
    {{"--lr=1e-4", "--min-lr=1e-3"}, "min_lr=0.001 is more than lr=0.0001"},
    {{"--lr-warmup-iters=100"}, "lr_warmup_iters=100 must be less than lr_decay_iters=100"},
    {{"--lr-decay-iters=0"}, "lr_decay_iters=0: must be at least 1"},
    {{"--lr-decay-style=wsd"}, "lr_decay_style=wsd but lr_wsd_decay_iters is not set"},
    {{"--lr-decay-style=wsd", "--lr-wsd-decay-iters=91", "--lr-warmup-iters=10"},
     "lr_wsd_decay_iters=91 is more than lr_decay_iters=100 - lr_warmup_iters=10"},
    {{"--adam-beta1=1"}, "adam_beta1=1: must be less than 1"},
    {{"--adam-beta2=1.5"}, "adam_beta2=1.5: must be less than 1"},
    {{"--adam-eps=0"}, "adam_eps=0: must be at least 1.2e-38"},
    {{"--adam-eps=1e-39"}, "adam_eps=1e-39: must be at least 1.2e-38"},
    {{"--adam-eps=1e39"}, "adam_eps=1e+39: must be finite in fp32, and not negative"},
    {{"--weight-decay=-0.1"}, "weight_decay=-0.1: must be finite in fp32, and not negative"},
    {{"--clip-grad=-1"}, "clip_grad=-1: must be finite in fp32, and not negative"},
    // Parallel.
    {{"--data-parallel-size=0"}, "data_parallel_size=0: must be at least 1"},
    {{"--pipeline-model-parallel-size=0"}, "pipeline_model_parallel_size=0: must be at least 1"},
    {{"--tensor-model-parallel-size=1048577"},
     "tensor_model_parallel_size=1048577: must be at most 1048576"},
    {{"--data-parallel-size=1048576", "--tensor-model-parallel-size=2"},
     "data_parallel_size=1048576 * tensor_model_parallel_size=2 * "
     "pipeline_model_parallel_size=1: must be at most 1048576 processes"},
    {{"--zero-stage=3"}, "zero_stage=3: expected 0, 1 or 2"},
    {{"--exact-tp-shards=2"}, "exact_tp_shards is set but numerics=fast"},
    {{"--numerics=exact", "--device=cuda", "--bf16"},
     "numerics=exact and bf16=true, but device=cuda: tensor cores do not add in the order of "
     "processors (docs/exact.md), so that EXACT on GPUs needs bf16=false"},
    {{"--ddp-bucket-size=0"}, "ddp_bucket_size=0: must be at least 1"},
    {{"--distributed-timeout-minutes=0"}, "distributed_timeout_minutes=0: must be more than 0"},
    {{"--data-parallel-size=2", "--global-batch-size=3"},
     "global_batch_size=3 is not divisible by micro_batch_size=1 * data_parallel_size=2 "
     "(2 and 4 are)"},
    {{"--data-parallel-size=4", "--global-batch-size=3"},
     "global_batch_size=3 is not divisible by micro_batch_size=1 * data_parallel_size=4 (4 is)"},
    {{"--micro-batch-size=9223372036854775807", "--global-batch-size=9223372036854775806"},
     "global_batch_size=9223372036854775806 is not divisible by "
     "micro_batch_size=9223372036854775807 * data_parallel_size=1"},
    {{"--data-parallel-sharding-strategy=optim_grads_params"},
     "data_parallel_sharding_strategy=optim_grads_params: expected no_shard, optim or optim_grads"},
    {{"--use-distributed-optimizer=false", "--zero-stage=2"},
     "use_distributed_optimizer=false and zero_stage=2 exclude each other"},
    {{"--use-distributed-optimizer", "--topology=dp2"},
     "use_distributed_optimizer=true and topology=dp2 (ZeRO stage 0) exclude each other"},
    {{"--data-parallel-sharding-strategy=optim", "--topology=dp2_zero2"},
     "data_parallel_sharding_strategy=optim and topology=dp2_zero2 (ZeRO stage 2) exclude each "
     "other"},
    {{"--data-parallel-sharding-strategy=optim", "--zero-stage=2"},
     "data_parallel_sharding_strategy=optim and zero_stage=2 exclude each other"},
    {{"--data-parallel-sharding-strategy=optim", "--use-distributed-optimizer=false"},
     "use_distributed_optimizer=false and data_parallel_sharding_strategy=optim exclude each "
     "other"},
    {{"--dtype=float16"}, "dtype=float16: expected float32 or bfloat16"},
    {{"--dtype=float32", "--bf16"}, "dtype=float32 and bf16=true exclude each other"},
    {{"--total-batch-size=64"}, "total_batch_size is set but seq_length is not"},
    {{"--seq-length=48", "--total-batch-size=64"},
     "total_batch_size=64 is not a multiple of seq_length=48"},
    {{"--seq-length=16", "--total-batch-size=64", "--global-batch-size=2"},
     "total_batch_size=64 and global_batch_size=2 exclude each other"},
    // Checkpoint.
    {{"--save-interval=5"}, "save_interval is set but save is not"},
    {{"--save=d", "--auto-resume=false", "--ckpt-step=5"}, "ckpt_step is set but load is not"},
    {{"--save=d", "--save-optimizer-state", "--no-save-optim"},
     "save_optimizer_state=true and no_save_optim=true exclude each other"},
    {{"--save=d", "--save-optimizer-state=false", "--no-save-optim=false"},
     "save_optimizer_state=false and no_save_optim=false exclude each other"},
    {{"--save=d", "--save-interval=-5"}, "save_interval=-5: must not be negative"},
    {{"--save=d", "--save-interval=5", "--max-checkpoint-keep=4294967297"},
     "max_checkpoint_keep=4294967297: must be at most 2147483647 (0: all)"},
    {{"--ckpt-step=5"}, "ckpt_step is set but load is not"},
    {{"--load=d", "--use-checkpoint-opt-param-scheduler", "--override-opt-param-scheduler"},
     "use_checkpoint_opt_param_scheduler and override_opt_param_scheduler exclude each other"},
    {{"--load=d", "--load-content=model,optimizer", "--use-checkpoint-opt-param-scheduler"},
     "use_checkpoint_opt_param_scheduler is set but load_content=model,optimizer leaves the "
     "scheduler out"},
    {{"--load=d", "--load-content=all", "--load-content=optimizer", "--no-load-optim"},
     "load_content=optimizer and no_load_optim leave nothing to load"},
    {{"--load=d", "--load-content=rng", "--no-load-rng"},
     "load_content=rng and no_load_rng leave nothing to load"},
    {{"--load=d", "--parameter-to-structured-name=f", "--load-format=hf"},
     "parameter_to_structured_name=f and load_format=hf exclude each other: it is for the "
     "format paddle"},
    {{"--load=d", "--consumed-samples=8", "--finetune"},
     "consumed_samples is set but finetune leaves the position in the data out"},
    {{"--load=d", "--consumed-samples=8", "--load-content=model,scheduler"},
     "consumed_samples is set but load_content=model,scheduler leaves the position in the data "
     "out"},
    {{"--load=d", "--ckpt-type=hf", "--load-format=torch"},
     "load_format=torch and ckpt_type=hf exclude each other"},
    {{"--load=d", "--ckpt-type=llmc", "--load-content=model,rng"},
     "load_content=model,rng: an llm.c model file holds the model alone"},
    {{"--load=d", "--llmc-filepath=f", "--finetune"},
     "llmc_filepath and finetune exclude each other: the weights come from load"},
    {{"--load=d", "--llmc-filepath=f", "--load-content=model,optimizer"},
     "llmc_filepath and load_content=model,optimizer exclude each other: the weights come from "
     "load"},
    {{"--save=d", "--finetune"}, "finetune is set but load is not"},
    {{"--save=d", "--load-content=model"},
     "load_content=model begins at step 0 and needs load, which is not set"},
    {{"--save=d", "--save-top-k=2"}, "save_top_k is set but valid_data_path is not"},
    {{"--save=d", "--save-top-k=2", "--valid-data-path=v", "--eval-interval=0"},
     "save_top_k=2 but eval_interval=0"},
    {{"--save=d", "--save-top-k=2", "--valid-data-path=v", "--save-interval=30",
      "--eval-interval=45", "--train-iters=80"},
     "save_top_k=2 but no step up to train_iters=80 is a multiple of both save_interval=30 and "
     "eval_interval=45"},
    {{"--async-save", "--save-top-k=2", "--lr=1e-4", "--min-lr=1e-3"},
     "3 problems with the settings:\n"
     "  async_save is set but save is not\n"
     "  save_top_k is set but save is not\n"
     "  min_lr=0.001 is more than lr=0.0001"},
    // Topologies.
    {{"--topology=tp2", "--sequence-parallel"},
     "sequence_parallel=true, but topology=tp2 has false; tp2_sp has true"},
    {{"--data-parallel-size=4", "--topology=dp2_zero2"},
     "data_parallel_size=4, but topology=dp2_zero2 has 2; dp4_zero2 has 4"},
    // No topology has these sizes, so that no name is suggested.
    {{"--topology=single", "--sequence-parallel"},
     "sequence_parallel=true, but topology=single has false"},
    {{"--topology=dp2_tp2_sp", "--tensor-model-parallel-size=1"},
     "tensor_model_parallel_size=1, but topology=dp2_tp2_sp has 2"},
    {{"--topology=dp2", "--data-parallel-size=0"}, "data_parallel_size=0, but topology=dp2 has 2"},
    {{"--topology=dp2", "--data-parallel-size=99999999999"},
     "data_parallel_size=99999999999, but topology=dp2 has 2"},
    // Sampling.
    {{"--top-k=257"}, "top_k=257 is more than vocab_size=256"},
    {{"--exact-products", "--device=cuda", "--bf16"},
     "exact_products is set but bf16=true: it is about products of fp32 numbers"},
    {{"--product-table=t", "--device=cuda", "--numerics=exact"},
     "product_table is set but numerics=exact: EXACT products have one algorithm"},
    {{"--product-table=t", "--device=cuda", "--exact-products"},
     "product_table is set but exact_products, too: those have one algorithm"},
    {{"--temperature=-1"}, "temperature=-1: must be finite in fp32, and not negative"},
};

absl::StatusOr<TrainConfig> ResolveFlags(const std::vector<std::string>& flags,
                                         bool with_origins = false) {
  std::vector<const char*> argv = {"train", "--size=gpt2-tiny", "--train-iters=100",
                                   "--train-data-path=train_*.bin"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  TESSERA_ASSIGN_OR_RETURN(const CommandLine line,
                           ParseCommandLine(static_cast<int>(argv.size()), argv.data()));
  return ResolveConfig(line.config, {.origins = with_origins ? line.origins : Origins()});
}

TEST(ContradictionTest, IsAnsweredByOneLineThatNamesIt) {
  for (const Contradiction& each : kContradictions) {
    EXPECT_EQ(ResolveFlags(each.flags).status(), absl::InvalidArgumentError(each.message));
  }
}

// Returns a value of the setting's type that is not its default.
std::string AnotherValue(const Setting& setting) {
  using google::protobuf::FieldDescriptor;
  const FieldDescriptor& field = *setting.field;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return field.default_value_bool() ? "false" : "true";
    case FieldDescriptor::CPPTYPE_ENUM:
      return field.enum_type()->value(field.default_value_enum()->index() + 1)->name();
    default:
      return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ? "x" : "7";
  }
}

// A setting that declares what it needs is accepted only where it has an effect.
TEST(ContradictionTest, ASettingWithoutAnEffectIsRefused) {
  int refused = 0;
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    if (!setting.field->options().HasExtension(needs)) continue;
    const std::string flag = "--" + setting.name() + "=" + AnotherValue(setting);
    const std::string message(
        ResolveFlags({flag, "--lr-decay-style=constant"}, true).status().message());
    EXPECT_NE(message.find(setting.name() + " is set but "), message.npos) << flag << message;
    ++refused;
  }
  EXPECT_GE(refused, 58);
}

// Runs have recorded a schedule's settings without an effect, which compare with those of resumes.
TEST(ContradictionTest, SettingsOfAFileMayWaitForOthers) {
  const std::string path = testing::TempDir() + "/waiting.textproto", file = "--config=" + path;
  std::ofstream(path) << "training { eval_interval: 5 eval_iters: 3 }\n"
                         "checkpoint { load: \"s3://b/p\" s3_endpoint: \"h\" }\n"
                         "optimizer { min_lr: 1e-5 lr_wsd_decay_iters: 9 }";
  const std::vector<std::string> flags = {file, "--eval-interval=0", "--load=/local/copy",
                                          "--lr-decay-style=constant"};
  ASSERT_OK_AND_ASSIGN(const TrainConfig config, ResolveFlags(flags, true));
  EXPECT_EQ(config.training().eval_iters(), 3);
  EXPECT_EQ(config.checkpoint().s3_endpoint(), "h");
  EXPECT_EQ(config.optimizer().min_lr(), 1e-5);
  EXPECT_EQ(config.optimizer().lr_wsd_decay_iters(), 9);
  const auto with = [&](const std::string& flag) {
    return ResolveFlags({file, "--eval-interval=0", "--lr-decay-style=constant", flag}, true)
        .status();
  };
  EXPECT_OK(with("--s3-endpoint=h"));
  EXPECT_EQ(with("--min-lr=1e-4"),
            absl::InvalidArgumentError("min_lr is set but lr_decay_style=constant "
                                       "(--lr-decay-style=constant, --min-lr=1e-4)"));
}

// A flag's topology replaces the sizes of the file.
TEST(ContradictionTest, TheSuggestedTopologyHasNoSizeOfTheFile) {
  const std::string path = testing::TempDir() + "/sizes.textproto";
  std::ofstream(path) << "parallel { data_parallel_size: 8 pipeline_model_parallel_size: 2 }";
  EXPECT_EQ(ResolveFlags(
                {"--config=" + path, "--topology=dp2_tp2", "--tensor-model-parallel-size=4"}, true)
                .status(),
            absl::InvalidArgumentError("tensor_model_parallel_size=4, but topology=dp2_tp2 has 2; "
                                       "dp2_tp4 has 4 (--tensor-model-parallel-size=4, "
                                       "--topology=dp2_tp2)"));
}

TEST(ContradictionTest, TheBestCheckpointsAreOfStepsThatAreSavedAndEvaluated) {
  for (const std::vector<std::string>& intervals : std::vector<std::vector<std::string>>{
           {"--save-interval=30", "--eval-interval=45"},
           {"--save-interval=10", "--eval-interval=30"},
           {"--save-interval=100"},  // the last step alone
           {"--save-interval=30", "--eval-interval=50", "--train-iters=100"},
           {"--save-interval=30", "--eval-interval=50", "--train-iters=80", "--exit-interval=50"},
           {"--save-interval=10", "--save-interval-minutes=1"},
           {"--save-interval=10", "--save-continuously"}}) {
    std::vector<std::string> flags = {"--save=d", "--save-top-k=2", "--valid-data-path=v"};
    flags.insert(flags.end(), intervals.begin(), intervals.end());
    EXPECT_OK(ResolveFlags(flags));
  }
}

}  // namespace
}  // namespace tessera
