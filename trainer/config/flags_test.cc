#include "trainer/config/flags.h"

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/testing.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

absl::Status Apply(const std::vector<std::string>& arguments, TrainConfig* config) {
  return ApplyFlags(arguments, config);
}

TrainConfig Parsed(const std::vector<std::string>& arguments) {
  TrainConfig config;
  EXPECT_OK(Apply(arguments, &config));
  return config;
}

// "" where the arguments are accepted.
std::string Error(const std::vector<std::string>& arguments) {
  TrainConfig config;
  return std::string(Apply(arguments, &config).message());
}

TEST(ApplyFlagsTest, EverySpelling) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--num-layers", "12"},
                                                    {"--num_layers", "12"},
                                                    {"--num-layers=12"},
                                                    {"--num_layers=12"},
                                                    {"--num-layers=3", "--num_layers", "12"}}) {
    EXPECT_EQ(Parsed(arguments).model().num_layers(), 12);
  }
}

TEST(ApplyFlagsTest, EveryTypeReachesItsGroup) {
  const TrainConfig config = Parsed({"--lr=3e-4", "--lr-decay-style", "Cosine", "--save",
                                     "/tmp/a=b", "--bf16", "--train-iters=7", "--prompt=--x",
                                     "--architecture=llama3", "--numerics=EXACT", "--seed", "1"});
  EXPECT_EQ(config.optimizer().lr(), 3e-4);
  EXPECT_EQ(config.optimizer().lr_decay_style(), LrDecayStyle::COSINE);
  EXPECT_EQ(config.checkpoint().save(), "/tmp/a=b");
  EXPECT_TRUE(config.training().bf16());
  EXPECT_EQ(config.training().train_iters(), 7);
  EXPECT_EQ(config.sampling().prompt(), "--x");
  EXPECT_EQ(config.model().architecture(), ModelConfig::LLAMA3);
  EXPECT_EQ(config.parallel().numerics(), Numerics::EXACT);
  EXPECT_EQ(config.training().seed(), 1);
  EXPECT_FALSE(config.training().has_micro_batch_size()) << "presence: not set";
}

TEST(ApplyFlagsTest, BooleansBareOrWithAValue) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--no-save-optim"},
                                                    {"--no_save_optim=true"},
                                                    {"--no-save-optim", "true"},
                                                    {"--no-save-optim=1"},
                                                    {"--no-save-optim", "--bf16"}}) {
    EXPECT_TRUE(Parsed(arguments).checkpoint().no_save_optim());
  }
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--no-save-optim=false"},
        {"--no-save-optim", "false"},
        {"--no-save-optim", "--no-save-optim=0"}}) {
    const TrainConfig config = Parsed(arguments);
    EXPECT_TRUE(config.checkpoint().has_no_save_optim());
    EXPECT_FALSE(config.checkpoint().no_save_optim());
  }
}

TEST(ApplyFlagsTest, FlagsGoOverWhatIsThere) {
  TrainConfig config;
  config.mutable_training()->set_train_iters(5);
  config.mutable_training()->set_bf16(true);
  config.mutable_optimizer()->set_lr(1);
  ASSERT_OK(Apply({"--train-iters=6", "--bf16=false"}, &config));
  EXPECT_EQ(config.training().train_iters(), 6);
  EXPECT_FALSE(config.training().bf16());
  EXPECT_EQ(config.optimizer().lr(), 1);
}

TEST(ApplyFlagsTest, AnUnknownFlagGetsTheNearestName) {
  EXPECT_EQ(Error({"--num-layer=3"}), "unknown flag --num-layer; did you mean --num-layers?");
  EXPECT_EQ(Error({"--micro-batchsize", "3"}),
            "unknown flag --micro-batchsize; did you mean --micro-batch-size?");
  EXPECT_EQ(Error({"--rl=3"}), "unknown flag --rl; did you mean --lr?");
  EXPECT_EQ(Error({"--confg=x"}), "unknown flag --confg; did you mean --config?");
  EXPECT_EQ(Error({"--hlep"}), "unknown flag --hlep; did you mean --help?");
  EXPECT_EQ(Error({"--frobnicate-the-gradients"}),
            "unknown flag --frobnicate-the-gradients; see --help");
  EXPECT_EQ(Error({"--="}), "unknown flag --; see --help");
}

TEST(ApplyFlagsTest, NamesOfOtherTrainers) {
  const TrainConfig config =
      Parsed({"--input_bin=a", "--input_val_bin=b", "--tokenizer_bin=c", "--batch_size=2",
              "--sequence_length=64", "--num_iteration=5", "--most-recent-k=3"});
  EXPECT_EQ(config.data().train_data_path(), "a");
  EXPECT_EQ(config.data().valid_data_path(), "b");
  EXPECT_EQ(config.data().tokenizer_model(), "c");
  EXPECT_EQ(config.training().micro_batch_size(), 2);
  EXPECT_EQ(config.training().seq_length(), 64);
  EXPECT_EQ(config.training().train_iters(), 5);
  EXPECT_EQ(config.checkpoint().max_checkpoint_keep(), 3);
  EXPECT_EQ(Parsed({"--save_total_limit=2"}).checkpoint().max_checkpoint_keep(), 2);
  EXPECT_EQ(Parsed({"--export_dtype=bfloat16"}).checkpoint().export_dtype(), ExportDtype::BFLOAT16);
  EXPECT_TRUE(Parsed({"--last_save_in_hf"}).checkpoint().last_save_in_hf());
  EXPECT_EQ(Error({"--pretrained-checkpoint=a"}),
            "unknown flag --pretrained-checkpoint; here it is --load with --finetune");
  EXPECT_EQ(Error({"--dist_ckpt_strictness=log_all"}),
            "unknown flag --dist_ckpt_strictness; here it is --allow-missing and "
            "--allow-unexpected");
}

TEST(ApplyFlagsTest, InfiniTrainsNamesBecomeOurs) {
  const auto resolved = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--size=gpt2-tiny", "--train-iters=0", "--seq-length=16"});
    return OrFail(ResolveConfig(Parsed(flags))).training();
  };
  for (const auto& [dtype, bf16] : {std::pair("float32", false), {"bfloat16", true}}) {
    const TrainingConfig training =
        resolved({absl::StrCat("--dtype=", dtype), "--batch_size=2", "--total_batch_size=64"});
    EXPECT_EQ(training.bf16(), bf16);
    EXPECT_EQ(training.global_batch_size(), 4);
    EXPECT_FALSE(training.has_dtype() || training.has_total_batch_size());
  }
  // Both may be given where they agree.
  resolved({"--dtype=bfloat16", "--bf16", "--total-batch-size=32", "--global-batch-size=2"});
}

TEST(ApplyFlagsTest, MegatronsShardingIsAZeroStage) {
  const auto stage = [](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--size=gpt2-tiny", "--train-iters=0",
                                      "--data-parallel-size=2"};
    flags.insert(flags.end(), more.begin(), more.end());
    return OrFail(ResolveConfig(Parsed(flags))).parallel().zero_stage();
  };
  EXPECT_EQ(stage({"--use-distributed-optimizer"}), 1);
  EXPECT_EQ(stage({"--use-distributed-optimizer", "--zero-stage=2"}), 2);
  EXPECT_EQ(stage({"--use-distributed-optimizer=false"}), 0);
  EXPECT_EQ(stage({"--data-parallel-sharding-strategy=no_shard"}), 0);
  EXPECT_EQ(stage({"--data-parallel-sharding-strategy", "optim"}), 1);
  EXPECT_EQ(stage({"--use-distributed-optimizer", "--data_parallel_sharding_strategy=optim_grads"}),
            2);
}

// Every name in the first column of the page's table, as a flag: it is accepted, or the error says
// what to use, which is there.
TEST(ApplyFlagsTest, TheTableOfOtherTrainersFlags) {
  std::set<std::string> known;
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    known.insert("--" + absl::StrReplaceAll(setting.name(), {{"_", "-"}}));
  }
  std::ifstream page("docs/train.md");
  std::string line;
  while (std::getline(page, line) && line != "| theirs | here |") {
  }
  std::set<std::string> elsewhere;
  while (std::getline(page, line) && absl::StartsWith(line, "|")) {
    const std::vector<std::string> columns = absl::StrSplit(line, '|');
    const std::vector<std::string> names = absl::StrSplit(columns[1], '`');
    for (size_t i = 1; i < names.size(); i += 2) {
      const std::string error = Error({"--" + names[i] + "=?"});
      if (!absl::StartsWith(error, "unknown flag ")) continue;
      EXPECT_TRUE(absl::StrContains(error, "; here it is ")) << error;
      elsewhere.insert(absl::StrReplaceAll(names[i], {{"-", "_"}}));
      const std::vector<std::string> words =
          absl::StrSplit(error.substr(error.find(';')), absl::ByAnyChar(" ,;:="));
      for (const std::string& word : words) {
        if (absl::StartsWith(word, "--")) EXPECT_TRUE(known.contains(word)) << error;
      }
    }
  }
  EXPECT_EQ(elsewhere.size(), 17);
}

TEST(ApplyFlagsTest, TwoNamesOfAFlagMayNotSayTwoThings) {
  EXPECT_EQ(Error({"--save-interval=5", "--save-interval=6", "--checkpoint_every=7"}),
            "--save-interval=6 and --checkpoint-every=7 are two names of one setting: give one");
  EXPECT_EQ(Parsed({"--save-interval=7", "--checkpoint-every=7"}).checkpoint().save_interval(), 7);
}

TEST(ApplyFlagsTest, AWrongValueIsNamedWithItsFlag) {
  EXPECT_EQ(Error({"--lr=abc"}), "--lr=abc: expected a number");
  EXPECT_EQ(Error({"--lr", "nan"}), "--lr=nan: expected a number");
  EXPECT_EQ(Error({"--lr=1e999"}), "--lr=1e999: expected a number");
  EXPECT_EQ(Error({"--lr="}), "--lr=: expected a number");
  EXPECT_EQ(Error({"--num_layers=1.5"}), "--num-layers=1.5: expected an integer");
  EXPECT_EQ(Error({"--num-layers=99999999999999999999"}),
            "--num-layers=99999999999999999999: expected an integer");
  EXPECT_EQ(Error({"--bf16=maybe"}), "--bf16=maybe: expected true|false");
  EXPECT_EQ(Error({"--lr-decay-style=cosin"}),
            "--lr-decay-style=cosin: expected constant|linear|cosine|wsd");
  // The zero value of proto3 cannot be requested.
  EXPECT_EQ(Error({"--architecture=ARCHITECTURE_UNSPECIFIED"}),
            "--architecture=ARCHITECTURE_UNSPECIFIED: expected gpt2|llama3|other");
}

TEST(ApplyFlagsTest, AMissingValueIsNoticed) {
  EXPECT_EQ(Error({"--lr"}), "--lr needs a value: a number");
  EXPECT_EQ(Error({"--lr", "--bf16"}), "--lr needs a value: a number");
  EXPECT_EQ(Error({"--save", "--bf16"}), "--save needs a value: text");
}

TEST(ApplyFlagsTest, OtherArgumentsAreRefused) {
  for (const std::string argument : {"lr=3", "-lr", "--", ""}) {
    EXPECT_EQ(Error({argument}), "unexpected argument \"" + argument + "\": flags begin with --");
  }
  EXPECT_EQ(Error({"--bf16", "yes"}), "unexpected argument \"yes\": flags begin with --");
}

// A flag is a field's name alone: two groups may not share one.
TEST(SchemaTest, NamesAreUniqueAndEveryFlagIsExplained) {
  std::set<std::string> seen = {"config", "help"};
  const auto* type = TrainConfig::descriptor();
  for (int g = 0; g < type->field_count(); ++g) {
    const auto* group = type->field(g)->message_type();
    ASSERT_NE(group, nullptr) << type->field(g)->name() << " is no group";
    for (int f = 0; f < group->field_count(); ++f) {
      EXPECT_TRUE(seen.insert(group->field(f)->name()).second) << group->field(f)->full_name();
    }
  }
  std::string help;
  ASSERT_OK(FlagHelp(TrainConfig::default_instance(), "", &help));
  for (const absl::string_view line : absl::StrSplit(help, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
    if (absl::StartsWith(line, "  --")) {
      EXPECT_NE(line.find("  ", 4), absl::string_view::npos) << "no text: " << line;
    }
  }
}

TEST(FlagHelpTest, OneGroup) {
  std::string help;
  ASSERT_OK(FlagHelp(TrainConfig::default_instance(), "output", &help));
  EXPECT_EQ(help.substr(0, 8), "output:\n");
  EXPECT_NE(help.find("  --log-interval N"), std::string::npos) << help;
  EXPECT_NE(help.find("steps between progress lines; metrics.jsonl has every step [1]\n"),
            std::string::npos)
      << help;
  EXPECT_EQ(help.find("--lr"), std::string::npos);
  const absl::Status status = FlagHelp(TrainConfig::default_instance(), "outputs", &help);
  EXPECT_EQ(status.message(),
            "--help=outputs: expected one of model, training, optimizer, parallel, checkpoint, "
            "data, sampling, output");
}

// The command line is a promise to users: changing it must change this file, too.
TEST(FrozenCommandLineTest, FlagsAndDefaultsAreThoseOfTheGoldenFile) {
  ASSERT_OK_AND_ASSIGN(const std::string golden,
                       ReadWholeFile("trainer/config/testdata/flags.golden"));
  const std::string actual =
      absl::StrJoin(FlagInventory(TrainConfig::default_instance()), "\n") + "\n";
  EXPECT_EQ(actual, golden) << "the command line changed; it is now:\n" << actual;
}

// Flags with Megatron-LM's names have its defaults, but for those that docs/train.md names.
TEST(FrozenCommandLineTest, DefaultsAreMegatrons) {
  // What is off or unset there: 0, false, none or what follows from other settings here.
  const std::set<std::string> off = {"async-save",
                                     "bf16",
                                     "check-weight-hash-across-dp-replicas-interval",
                                     "ckpt-step",
                                     "ddp-bucket-size",
                                     "exit-duration-in-mins",
                                     "exit-interval",
                                     "exit-on-missing-checkpoint",
                                     "exit-signal-handler",
                                     "ffn-hidden-size",
                                     "finetune",
                                     "global-batch-size",
                                     "load",
                                     "lr",
                                     "lr-decay-iters",
                                     "lr-warmup-iters",
                                     "lr-wsd-decay-iters",
                                     "max-position-embeddings",
                                     "min-lr",
                                     "no-load-optim",
                                     "no-load-rng",
                                     "no-save-optim",
                                     "no-save-rng",
                                     "non-persistent-save-interval",
                                     "num-attention-heads",
                                     "num-layers",
                                     "hidden-size",
                                     "override-opt-param-scheduler",
                                     "save",
                                     "save-interval",
                                     "save-retain-interval",
                                     "sequence-parallel",
                                     "tokenizer-model",
                                     "top-k",
                                     "train-data-path",
                                     "use-checkpoint-opt-param-scheduler",
                                     "use-distributed-optimizer",
                                     "use-rope-scaling",
                                     "valid-data-path",
                                     "vocab-size"};
  std::map<std::string, std::string> megatron = {{"adam-beta1", "0.9"},
                                                 {"adam-beta2", "0.999"},
                                                 {"adam-eps", "1e-8"},
                                                 {"attention-dropout", "0.1"},
                                                 {"clip-grad", "1"},
                                                 {"distributed-timeout-minutes", "10"},
                                                 {"eval-interval", "1000"},
                                                 {"eval-iters", "100"},
                                                 {"hidden-dropout", "0.1"},
                                                 {"init-method-std", "0.02"},
                                                 {"log-interval", "100"},
                                                 {"lr-decay-style", "linear"},
                                                 {"lr-wsd-decay-style", "exponential"},
                                                 {"make-vocab-size-divisible-by", "128"},
                                                 {"norm-epsilon", "1e-5"},
                                                 {"pipeline-model-parallel-size", "1"},
                                                 {"rotary-base", "10000"},
                                                 {"seed", "1234"},
                                                 {"temperature", "1"},
                                                 {"tensor-model-parallel-size", "1"},
                                                 {"weight-decay", "0.01"}};
  for (const std::string& flag : off) megatron[flag] = "";
  const std::set<std::string> as_off = {"0",      "false",  "by",          "required",
                                        "newest", "GPT-2:", "train_iters", "micro_batch_size"};
  std::set<std::string> found, other;
  for (const std::string& line : FlagInventory(TrainConfig::default_instance())) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" ,"));
    const auto flag = megatron.find(words[1].substr(2));
    if (flag == megatron.end()) continue;
    found.insert(flag->first);
    const std::string value = words.size() > 4 && words[3] == "=" ? words[4] : "";
    const bool is_off = value.empty() || as_off.contains(value) || flag->first == "save";
    if (flag->second.empty() ? !is_off : value != flag->second) other.insert(flag->first);
  }
  EXPECT_EQ(found.size(), megatron.size());
  ASSERT_OK_AND_ASSIGN(std::string text, ReadWholeFile("docs/train.md"));
  text = text.substr(text.find("## Flags of other trainers"));
  text = text.substr(0, text.find("If a flag of another trainer"));
  std::set<std::string> named;
  const std::vector<std::string> quoted = absl::StrSplit(text, '`');
  for (size_t i = 1; i < quoted.size(); i += 2) named.insert(quoted[i]);
  EXPECT_EQ(other, named);
}

// A default is a value of its flag, or words where it depends on other flags.
TEST(SchemaTest, DefaultsAreAcceptedAsValues) {
  int values = 0;
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    const std::string text = DefaultText(*setting.field);
    if (text.empty() || (setting.field->options().HasExtension(default_text) &&
                         (text.find(' ') != text.npos || !std::isdigit(text[0])))) {
      continue;
    }
    EXPECT_EQ(Error({"--" + setting.name() + "=" + text}), "");
    ++values;
  }
  EXPECT_GT(values, 60);
}

TEST(FieldTextTest, ReadsBackToTheSameBits) {
  OptimizerConfig config;
  for (const double value : {1e-8, 3e-4, 0.1, 1.0 / 3.0, 123456789.0, 0.0}) {
    config.set_lr(value);
    const std::string text = FieldText(config, *config.GetDescriptor()->FindFieldByName("lr"));
    EXPECT_EQ(Parsed({"--lr=" + text}).optimizer().lr(), value) << text;
  }
}

}  // namespace
}  // namespace tessera
