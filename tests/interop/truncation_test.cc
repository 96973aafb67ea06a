// Checkpoints of other frameworks whose files are cut off, or whose settings do not fit their
// files: all of them are refused.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/open_foreign.h"
#include "convert/pickle/write.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using testing::Fixture;
using ::testing::HasSubstr;

// Any one file of a checkpoint, cut at any of a few places.
struct Truncated {
  std::string checkpoint;
  std::string format;
  std::vector<std::string> files;
};

using TruncationTest = testing::ForeignTest;

TEST_F(TruncationTest, IsRefused) {
  for (const Truncated& truncated : std::vector<Truncated>{
           {"megatron/gpt2_single",
            "megatron",
            {"common.pt", "metadata.json", ".metadata", "__0_0.distcp"}},
           {"megatron/buckets_llama3_untied_dp2_tp2_pp2", "megatron", {"__3_0.distcp"}},
           {"megatron/gathered_llama3_bf16_dp2_tp2_pp2", "megatron", {"__1_0.distcp"}},
           {"megatron/legacy_llama3_untied_dp2_tp2",
            "megatron",
            {"iter_0000007/mp_rank_00/model_optim_rng.pt",
             "iter_0000007/mp_rank_01/distrib_optim.pt"}},
           {"deepspeed/zero1",
            "deepspeed",
            {"global_step3/mp_rank_00_model_states.pt",
             "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"}},
           {"paddle/testdata/mp2", "paddle", {"model_state.tp01.pdparams", "optimizer.tp00.pdopt"}},
           {"paddle/testdata/auto_llama_4",
            "paddle",
            {"dist_ckpt/0.metadata", "dist_ckpt/0_0.distcp", "dist_ckpt/1_0.distcp"}},
           {"paddle/testdata/sharded_llama_3", "paddle", {"0.metadata", "1_0.distcp"}},
           {"internevo/tp1",
            "internevo",
            {"model_tp0_pp0.pt", "optimizer_tp0_pp0_zo0.pt", "model_config.pt", "context.pt",
             "sampler.pt", "schedulder.pt"}},
           {"infinitrain/gpt2_adam", "infinitrain", {"model.ckpt", "optimizer.ckpt"}},
           {"infinitrain/llama3_dp2_tp2_pp2/iter_0000003",
            "infinitrain",
            {"rank_000001/model.ckpt", "rank_000004/optimizer.ckpt"}},
           {"../../convert/formats/gguf/testdata/llama3_untied", "gguf", {"model.gguf"}}}) {
    for (const std::string& file : truncated.files) {
      const uint64_t size = fs::file_size(Fixture(truncated.checkpoint) + "/" + file);
      for (const uint64_t length : {uint64_t{5}, size / 2, size - 1}) {
        const std::string copy = CopyOf(Fixture(truncated.checkpoint));
        fs::resize_file(fs::path(copy) / file, length);
        const absl::Status status =
            ckpt::convert::OpenForeign(copy, {.format = truncated.format}).status();
        EXPECT_THAT(std::string(status.message()),
                    AnyOf(HasSubstr(fs::path(file).filename().string()),
                          HasSubstr("no checkpoint in the format")))
            << truncated.checkpoint << ", " << length << " bytes";
      }
    }
  }
}

// A number of a dictionary, as a pickle has it.
void PickleNumber(const std::string& name, int64_t value, ckpt::pickle::Writer& writer) {
  writer.Text(name);
  if (name == "qk_interleaved" || name == "norm_head") {
    writer.Bool(value != 0);
  } else if (name == "mlp_ratio") {
    writer.Float(0.25 * static_cast<double>(value));
  } else {
    writer.Int(value);
  }
}

// The file that describes a model, with these settings: a dictionary or the attribute `args`.
std::string SettingsFile(const std::string& name, const std::map<std::string, int64_t>& settings) {
  const bool is_megatron = name == "common.pt";
  ckpt::pickle::Writer writer;
  writer.BeginDict();
  if (is_megatron) {
    writer.Text("args");
    writer.Global("argparse", "Namespace");
    writer.NewObject();
    writer.BeginDict();
  }
  for (const auto& [key, value] : settings) PickleNumber(key, value, writer);
  writer.EndDict();
  if (is_megatron) {
    writer.SetState();
    writer.EndDict();
  }
  return ckpt::convert::TorchObjectFile(name, std::move(writer).Finish()).header;
}

struct Hostile {
  std::string checkpoint, file;
  std::string settings;  // of the fixture
  std::string changes;   // each by itself
};

// "name=value name=value".
std::vector<std::pair<std::string, int64_t>> Numbers(const std::string& text) {
  std::vector<std::pair<std::string, int64_t>> numbers;
  for (const auto word : absl::StrSplit(text, ' ')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, '=');
    int64_t value = 0;
    EXPECT_TRUE(absl::SimpleAtoi(parts.second, &value)) << word;
    numbers.emplace_back(parts.first, value);
  }
  return numbers;
}

// Settings that do not fit the files are refused before anything of their size is allocated.
TEST_F(TruncationTest, SettingsThatDoNotFitAreRefused) {
  for (const Hostile& hostile : std::vector<Hostile>{
           {"megatron/gpt2_single", "common.pt",
            "num_layers=2 hidden_size=8 ffn_hidden_size=32 num_attention_heads=4 kv_channels=2 "
            "max_position_embeddings=13 vocab_size=61 padded_vocab_size=64",
            "num_layers=1000000000 num_layers=3 num_layers=0 num_layers=-1 "
            "hidden_size=1099511627776 hidden_size=0 hidden_size=16 "
            "num_attention_heads=1099511627776 num_attention_heads=0 num_attention_heads=8 "
            "kv_channels=4 ffn_hidden_size=9223372036854775807 vocab_size=65 "
            "padded_vocab_size=-9223372036854775808 vocab_size=1099511627776 "
            "max_position_embeddings=14 num_experts=8 qk_layernorm=1 multi_latent_attention=1"},
           {"internevo/tp1", "model_config.pt",
            "num_layers=4 hidden_size=16 num_attention_heads=4 vocab_size=20 multiple_of=4 "
            "num_kv_attention_heads=2 mlp_ratio=3 qk_interleaved=0 max_position_embeddings=24",
            "num_layers=1000000000 num_layers=5 num_layers=3 num_layers=0 num_layers=-1 "
            "hidden_size=1099511627776 hidden_size=0 hidden_size=32 "
            "num_attention_heads=1099511627776 num_attention_heads=0 num_attention_heads=8 "
            "num_kv_attention_heads=4 mlp_ratio=9223372036854775807 mlp_ratio=-1 mlp_ratio=2 "
            "multiple_of=0 multiple_of=9223372036854775807 vocab_size=1099511627776 "
            "vocab_size=21 num_experts=8 norm_head=1"}}) {
    const auto numbers = Numbers(hostile.settings);
    const std::map<std::string, int64_t> fitting(numbers.begin(), numbers.end());
    const std::string copy = CopyOf(Fixture(hostile.checkpoint));
    const auto open = [&](const std::map<std::string, int64_t>& settings) {
      WriteFile(copy + "/" + hostile.file, SettingsFile(hostile.file, settings));
      return ckpt::convert::OpenForeign(copy, {}).status();
    };
    EXPECT_EQ(open(fitting), absl::OkStatus());
    for (const auto& [name, value] : Numbers(hostile.changes)) {
      std::map<std::string, int64_t> settings = fitting;
      settings[name] = value;
      EXPECT_FALSE(open(settings).ok()) << name << "=" << value;
    }
    if (hostile.file != "model_config.pt") continue;
    std::map<std::string, int64_t> settings = fitting;
    settings.erase("qk_interleaved");
    EXPECT_THAT(std::string(open(settings).message()),
                HasSubstr("neither qk_interleaved nor adapt_hf"));
  }
}

// The place of the only object becomes one near 2^64: with its length, it would end in the file.
TEST_F(TruncationTest, AnObjectThatWrapsIsRefused) {
  const std::string copy = CopyOf("convert/formats/dcp/testdata/one"), file = copy + "/.metadata";
  std::string contents = ReadFile(file);
  const std::string place = std::string("offset\x94K\0", 9);
  const size_t at = contents.find(place + "\x8c\x06length");
  ASSERT_NE(at, contents.npos);
  const std::string huge("\x8a\x09\xf8\xff\xff\xff\xff\xff\xff\xff\0", 11);
  contents.replace(at + 7, 2, huge);
  contents[3] = static_cast<char>(contents[3] + 9);  // the size of the pickle's frame
  WriteFile(file, contents);
  EXPECT_THAT(
      std::string(ckpt::convert::OpenForeign(copy, {}).status().message()),
      HasSubstr("__0_0.distcp: object step: a chunk of 1261 bytes at offset 18446744073709551608"));
}

}  // namespace
}  // namespace tessera
