// Checkpoints that megatron-core has written (make_fixtures.py), against what it was given.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/safetensors.h"
#include "convert/dcp/folder_layout.h"
#include "convert/open_foreign.h"
#include "convert/pickle/write.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

struct Fixture {
  const char* folder;
  const char* model;  // with ".safetensors": its weights and its optimizer's states
  bool has_master;
};

std::ostream& operator<<(std::ostream& out, const Fixture& fixture) {
  return out << fixture.folder;
}

std::string Path(const std::string& name) { return "tests/interop/megatron/" + name; }

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> Floats(const std::string& bytes, bool are_bf16) {
  std::vector<float> floats(bytes.size() / (are_bf16 ? 2 : 4));
  if (!are_bf16) {
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }
  for (size_t i = 0; i < floats.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
    floats[i] = std::bit_cast<float>(uint32_t{bits} << 16);
  }
  return floats;
}

class MegatronTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / "megatron";
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int exit_code = ckpt::RunCkpt(arguments, {out, err, nullptr});
    out_ = out.str();
    err_ = err.str();
    return exit_code;
  }

  // A copy of a checkpoint, to be changed.
  std::string Copy(const std::string& folder) const {
    fs::remove_all(root_ / "copy");
    fs::copy(Path(folder), root_ / "copy", fs::copy_options::recursive);
    return (root_ / "copy").string();
  }

  fs::path root_;
  std::string out_, err_;
};

class MegatronFixtureTest : public MegatronTest, public ::testing::WithParamInterface<Fixture> {};

TEST_P(MegatronFixtureTest, EveryTensorIsWhatMegatronWasGiven) {
  const auto storage = ckpt::convert::OpenForeign(Path(GetParam().folder), {});
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->format(), "megatron");
  const auto checkpoint = ckpt::Checkpoint::Open(**storage, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->step(), 7);
  EXPECT_EQ(checkpoint->manifest().trainer().data().consumed_samples(), 56);

  const std::string file = ReadFile(Path(GetParam().model) + ".safetensors");
  const auto header_bytes = ckpt::SafetensorsHeaderBytes(file.substr(0, 8), file.size());
  ASSERT_TRUE(header_bytes.ok()) << header_bytes.status();
  const auto header = ckpt::ParseSafetensorsHeader(file.substr(0, *header_bytes), file.size());
  ASSERT_TRUE(header.ok()) << header.status();
  std::map<std::string, const ckpt::SafetensorsEntry*> expected;
  for (const ckpt::SafetensorsEntry& entry : header->entries) {
    if (GetParam().has_master || !entry.key.ends_with(".master")) expected[entry.key] = &entry;
  }
  size_t compared = 0;
  for (const ckpt::TensorInfo& tensor : checkpoint->tensors()) {
    if (!tensor.alias_of.empty()) continue;
    ASSERT_TRUE(expected.contains(tensor.name)) << tensor.name;
    const ckpt::SafetensorsEntry& entry = *expected[tensor.name];
    EXPECT_EQ(tensor.global_shape, entry.shape);
    const auto found = checkpoint->LoadTensor<float>(tensor.name);
    ASSERT_TRUE(found.ok()) << found.status();
    const std::vector<float> stored =
        Floats(file.substr(entry.file_offset, entry.length_bytes), entry.dtype == ckpt::BF16);
    ASSERT_EQ(found->size(), stored.size());
    EXPECT_EQ(std::memcmp(found->data(), stored.data(), stored.size() * sizeof(float)), 0)
        << tensor.name;
    ++compared;
  }
  EXPECT_EQ(compared, expected.size());
}

TEST_P(MegatronFixtureTest, IsTheSameUnderEveryTopology) {
  for (const char* topology : {"single", "tp2", "pp2", "dp2_zero2_tp2_pp2"}) {
    const std::string written = (root_ / topology).string();
    ASSERT_EQ(Run({"convert", Path(GetParam().folder), written, "--to=tessera",
                   std::string("--topology=") + topology}),
              ckpt::kExitOk)
        << err_;
    EXPECT_EQ(Run({"diff", Path(GetParam().folder), written}), ckpt::kExitOk) << out_ << err_;
    EXPECT_THAT(out_, HasSubstr("by every bit of the contents"));
  }
}

TEST_P(MegatronFixtureTest, IsWrittenAsItWasRead) {
  const std::string ours = (root_ / "ours").string(), theirs = (root_ / "theirs").string();
  ASSERT_EQ(Run({"convert", Path(GetParam().folder), ours, "--to=tessera", "--topology=tp2_pp2"}),
            ckpt::kExitOk)
      << err_;
  ASSERT_EQ(Run({"convert", ours, theirs, "--to=megatron", "--max-file-size=20000"}), ckpt::kExitOk)
      << err_;
  EXPECT_TRUE(fs::exists(theirs + "/__0_3.distcp"));
  EXPECT_EQ(Run({"inspect", theirs}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("format      megatron"));
  for (const std::string& other : {ours, Path(GetParam().folder)}) {
    EXPECT_EQ(Run({"diff", other, theirs}), ckpt::kExitOk) << out_ << err_;
    EXPECT_THAT(out_, HasSubstr("by every bit of the contents"));
  }
  ASSERT_EQ(Run({"convert", theirs, (root_ / "weights").string(), "--to=megatron", "--weights-only",
                 "--dtype=bf16"}),
            ckpt::kExitOk)
      << err_;
  const auto storage = ckpt::convert::OpenForeign((root_ / "weights").string(), {});
  ASSERT_TRUE(storage.ok()) << storage.status();
  const auto weights = ckpt::Checkpoint::Open(**storage, "");
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (const ckpt::TensorInfo& tensor : weights->tensors()) {
    EXPECT_EQ(tensor.dtype, ckpt::ElementType::kBF16) << tensor.name;
  }
  EXPECT_FALSE(weights->manifest().has_optimizer());
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, MegatronFixtureTest,
    ::testing::Values(Fixture{"gpt2_single", "gpt2", false}, Fixture{"gpt2_tp2_pp2", "gpt2", false},
                      Fixture{"llama3_tied_pp2", "llama3_tied", false},
                      Fixture{"llama3_untied_single", "llama3_untied", false},
                      Fixture{"llama3_untied_dp2_tp2_pp2", "llama3_untied", true},
                      Fixture{"llama3_bf16_pp2_vpp2", "llama3_bf16", true},
                      Fixture{"buckets_llama3_untied_dp2_tp2_pp2", "llama3_untied", true},
                      Fixture{"buckets_llama3_bf16_dp2_pp2_vpp2", "llama3_bf16", true},
                      Fixture{"gathered_llama3_bf16_dp2_tp2_pp2", "llama3_bf16", true},
                      Fixture{"flat_gpt2_dp2_tp2", "gpt2", true},
                      Fixture{"flat_buckets_gpt2_dp2", "gpt2", true},
                      Fixture{"legacy_gpt2_tp2_pp2", "gpt2", false},
                      Fixture{"legacy_llama3_tied_pp2_vpp2", "llama3_bf16", true},
                      Fixture{"legacy_llama3_untied_dp2_tp2", "llama3_untied", true},
                      Fixture{"legacy_llama3_bf16_dp2_pp2_vpp2", "llama3_bf16", true}),
    [](const auto& info) { return std::string(info.param.folder); });

TEST_F(MegatronTest, FindsTheLatestIterationOfARun) {
  fs::create_directories(root_ / "run");
  fs::copy(Path("gpt2_tp2_pp2"), root_ / "run/iter_0000007", fs::copy_options::recursive);
  std::ofstream(root_ / "run/latest_checkpointed_iteration.txt") << "7\n";
  EXPECT_EQ(Run({"diff", (root_ / "run").string(), Path("gpt2_single")}), ckpt::kExitOk)
      << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("by every bit of the contents"));
  EXPECT_EQ(Run({"inspect", (root_ / "run").string()}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("format      megatron"));
}

// Transformer Engine keeps them, and modules of Megatron-Core's own have them for its sake.
TEST_F(MegatronTest, NamesStatesOfModulesThatAreLeftOut) {
  EXPECT_EQ(Run({"inspect", Path("llama3_bf16_pp2_vpp2")}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("linear_qkv._extra_state"));
}

TEST_F(MegatronTest, RefusesWhatIsMissingOrOfAnotherModel) {
  std::string folder = Copy("gpt2_tp2_pp2");
  fs::remove(folder + "/common.pt");
  EXPECT_NE(Run({"inspect", folder}), ckpt::kExitOk);
  EXPECT_THAT(err_, HasSubstr("common.pt"));
  folder = Copy("gpt2_tp2_pp2");
  fs::remove(folder + "/__2_0.distcp");
  EXPECT_NE(Run({"inspect", folder}), ckpt::kExitOk);
  EXPECT_THAT(err_, HasSubstr("__2_0.distcp"));
  folder = Copy("gpt2_tp2_pp2");
  fs::copy_file(Path("llama3_untied_single/common.pt"), folder + "/common.pt",
                fs::copy_options::overwrite_existing);
  EXPECT_NE(Run({"inspect", folder}), ckpt::kExitOk);
  EXPECT_THAT(err_, HasSubstr("belongs to no parameter of the model that common.pt describes"));
}

// common.pt with the arguments of the fixture gpt2_single, one of them changed.
std::string CommonFile(const std::string& changed, int64_t value) {
  std::map<std::string, int64_t> arguments = {
      {"num_layers", 2},          {"hidden_size", 8},       {"ffn_hidden_size", 32},
      {"num_attention_heads", 4}, {"kv_channels", 2},       {"max_position_embeddings", 13},
      {"vocab_size", 61},         {"padded_vocab_size", 64}};
  arguments[changed] = value;
  ckpt::pickle::Writer writer;
  writer.BeginDict();
  writer.Text("args");
  writer.Global("argparse", "Namespace");
  writer.NewObject();
  writer.BeginDict();
  for (const auto& [name, number] : arguments) {
    writer.Text(name);
    writer.Int(number);
  }
  writer.EndDict();
  writer.SetState();
  writer.EndDict();
  return ckpt::convert::TorchObjectFile("common.pt", std::move(writer).Finish()).header;
}

// Arguments that do not fit the files are refused before anything of their size is allocated.
TEST_F(MegatronTest, RefusesHostileArguments) {
  const std::string folder = Copy("gpt2_single");
  const auto inspect = [&](const std::string& changed, int64_t value) {
    std::ofstream(folder + "/common.pt", std::ios::binary) << CommonFile(changed, value);
    return Run({"inspect", folder});
  };
  EXPECT_EQ(inspect("num_layers", 2), ckpt::kExitOk) << err_;
  const std::pair<const char*, int64_t> hostile[] = {{"num_layers", 1'000'000'000},
                                                     {"num_layers", 3},
                                                     {"num_layers", 0},
                                                     {"num_layers", -1},
                                                     {"hidden_size", int64_t{1} << 40},
                                                     {"hidden_size", 0},
                                                     {"hidden_size", 16},
                                                     {"num_attention_heads", int64_t{1} << 40},
                                                     {"num_attention_heads", 0},
                                                     {"num_attention_heads", 8},
                                                     {"kv_channels", 4},
                                                     {"ffn_hidden_size", INT64_MAX},
                                                     {"vocab_size", 65},
                                                     {"padded_vocab_size", INT64_MIN},
                                                     {"vocab_size", int64_t{1} << 50},
                                                     {"max_position_embeddings", 14},
                                                     {"num_experts", 8},
                                                     {"qk_layernorm", 1},
                                                     {"multi_latent_attention", 1}};
  for (const auto& [name, value] : hostile) {
    EXPECT_NE(inspect(name, value), ckpt::kExitOk) << name << "=" << value;
    EXPECT_NE(err_, "") << name << "=" << value;
  }
}

// A checkpoint of which any one file is cut at any of a few places is refused or, where the file
// holds no tensor, read as it was.
TEST_F(MegatronTest, RefusesTruncatedFiles) {
  for (const char* file : {"common.pt", "metadata.json", ".metadata", "__0_0.distcp"}) {
    const uint64_t size = fs::file_size(Path("gpt2_single") + "/" + file);
    for (const uint64_t length : {uint64_t{0}, uint64_t{1}, size / 2, size - 1}) {
      const std::string folder = Copy("gpt2_single");
      fs::resize_file(fs::path(folder) / file, length);
      EXPECT_NE(Run({"inspect", folder, "--from=megatron"}), ckpt::kExitOk)
          << file << " of " << length << " bytes";
    }
  }
}

}  // namespace
}  // namespace tessera
