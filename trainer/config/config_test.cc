#include "trainer/config/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/flag_options.pb.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "models/model_config.h"
#include "tests/worlds/power/power_loss.h"
#include "trainer/config/flags.h"

namespace tessera {
namespace {

using ::google::protobuf::util::MessageDifferencer;

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

absl::StatusOr<CommandLine> Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"train"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data());
}

// A complete and consistent run, plus `more`.
absl::StatusOr<TrainConfig> Resolve(const std::vector<std::string>& more, int processes = 1) {
  std::vector<std::string> arguments = {"--size=gpt2-tiny", "--train-iters=100",
                                        "--train-data-path=train_*.bin"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  TESSERA_ASSIGN_OR_RETURN(CommandLine line, Parse(arguments));
  return ResolveConfig(line.config, {.processes = processes});
}

TrainConfig Resolved(const std::vector<std::string>& more) { return OrFail(Resolve(more)); }

TEST(ParseCommandLineTest, FlagsOverrideTheFileWhereverTheyStand) {
  const std::string path =
      WriteFile("base.textproto", "training { train_iters: 10 micro_batch_size: 4 }");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--config", path, "--train-iters=20"},
        {"--train-iters=20", "--config=" + path}}) {
    ASSERT_OK_AND_ASSIGN(const CommandLine line, Parse(arguments));
    EXPECT_EQ(line.config.training().train_iters(), 20);
    EXPECT_EQ(line.config.training().micro_batch_size(), 4);
    EXPECT_EQ(line.help, "");
  }
}

TEST(ParseCommandLineTest, ConfigWantsOneFile) {
  EXPECT_EQ(Parse({"--config"}).status().message(), "--config needs a value: a file");
  EXPECT_EQ(Parse({"--config="}).status().message(), "--config needs a value: a file");
  EXPECT_EQ(Parse({"--config=a", "--config=b"}).status().message(), "--config is given twice");
}

TEST(ParseCommandLineTest, Help) {
  for (const std::string flag : {"--help", "-h"}) {
    const absl::StatusOr<CommandLine> line = Parse({"--lr=abc", flag});
    ASSERT_OK(line) << "help is given even where other flags are wrong";
    for (const char* text : {"--config FILE", "model:\n", "output:\n", "--num-layers N"}) {
      EXPECT_NE(line->help.find(text), std::string::npos) << text;
    }
  }
  EXPECT_EQ(Parse({"--help=data"})->help.substr(0, 6), "data:\n");
  EXPECT_FALSE(Parse({"--help=nothing"}).ok());
}

TEST(ResolveConfigTest, FillsInDefaultsThatDependOnOthers) {
  const TrainConfig config = Resolved({"--micro-batch-size=4"});
  EXPECT_EQ(config.training().global_batch_size(), 4);
  EXPECT_EQ(config.training().seq_length(), config.model().max_position_embeddings());
  EXPECT_EQ(config.training().eval_interval(), 0);
  EXPECT_EQ(config.optimizer().lr_decay_iters(), 100);
  EXPECT_EQ(Resolved({"--valid-data-path=v.bin"}).training().eval_interval(), 1000);
  EXPECT_EQ(Resolved({"--size=llama3-8b"}).training().seq_length(), 1024);
  EXPECT_FALSE(config.checkpoint().has_ckpt_step()) << "the newest";
}

TEST(ResolveConfigTest, SavesInTheRunFolderUnlessAnotherIsNamed) {
  const auto save = [](const std::vector<std::string>& flags) {
    return Resolved(flags).checkpoint();
  };
  EXPECT_EQ(save({"--run-dir=r", "--save-interval=7"}).save(), "r/checkpoints");
  EXPECT_EQ(save({"--run-dir=r", "--save-interval=7", "--save=d"}).save(), "d");
  EXPECT_EQ(save({"--run-dir=r"}).save(), "");
  // Rolling checkpoints twice as often as permanent ones, unless told otherwise.
  EXPECT_EQ(save({"--run-dir=r", "--save-interval=7"}).non_persistent_save_interval(), 3);
  EXPECT_EQ(save({"--save=d", "--checkpoint-every=8"}).non_persistent_save_interval(), 4);
  EXPECT_EQ(save({"--save=d", "--save-interval=8", "--oss-snapshot-freq=0"})
                .non_persistent_save_interval(),
            0);
  EXPECT_EQ(save({"--save-ckpt-folder=d", "--save-interval=8", "--keep-latest-k=3"})
                .max_checkpoint_keep(),
            3);
}

TEST(ResolveConfigTest, WritesEveryDeclaredDefaultOut) {
  const TrainConfig config = Resolved({});
  EXPECT_TRUE(config.training().has_seed());
  EXPECT_TRUE(config.optimizer().has_lr_decay_style());
  EXPECT_TRUE(config.checkpoint().has_load());
  EXPECT_TRUE(config.parallel().has_numerics());
  EXPECT_TRUE(config.sampling().has_temperature());
}

TEST(ResolveConfigTest, IsIdempotent) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{},
                                               {"--valid-data-path=v.bin"},
                                               {"--lr-decay-style=wsd", "--lr-wsd-decay-iters=10"},
                                               {"--size=llama3-tiny"},
                                               {"--load=d", "--ckpt-step=3"}}) {
    const TrainConfig once = Resolved(more);
    ASSERT_OK_AND_ASSIGN(const TrainConfig twice, ResolveConfig(once));
    EXPECT_TRUE(MessageDifferencer::Equals(once, twice));
  }
}

TEST(ConfigTextTest, ReadsBackToTheSameConfig) {
  const TrainConfig config =
      Resolved({"--lr=0.1", "--min-lr=0.033333333333333333", "--adam-eps=1e-15", "--bf16",
                "--lr-decay-style=cosine", "--save=a \"b\"\n", "--save-interval=7"});
  ASSERT_OK_AND_ASSIGN(const TrainConfig back, ParseConfig(ConfigText(config), "text"));
  EXPECT_TRUE(MessageDifferencer::Equals(config, back));
  EXPECT_EQ(back.optimizer().min_lr(), 0.033333333333333333);
}

TEST(WriteConfigTest, MakesTheFolderAndReplacesTheFile) {
  const std::string run_dir = testing::TempDir() + "/runs/a/b";
  ASSERT_OK(WriteConfig(Resolved({"--seed=1"}), run_dir));
  const TrainConfig config = Resolved({"--seed=2"});
  ASSERT_OK(WriteConfig(config, run_dir));
  ASSERT_OK_AND_ASSIGN(const TrainConfig back, LoadConfig(run_dir + "/config.textproto"));
  EXPECT_TRUE(MessageDifferencer::Equals(config, back));
}

TEST(WriteConfigTest, SurvivesALossOfPowerAndNeedsEachSync) {
  PowerLossScenario scenario;
  scenario.run = [](const std::string& root) {
    return WriteConfig(Resolved({"--seed=2"}), root + "/runs/a");
  };
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    const auto at = image.find("runs/a/config.textproto");
    if (at == image.end()) return finished ? "the file is gone" : "";
    return at->second == ConfigText(Resolved({"--seed=2"})) ? "" : "the file is damaged";
  };
  std::vector<std::string> syncs;
  EXPECT_EQ(CheckEverySync(scenario, testing::TempDir() + "/power_loss", &syncs), "");
  EXPECT_EQ(syncs, std::vector<std::string>({"", "runs", "runs/a", "runs/a/config.textproto.tmp"}));
}

TEST(WriteConfigTest, AFileInTheWayIsNamed) {
  const std::string path = WriteFile("in_the_way", "x");
  const absl::Status status = WriteConfig(Resolved({}), path + "/run");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 8), "run_dir=") << status;
}

TEST(ConfigDifferencesTest, ShowsWhatDepartsFromTheDefaults) {
  EXPECT_EQ(ConfigDifferences(Resolved({"--num-layers=3", "--lr=1e-3", "--prompt=Once upon",
                                        "--num-tokens-to-generate=8", "--tokenizer-model=t",
                                        "--micro-batch-size=1", "--bf16"})),
            "model: size=gpt2-tiny num_layers=3\n"
            "training: global_batch_size=1 seq_length=64 train_iters=100 bf16=true\n"
            "optimizer: lr=0.001 lr_decay_iters=100\n"
            "data: train_data_path=train_*.bin tokenizer_model=t\n"
            "sampling: prompt=\"Once upon\" num_tokens_to_generate=8\n");
}

TEST(ConfigDifferencesTest, AModelWithoutANameIsItsExtents) {
  const std::string text = ConfigDifferences(
      Resolved({"--size=", "--architecture=gpt2", "--num-layers=3", "--hidden-size=8",
                "--num-attention-heads=2", "--max-position-embeddings=16", "--vocab-size=32",
                "--hidden-dropout=0.1"}));
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "model: architecture=gpt2 num_layers=3 hidden_size=8 num_attention_heads=2 "
            "max_position_embeddings=16 vocab_size=32 hidden_dropout=0.1");
}

// With the text of a config file, and flags.
absl::StatusOr<TrainConfig> ResolveFile(const std::string& text,
                                        const std::vector<std::string>& flags) {
  const std::string file = WriteFile(
      "settings.textproto", "model { size: \"gpt2-tiny\" }\ntraining { train_iters: 10 }\n" + text);
  std::vector<std::string> arguments = {"--config=" + file, "--train-data-path=t"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  TESSERA_ASSIGN_OR_RETURN(const CommandLine line, Parse(arguments));
  return ResolveConfig(line.config, {.origins = line.origins});
}

TEST(ResolveConfigTest, WhatAFlagSwitchesOffTakesItsDependentsAlong) {
  constexpr char kSaves[] =
      "output { run_dir: \"r\" }\n"
      "checkpoint { save_interval: 5 async_save: true async_save_memory: 7 max_checkpoint_keep: 2 "
      "async_upload: true async_upload_tmp_folder: \"u\" replicate_to_peers: true }\n";
  ASSERT_OK_AND_ASSIGN(const TrainConfig no_interval, ResolveFile(kSaves, {"--save-interval=0"}));
  ASSERT_OK_AND_ASSIGN(const TrainConfig no_saves,
                       ResolveFile(kSaves, {"--enable-save-ckpt=false"}));
  for (const TrainConfig& config : {no_interval, no_saves}) {
    EXPECT_FALSE(config.checkpoint().async_save());
    EXPECT_FALSE(config.checkpoint().async_upload());
    EXPECT_EQ(config.checkpoint().async_save_memory(), 0);
    EXPECT_EQ(config.checkpoint().max_checkpoint_keep(), 0);
    EXPECT_FALSE(config.checkpoint().replicate_to_peers());
  }
  // The run is resumed as usual.
  EXPECT_EQ(no_saves.checkpoint().save(), "r/checkpoints");
  EXPECT_OK(ResolveFile(kSaves, {"--run-dir=", "--trace-steps="}));
  ASSERT_OK_AND_ASSIGN(
      const TrainConfig fast,
      ResolveFile("parallel { numerics: EXACT exact_tp_shards: 2 }", {"--numerics=fast"}));
  EXPECT_EQ(fast.parallel().exact_tp_shards(), 1);
  ASSERT_OK_AND_ASSIGN(const TrainConfig no_text,
                       ResolveFile("data { tokenizer_model: \"k\" valid_data_path: \"v\" } "
                                   "sampling { prompt: \"p\" num_tokens_to_generate: 3 }",
                                   {"--tokenizer-model=", "--valid-data-path="}));
  EXPECT_EQ(no_text.sampling().prompt(), "");
  EXPECT_EQ(no_text.training().eval_interval(), 0);
  // In one place, enable_save_ckpt does so, too.
  EXPECT_OK(ResolveFile("checkpoint { enable_save_ckpt: false async_save: true }", {}));
  // One setting of those that suffice is switched off.
  ASSERT_OK_AND_ASSIGN(const TrainConfig afresh,
                       ResolveFile("checkpoint { save: \"s\" ckpt_step: 5 verify_load: true }",
                                   {"--auto-resume=false"}));
  EXPECT_FALSE(afresh.checkpoint().has_ckpt_step());
  EXPECT_FALSE(afresh.checkpoint().verify_load());
  EXPECT_OK(ResolveFile("checkpoint { save: \"s\" last_save_in_hf: true export_dtype: FLOAT32 }",
                        {"--enable-save-ckpt=false"}));
}

TEST(ResolveConfigTest, AnIntervalOf0SavesTheLastStepByItsOwnSettingAlone) {
  const auto saves_last_step = [](const std::vector<std::string>& flags) {
    const auto config = ResolveFile("checkpoint { save: \"s\" }", flags);
    EXPECT_OK(config.status());
    return config.ok() && config->checkpoint().save_last_step();
  };
  EXPECT_TRUE(saves_last_step({}));
  EXPECT_TRUE(saves_last_step({"--save-interval=5"}));
  EXPECT_FALSE(saves_last_step({"--save-interval=5", "--save-last-step=false"}));
  EXPECT_FALSE(saves_last_step({"--save-interval=0"}));
  EXPECT_TRUE(saves_last_step({"--save-interval=0", "--save-last-step"}));
}

TEST(ResolveConfigTest, ContradictionsAreToldAtOnceWithTheirOrigins) {
  const auto message = [](const std::string& text, const std::vector<std::string>& flags) {
    std::string told(ResolveFile(text, flags).status().message());
    const std::string folder = testing::TempDir() + "/";
    for (size_t at; (at = told.find(folder)) != told.npos;) told.erase(at, folder.size());
    return told;
  };
  EXPECT_EQ(message("checkpoint { async_save: true\n max_checkpoint_keep: 3 }", {"--finetune"}),
            "3 problems with the settings:\n"
            "  finetune is set but load is not (--finetune=true)\n"
            "  max_checkpoint_keep is set but save is not (max_checkpoint_keep: "
            "settings.textproto:4)\n"
            "  async_save is set but save is not (async_save: settings.textproto:3)");
  // Both are wishes of one origin.
  EXPECT_EQ(message("", {"--save_interval=0", "--async-save", "--run-dir=r"}),
            "async_save is set but save is not (--async-save=true)");
  EXPECT_EQ(message("checkpoint { save: \"s\" }", {"--auto-resume=false", "--ckpt-step=5"}),
            "ckpt_step is set but auto_resume is not (--auto-resume=false, --ckpt-step=5)");
  // A flag is the stronger wish.
  EXPECT_EQ(message("checkpoint { save: \"s\" enable_save_ckpt: false }", {"--async-save"}),
            "async_save is set but enable_save_ckpt is not (--async-save=true, enable_save_ckpt: "
            "settings.textproto:3)");
}

// Every `needs` names settings.
TEST(ResolveConfigTest, WhatSettingsNeedAreSettings) {
  std::set<std::string> names;
  std::vector<std::string> needed;
  for (const Setting& setting : AllSettings(*TrainConfig::descriptor())) {
    names.insert(setting.name());
    for (const absl::string_view name : absl::StrSplit(setting.field->options().GetExtension(needs),
                                                       absl::ByAnyChar(",|"), absl::SkipEmpty())) {
      needed.emplace_back(name.substr(0, name.find('=')));
    }
  }
  ASSERT_FALSE(needed.empty());
  for (const std::string& name : needed) EXPECT_TRUE(names.contains(name)) << name;
}

// Sizes are checked against each other; the details are tested beside ValidateTopology.
TEST(ResolveConfigTest, SizesThatDoNotFitTogetherAreNamed) {
  for (const auto& [flags, names] :
       std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>>{
           {{"--tensor-model-parallel-size=3"}, {"num_attention_heads", "3"}},
           {{"--pipeline-model-parallel-size=8"}, {"num_layers", "8"}},
           {{"--num-virtual-stages-per-pipeline-rank=2"},
            {"num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_size"}},
           {{"--sequence-parallel"}, {"sequence_parallel", "tensor_model_parallel_size"}},
           {{"--numerics=exact", "--tensor-model-parallel-size=2"},
            {"exact_tp_shards", "tensor_model_parallel_size"}}}) {
    const absl::Status status = Resolve(flags).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << flags[0];
    for (const std::string& name : names) {
      EXPECT_NE(status.message().find(name), absl::string_view::npos) << status;
    }
  }
}

TEST(ResolveConfigTest, TopologyAndNumericsAreWhatTheFlagsSay) {
  const TrainConfig config =
      Resolved({"--data-parallel-size=4", "--zero-stage=2", "--tensor-model-parallel-size=2",
                "--pipeline-model-parallel-size=2", "--numerics=exact", "--exact-tp-shards=2"});
  EXPECT_EQ(ToString(ConfigTopology(config)), "dp4_zero2_tp2_pp2");
  EXPECT_EQ(ConfigTopology(config).world_size(), 16);
  EXPECT_EQ(ExactShards(config), 2);
  EXPECT_EQ(config.training().global_batch_size(), 4);
  EXPECT_EQ(ExactShards(Resolved({})), 0);
}

TEST(ResolveConfigTest, TopologyInOneWord) {
  const TrainConfig config =
      Resolved({"--data-parallel-size=4", "--topology=dp4_zero2_tp2_pp2_sp"});
  EXPECT_EQ(ToString(ConfigTopology(config)), "dp4_zero2_tp2_pp2_sp");
  EXPECT_EQ(config.parallel().topology(), "");
  EXPECT_EQ(config.training().global_batch_size(), 4);
  // A flag's name replaces the sizes of a file; a size beside it does not differ.
  constexpr char kSize[] = "parallel { data_parallel_size: 3 }\n";
  ASSERT_OK_AND_ASSIGN(const TrainConfig replaced, ResolveFile(kSize, {"--topology=single"}));
  EXPECT_EQ(ToString(ConfigTopology(replaced)), "single");
  EXPECT_EQ(
      std::string(
          ResolveFile(kSize, {"--topology=dp2", "--data-parallel-size=4"}).status().message()),
      "data_parallel_size=4, but topology=dp2 has 2; dp4 has 4 (--data-parallel-size=4, "
      "--topology=dp2)");
  // A flag's size replaces that of a file's name.
  ASSERT_OK_AND_ASSIGN(const TrainConfig with_sequence,
                       ResolveFile("parallel { topology: \"tp2\" }\n", {"--sequence-parallel"}));
  EXPECT_EQ(ToString(ConfigTopology(with_sequence)), "tp2_sp");
  EXPECT_EQ(std::string(Resolve({"--topology=dp4_ddp2"}).status().message()),
            "topology \"dp4_ddp2\": \"ddp2\" is unknown: expected dpN, zeroN, tpN, ppN, vppN, sp "
            "joined by _, or single, or auto");
  EXPECT_EQ(std::string(Resolve({"--topology=dp4_dp2"}).status().message()),
            "topology \"dp4_dp2\": dp is given twice");
  EXPECT_EQ(std::string(Resolve({"--topology=vpp2"}).status().message()),
            "topology \"vpp2\": num_virtual_stages_per_pipeline_rank = 2 needs "
            "pipeline_model_parallel_size above 1");
}

TEST(ResolveConfigTest, TopologyByTheNumberOfProcesses) {
  const std::vector<std::string> flags = {"--topology=auto", "--tensor-model-parallel-size=2",
                                          "--data-parallel-size=2", "--global-batch-size=8"};
  const auto topology = [&](int processes) {
    const absl::StatusOr<TrainConfig> config = Resolve(flags, processes);
    return config.ok() ? ToString(ConfigTopology(*config)) : std::string(config.status().message());
  };
  EXPECT_EQ(topology(1), "single");
  EXPECT_EQ(topology(2), "tp2");
  EXPECT_EQ(topology(4), "dp2_tp2");
  EXPECT_EQ(topology(8), "dp4_tp2");
  EXPECT_NE(topology(7).find("cannot be split over 7 processes; it goes with 4 or 8"),
            std::string::npos)
      << topology(7);
  EXPECT_EQ(
      Resolve({"--topology=auto"}).status().message(),
      "topology=auto: global_batch_size must be set, so that it does not depend on the number "
      "of processes");
}

TEST(ResolveConfigTest, ModelContradictionsNameTheirFields) {
  const absl::Status status = Resolve({"--num-attention-heads=5"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* text : {"num_attention_heads", "5", "hidden_size", "64"}) {
    EXPECT_NE(status.message().find(text), absl::string_view::npos) << status;
  }
  EXPECT_FALSE(Resolve({"--size=gpt2-huge"}).ok());
  EXPECT_FALSE(Resolve({"--hidden-dropout=1.5"}).ok());
}

TEST(ResolveConfigTest, StepsMustBeGivenButMayBeNone) {
  EXPECT_EQ(ResolveConfig(Parse({"--size=gpt2-tiny"})->config).status().message(),
            "train_iters is not set: give the number of steps (0: only evaluate and sample)");
  const TrainConfig config =
      OrFail(ResolveConfig(Parse({"--size=gpt2-tiny", "--train-iters=0"})->config));
}

TEST(ResolveConfigTest, SaveOptimizerStateIsTheOppositeOfNoSaveOptim) {
  for (const bool saves : {true, false}) {
    const std::string flag = saves ? "--save-optimizer-state" : "--save_optimizer_state=false";
    const TrainConfig config = Resolved({"--save=d", flag});
    EXPECT_EQ(config.checkpoint().no_save_optim(), !saves);
    EXPECT_FALSE(config.checkpoint().has_save_optimizer_state());
    // Both may be given where they agree.
    Resolved({"--save=d", flag, saves ? "--no-save-optim=false" : "--no-save-optim"});
  }
}

// InternEvo's form of the settings of a load.
TEST(ResolveConfigTest, LoadCkptFolderBecomesLoad) {
  const auto resolve = [](const std::string& checkpoint) {
    const TrainConfig config = OrFail(
        ParseConfig("model { size: \"gpt2-tiny\" } training { train_iters: 0 } checkpoint { " +
                        checkpoint + " }",
                    "test"));
    return ResolveConfig(config);
  };
  ASSERT_OK_AND_ASSIGN(const auto resolved,
                       resolve("load_ckpt_folder { path: \"a\" content: [\"model\", \"rng\"] }"));
  EXPECT_EQ(resolved.checkpoint().load(), "a");
  EXPECT_EQ(resolved.checkpoint().load_content(), "model,rng");
  EXPECT_FALSE(resolved.checkpoint().has_load_ckpt_folder());
  ASSERT_OK_AND_ASSIGN(const auto again, ResolveConfig(resolved));
  EXPECT_EQ(again.SerializeAsString(), resolved.SerializeAsString());

  ASSERT_OK_AND_ASSIGN(const auto llmc,
                       resolve("load_ckpt_folder { path: \"w.bin\" ckpt_type: \"llmc\" }"));
  EXPECT_EQ(llmc.checkpoint().llmc_filepath(), "w.bin");
  EXPECT_EQ(llmc.checkpoint().load(), "");
  EXPECT_OK(ResolveConfig(llmc));

  ASSERT_OK_AND_ASSIGN(const auto info,
                       resolve("load_ckpt_info { path: \"a\" content: [\"sampler\", \"scheduler\"] "
                               "ckpt_type: \"internlm\" }"));
  EXPECT_EQ(info.checkpoint().load(), "a");
  EXPECT_EQ(info.checkpoint().load_content(), "sampler,scheduler");
  EXPECT_EQ(info.checkpoint().load_format(), "");
  EXPECT_FALSE(info.checkpoint().has_load_ckpt_info());

  ASSERT_OK_AND_ASSIGN(const TrainConfig emptied,
                       resolve("load: \"\" load_ckpt_info { path: \"a\" content: \"model\" }"));
  EXPECT_EQ(emptied.checkpoint().load(), "");
  EXPECT_EQ(emptied.checkpoint().load_content(), "all");
  EXPECT_FALSE(emptied.checkpoint().has_load_ckpt_info());
  EXPECT_FALSE(resolve("load: \"b\" load_ckpt_folder { path: \"a\" }").ok());
  EXPECT_FALSE(resolve("load_ckpt_folder { content: \"model\" }").ok());
  EXPECT_FALSE(
      resolve("load_content: \"all\" load_ckpt_folder { path: \"a\" content: \"model\" }").ok());
}

// A model with sizes, of which `text` sets some fields.
absl::StatusOr<TrainConfig> ResolveOver(const std::string& saved, const std::string& text,
                                        int* calls) {
  ModelConfig model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(saved, &model));
  const auto resolved = OrFail(ResolveModelConfig(model));
  auto config = OrFail(ParseConfig("training { train_iters: 0 } " + text, "test"));
  config.mutable_checkpoint()->set_load("d");
  return ResolveConfig(config, {.saved_model = [&](const CheckpointConfig& checkpoint)
                                    -> absl::StatusOr<std::optional<SavedModel>> {
                         ++*calls;
                         EXPECT_EQ(checkpoint.load(), "d");
                         return SavedModel{.config = resolved, .place = "d"};
                       }});
}

TEST(ConfigTest, WhatIsNotSetOfAModelIsTheSavedOnes) {
  constexpr char kSaved[] = "size: \"gpt2-tiny\" norm_epsilon: 1e-3 vocab_size: 61";
  int calls = 0;
  for (const char* text : {"", "model { num_layers: 2 hidden_dropout: 0.1 }"}) {
    ASSERT_OK_AND_ASSIGN(const auto config, ResolveOver(kSaved, text, &calls));
    EXPECT_EQ(config.model().vocab_size(), 61);
    EXPECT_EQ(config.model().norm_epsilon(), 1e-3);
    EXPECT_EQ(config.model().hidden_dropout(), *text == 0 ? 0 : 0.1);
  }
  EXPECT_EQ(calls, 2);
  for (const auto& [text, message] :
       {std::pair("model { vocab_size: 62 }",
                  "vocab_size=62, but the model in d has vocab_size=61"),
        std::pair("model { architecture: LLAMA3 }",
                  "architecture=llama3, but the model in d has architecture=gpt2")}) {
    EXPECT_EQ(ResolveOver(kSaved, text, &calls).status().message(), message);
  }
  // Biases are the default, which no config states.
  constexpr char kWithoutBiases[] = "size: \"gpt2-tiny\" use_biases: false";
  ASSERT_OK_AND_ASSIGN(const auto without, ResolveOver(kWithoutBiases, "", &calls));
  EXPECT_TRUE(without.model().has_use_biases() && !without.model().use_biases());
  EXPECT_OK(ResolveOver(kWithoutBiases, "model { use_biases: false }", &calls));
  ASSERT_OK_AND_ASSIGN(const auto with, ResolveOver(kSaved, "model { use_biases: true }", &calls));
  EXPECT_FALSE(with.model().has_use_biases());
  EXPECT_EQ(ResolveOver(kWithoutBiases, "model { use_biases: true }", &calls).status().message(),
            "use_biases=true, but the model in d has use_biases=false");
  EXPECT_EQ(ResolveOver(kSaved, "model { use_biases: false }", &calls).status().message(),
            "use_biases=false, but the model in d has use_biases=true");
  EXPECT_OK(ResolveOver(kSaved, "model { norm_epsilon: 1.00000001e-3 }", &calls));
  // Weights that are not there may be trained anew.
  EXPECT_OK(
      ResolveOver(kSaved, "model { vocab_size: 62 } checkpoint { allow_missing: true }", &calls));
  // A model that is described is not looked up.
  calls = 0;
  EXPECT_OK(ResolveOver(kSaved, "model { size: \"llama3-tiny\" }", &calls));
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace tessera
