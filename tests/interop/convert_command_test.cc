// `ckpt` on checkpoints of other frameworks, and between their formats.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/formats/llmc/llmc.h"
#include "convert/open_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "layout/foreign_parameter.h"
#include "nlohmann/json.hpp"
#include "storage/lock/folder_lock.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/files/load_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tools/ckpt/commands.h"
#include "trainer/state/saved_model.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

std::string ModelAt(const std::string& name) { return "tests/interop/pytorch/" + name; }

// A value that tells where it is from.
float ValueAt(int array, size_t tensor, int64_t element) {
  const uint64_t mixed = (static_cast<uint64_t>(array) * 1009 + tensor) * 7919 +
                         static_cast<uint64_t>(element) * 2654435761;
  return static_cast<float>(mixed % 16777213);  // every such integer is a float
}

// The tensors in the body of a model file of llm.c.
std::vector<ForeignParameter> TensorsOf(const std::string& path) {
  LlmcFile file = {.path = path, .size_bytes = static_cast<int64_t>(fs::file_size(path))};
  const std::string header = ReadFile(path).substr(0, kLlmcHeaderBytes);
  std::memcpy(file.header.data(), header.data(), header.size());
  const auto description = ckpt::convert::ReadLlmcHeader(file, /*model=*/nullptr);
  EXPECT_OK(description);
  return description.ok() ? description->tensors : std::vector<ForeignParameter>();
}

// Where elements of the logical tensor are in the body, in their order.
std::vector<int64_t> LogicalOrder(const ForeignParameter& tensor) {
  std::vector<int64_t> order(ElementCount(tensor.shape), -1);
  for (const ForeignBlock& block : tensor.blocks) {
    const int64_t width = block.shape.back();
    const int64_t columns = block.transposed ? tensor.shape[0] : tensor.shape.back();
    const int64_t step = block.foreign_step.empty() ? 1 : block.foreign_step[0];
    for (int64_t i = 0; i < ElementCount(block.shape); ++i) {
      int64_t row = i / width, column = i % width;
      int64_t& at = order[(block.offset[0] + row) * columns + column];
      if (block.transposed) std::swap(row, column);
      at = (block.foreign_offset[0] + row * step) * tensor.shape.back() + column;
    }
  }
  std::erase(order, -1);  // as many as there are of padding
  return order;
}

class ConvertCommandTest : public testing::ForeignTest {
 protected:
  nlohmann::json Json() const { return nlohmann::json::parse(out_); }

  // A folder as a run of llm.c with this many ranks leaves it at step 7: its model is a fixture's,
  // its optimizer state of known values. With `zero`, every rank has its part, else all of it.
  std::string MakeLlmcFolder(const std::string& model, int ranks, bool zero) {
    const std::string folder =
        In(model + "-" + std::to_string(ranks) + (zero ? "-zero" : "-copies"));
    fs::create_directories(folder);
    fs::copy_file(ModelAt(model + ".model.bin"), folder + "/model_00000007.bin");
    const std::vector<ForeignParameter> tensors = TensorsOf(folder + "/model_00000007.bin");
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int32_t> header(256);
      header[0] = 20240527, header[1] = 1, header[2] = ranks, header[3] = rank, header[4] = 1;
      header[10] = 7;
      std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
      for (int array = 0; array < 3; ++array) {
        for (size_t t = 0; t < tensors.size(); ++t) {
          const int64_t all = ElementCount(tensors[t].shape), part = all / ranks;
          const auto real = std::ssize(LogicalOrder(tensors[t]));  // the rest is padding: zeros
          for (int64_t i = zero ? rank * part : 0; i < (zero ? (rank + 1) * part : all); ++i) {
            const float value = i < real ? ValueAt(array, t, i) : 0;
            bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
          }
        }
      }
      char name[32];
      std::snprintf(name, sizeof(name), "/state_00000007_%05d.bin", rank);
      WriteFile(folder + name, bytes);
    }
    WriteFile(folder + "/DONE_00000007", "");
    return folder;
  }

  // A model file of llm.c, of zeros.
  std::string MakeModel(int64_t vocab_size) {
    ckpt::ModelProto config;
    config.set_text(
        "architecture: GPT2 num_layers: 1 hidden_size: 4 num_attention_heads: 1 "
        "max_position_embeddings: 4 vocab_size: " +
        std::to_string(vocab_size));
    auto output = OrFail(ckpt::convert::WriteLlmcHeader(config, DType::kF32));
    int64_t elements = 0;
    for (const auto& tensor : output.description.tensors) elements += ElementCount(tensor.shape);
    const std::string path = In("model_" + std::to_string(vocab_size) + ".bin");
    WriteFile(path, output.header + std::string(elements * sizeof(float), '\0'));
    return path;
  }
};

// Every element of the optimizer's state, where the model wants it, whatever the number of ranks.
TEST_F(ConvertCommandTest, OptimizerStatesOfLlmc) {
  for (const char* model : {"gpt2", "llama3_untied"}) {
    constexpr std::pair<int, bool> kRuns[] = {
        {1, false}, {2, true}, {4, true}, {8, true}, {2, false}};
    for (const auto& [ranks, zero] : kRuns) {
      const std::string folder = MakeLlmcFolder(model, ranks, zero);
      ASSERT_OK_AND_ASSIGN(const auto storage, ckpt::convert::OpenForeign(folder, {}));
      ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage, ""));
      EXPECT_EQ(checkpoint.step(), 7);
      const std::vector<ForeignParameter> tensors = TensorsOf(folder + "/model_00000007.bin");
      for (size_t t = 0; t < tensors.size(); ++t) {
        const std::vector<int64_t> order = LogicalOrder(tensors[t]);
        int array = 0;
        for (const char* state : {".exp_avg", ".exp_avg_sq", ".master"}) {
          ASSERT_OK_AND_ASSIGN(const auto found,
                               checkpoint.LoadTensor<float>(tensors[t].name + state));
          ASSERT_EQ(found.size(), order.size());
          for (size_t i = 0; i < order.size(); ++i) {
            ASSERT_EQ(found[i], ValueAt(array, t, order[i]))
                << tensors[t].name << state << " " << i;
          }
          ++array;
        }
      }
    }
  }
}

TEST_F(ConvertCommandTest, StatesOfLlmcThatDoNotBelongTogether) {
  const std::string copies = MakeLlmcFolder("gpt2", 2, false);
  std::string state = ReadFile(copies + "/state_00000007_00001.bin");
  state[1024 + 4 * 777] ^= 1;
  WriteFile(copies + "/state_00000007_00001.bin", state);
  EXPECT_EQ(Run({"verify", copies}), ckpt::kExitDifferent);
  EXPECT_THAT(err_, AllOf(HasSubstr("tensor transformer.wte.weight.exp_avg: the copies of"),
                          HasSubstr("state_00000007_00000.bin"), HasSubstr("differ")));
  const std::string zero = MakeLlmcFolder("gpt2", 4, true);
  fs::remove(zero + "/state_00000007_00002.bin");
  EXPECT_EQ(Run({"verify", zero}), ckpt::kExitDifferent);
  EXPECT_THAT(err_, HasSubstr("state_00000007_00002.bin"));
  state = ReadFile(zero + "/state_00000007_00001.bin");
  WriteFile(zero + "/state_00000007_00001.bin", state.substr(0, state.size() - 1));
  fs::copy_file(zero + "/state_00000007_00003.bin", zero + "/state_00000007_00002.bin");
  EXPECT_EQ(Run({"verify", zero}), ckpt::kExitDifferent);
  EXPECT_THAT(err_, AllOf(HasSubstr("state_00000007_00001.bin"), HasSubstr("found")));
  WriteFile(zero + "/state_00000007_00001.bin", state);
  EXPECT_EQ(Run({"verify", zero}), ckpt::kExitDifferent);
  EXPECT_THAT(err_, HasSubstr("header field 3: expected 2, found 3"));
}

TEST_F(ConvertCommandTest, LooksAtForeignCheckpoints) {
  const std::string hf = ModelAt("llama3_untied.hf");
  EXPECT_EQ(Run({"inspect", hf}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_,
              AllOf(HasSubstr("format      hf (transformers)"), HasSubstr("model       llama3"),
                    HasSubstr("num_query_groups: 2"), HasSubstr("lm_head.weight")));
  EXPECT_EQ(Run({"inspect", ModelAt("llama3_tied.hf"), "--json"}), ckpt::kExitOk) << err_;
  EXPECT_EQ(Json()["foreign_format"], "hf");
  EXPECT_EQ(Run({"ls", hf}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("llama3_untied.hf (hf)"));
  EXPECT_EQ(Run({"ls", ModelAt("gpt2.model.bin")}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("gpt2.model.bin (llmc)"));
  EXPECT_EQ(Run({"verify", hf}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("these files (hf) have no checksums"));
  EXPECT_EQ(Run({"diff", hf, ModelAt("llama3_untied.model.bin")}), ckpt::kExitOk) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("by every bit of the contents"));
  EXPECT_EQ(Run({"diff", hf, ModelAt("llama3_tied.hf")}), ckpt::kExitDifferent);
  EXPECT_EQ(Run({"inspect", hf, "--from=llmc"}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("no checkpoint in the format llmc"));
  EXPECT_EQ(Run({"inspect", hf, "--from=dvd"}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("unknown format \"dvd\""));
}

// Files of other frameworks tell less, but what both tell is compared.
TEST_F(ConvertCommandTest, MetadataThatBothTellIsCompared) {
  const std::string hf = ModelAt("llama3_untied.hf"), other = In("other");
  fs::copy(hf, other);
  auto config = nlohmann::json::parse(ReadFile(hf + "/config.json"));
  config["rope_parameters"]["rope_theta"] = 12345.0;
  WriteFile(other + "/config.json", config.dump());
  EXPECT_EQ(Run({"diff", hf, other}), ckpt::kExitDifferent) << out_ << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("metadata  model.rotary_base: "), HasSubstr(" -> 12345"),
                          Not(HasSubstr("the two hold the same state"))));

  const std::string llmc = MakeLlmcFolder("gpt2", 1, false);
  for (const std::string step : {"7", "8"}) {
    ASSERT_EQ(Run({"convert", llmc, In(step), "--to=torch", "--ckpt-step=" + step}), 0) << err_;
  }
  EXPECT_EQ(Run({"diff", In("7"), In("8")}), ckpt::kExitDifferent) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("metadata  modified: trainer.step: 7 -> 8"));
}

// Which checkpoint of a run it is, and what of it is not taken.
TEST_F(ConvertCommandTest, EveryCommandSaysWhatItReads) {
  const std::string llmc = MakeLlmcFolder("gpt2", 1, false), run = In("run");
  fs::remove(llmc + "/state_00000007_00000.bin");
  fs::create_directories(run);
  fs::rename(llmc, run + "/step-7");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"convert", run, In("hf"), "--to=hf"},
        {"reshard", run, In("own"), "--topology=tp2", "--dry-run"},
        {"convert", run, In("own"), "--to=tessera"},
        {"verify", run},
        {"diff", run, In("own")}}) {
    EXPECT_EQ(Run(arguments), ckpt::kExitOk) << err_;
    EXPECT_THAT(out_, HasSubstr("The newest checkpoint in " + run + " is step-7.\n"));
    EXPECT_THAT(out_, HasSubstr("There is no optimizer state: no state_00000007_00000.bin.\n"));
  }
  for (const std::string format : {"hf", "tessera"}) {
    EXPECT_EQ(Run({"convert", run, In("json." + format), "--to=" + format, "--json"}),
              ckpt::kExitOk);
    EXPECT_EQ(Json()["source"], run + "/step-7");
    EXPECT_EQ(Json()["notes"].size(), format == "hf" ? 4 : 2);  // nor a step
  }
}

// From another framework's files through a sharded checkpoint into files of each format and back:
// the same state, proven by every bit or by digests.
TEST_F(ConvertCommandTest, RoundTrips) {
  struct Trip {
    std::string source, format;
    bool has_optimizer;
  };
  std::vector<Trip> trips;
  for (const std::string model : {"gpt2", "llama3_tied", "llama3_untied"}) {
    trips.push_back({ModelAt(model + ".hf"), "hf", false});
  }
  for (const std::string model : {"gpt2", "llama3_untied"}) {
    trips.push_back({MakeLlmcFolder(model, 1, false), "llmc", true});
  }
  trips.push_back({In("gpt2-1-copies"), "torch", true});
  trips.push_back({In("gpt2-1-copies"), "dcp", true});
  for (const auto& [source, format, has_optimizer] : trips) {
    SCOPED_TRACE(source + " to " + format);
    const std::string sharded = In("sharded"), written = In("written"), single = In("single");
    for (const std::string& folder : {sharded, written, single}) fs::remove_all(folder);
    ASSERT_EQ(Run({"convert", source, sharded, "--to=tessera", "--topology=dp2_zero1_tp2_pp2"}), 0)
        << err_;
    EXPECT_EQ(Run({"verify", sharded, "--digests"}), 0) << out_;
    std::vector<std::string> convert = {"convert", sharded, written, "--to=" + format, "--json"};
    if (format == "hf") convert.push_back("--max-file-size=8K");
    ASSERT_EQ(Run(convert), 0) << err_;
    EXPECT_GE(Json()["tensors"], 20);
    EXPECT_EQ(Json()["digests_compared"], Json()["tensors"]);
    EXPECT_EQ(fs::exists(written + "/model.safetensors.index.json"), format == "hf");
    EXPECT_EQ(Run({"ls", written}), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("(" + format + ")"));
    EXPECT_EQ(Run({"diff", written, source}), 0) << out_ << err_;
    ASSERT_EQ(Run({"convert", written, single, "--to=tessera"}), 0) << err_;
    // State dicts do not tell the model.
    const bool tells_model = format == "hf" || format == "llmc";
    EXPECT_EQ(Run({"diff", single, tells_model ? sharded : written}), 0) << out_ << err_;
    if (tells_model) EXPECT_THAT(out_, HasSubstr("by the digests in the manifests"));
    ASSERT_EQ(Run({"inspect", single, "--json"}), 0) << err_;
    EXPECT_EQ(Json()["step"], has_optimizer ? 7 : 0);
    if (format == "llmc") {
      for (const char* file : {"/model_00000007.bin", "/state_00000007_00000.bin"}) {
        // Headers hold what is not converted, the batch of Llama's.
        EXPECT_TRUE(ReadFile(written + file).substr(1024) == ReadFile(source + file).substr(1024))
            << file;
      }
      // Ranks of ZeRO hold the same state.
      const std::string model = source.find("gpt2") == source.npos ? "llama3_untied" : "gpt2";
      EXPECT_EQ(Run({"diff", MakeLlmcFolder(model, 4, true), single}), 0) << out_ << err_;
      continue;
    }
    fs::remove_all(written);
    ASSERT_EQ(
        Run({"convert", sharded, written, "--to=" + format, "--dtype=bf16", "--weights-only"}), 0)
        << err_;
    EXPECT_THAT(out_, AllOf(HasSubstr("tensors, read back, are those of " + sharded),
                            HasSubstr(", rounded to bfloat16"), Not(HasSubstr("to the last bit"))));
    EXPECT_EQ(Run({"inspect", written, "--json"}), 0) << err_;
    EXPECT_TRUE(Json()["step"].is_null()) << "not known";
    for (const auto& tensor : Json()["tensors"]) {
      EXPECT_EQ(tensor["dtype"], "BF16") << tensor["name"];
      EXPECT_EQ(tensor["role"], "WEIGHT") << tensor["name"];
    }
    EXPECT_EQ(Run({"ls", written}), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("   -  " + written));
    if (format == "hf") EXPECT_THAT(ReadFile(written + "/config.json"), HasSubstr("\"bfloat16\""));
  }
}

TEST_F(ConvertCommandTest, WritesATokenizerBesideTheModel) {
  for (const TokenizerFile& file : ByteTokenizer().Files()) WriteFile(In(file.name), file.contents);
  ASSERT_EQ(
      Run({"convert", MakeModel(257), In("hf"), "--to=hf", "--tokenizer=" + folder_.string()}), 0)
      << err_;
  ASSERT_OK_AND_ASSIGN(const auto written, LoadTokenizer(In("hf")));
  EXPECT_EQ(written->kind(), "bpe");
  EXPECT_EQ(written->end_of_text(), 256);
  EXPECT_EQ(*written->Encode("a\xFF \n"), std::vector<int32_t>({'a', 0xFF, ' ', '\n'}));
  const auto generation = nlohmann::json::parse(ReadFile(In("hf/generation_config.json")));
  EXPECT_EQ(generation["eos_token_id"], 256);
  // The tokenizer of the new folder is one, too; the model with it is still a checkpoint.
  EXPECT_EQ(Run({"convert", In("hf"), In("again"), "--to=hf", "--tokenizer=" + In("hf")}), 0);
  EXPECT_EQ(ReadFile(In("again/tokenizer.json")), ReadFile(In("hf/tokenizer.json")));
  EXPECT_EQ(Run({"diff", In("hf"), In("again")}), 0) << out_ << err_;

  EXPECT_EQ(Run({"convert", MakeModel(256), In("new"), "--to=hf", "--tokenizer=" + In("hf")}), 2);
  EXPECT_THAT(err_, HasSubstr("has 257 ids, but the model has only 256"));
  EXPECT_EQ(Run({"convert", In("hf"), In("new"), "--to=hf", "--tokenizer=" + In("absent")}), 2);
  EXPECT_THAT(err_, HasSubstr("absent: No such file"));
  EXPECT_EQ(Run({"convert", In("hf"), In("new"), "--to=torch", "--tokenizer=" + In("hf")}), 2);
  EXPECT_THAT(err_, HasSubstr("--tokenizer is for --to=hf and --to=gguf"));
  EXPECT_FALSE(fs::exists(In("new")));
}

TEST_F(ConvertCommandTest, WritesATokenizerIntoTheFileOfTheModel) {
  const std::string file = In("model.gguf");
  for (const TokenizerFile& part : ByteTokenizer().Files()) WriteFile(In(part.name), part.contents);
  ASSERT_EQ(Run({"convert", MakeModel(260), file, "--to=gguf", "--tokenizer=" + folder_.string()}),
            0)
      << err_;
  EXPECT_TRUE(fs::is_regular_file(file));
  EXPECT_THAT(ReadFile(file), AllOf(HasSubstr("tokenizer.ggml.merges"), HasSubstr("[PAD259]")));
  EXPECT_THAT(out_, Not(HasSubstr("note")));
  EXPECT_EQ(Run({"diff", MakeModel(260), file}), 0) << out_ << err_;

  EXPECT_EQ(Run({"convert", MakeModel(256), In("a.gguf"), "--to=gguf",
                 "--tokenizer=" + folder_.string()}),
            2);
  EXPECT_THAT(err_, HasSubstr("has 257 ids, but the model has only 256"));
  EXPECT_FALSE(fs::exists(In("a.gguf")));
}

// A file gets its name as a folder does, and nothing is left beside it.
TEST_F(ConvertCommandTest, AFileOfLlamaCppIsWrittenAndReadBack) {
  for (const std::string model : {"gpt2", "llama3_tied", "llama3_untied"}) {
    SCOPED_TRACE(model);
    const std::string source = ModelAt(model + ".hf"), file = In("out/" + model + ".gguf");
    ASSERT_EQ(Run({"convert", source, file, "--to=gguf", "--json"}), 0) << err_;
    EXPECT_EQ(Json()["files"], nlohmann::json({model + ".gguf"}));
    EXPECT_EQ(Json()["bytes"], fs::file_size(file));
    EXPECT_THAT(Json()["notes"][0], HasSubstr("The file has no tokenizer"));
    EXPECT_EQ(Run({"diff", source, file}), 0) << out_ << err_;
    EXPECT_EQ(Run({"verify", file}), 0) << err_;
    EXPECT_EQ(Run({"convert", source, file, "--to=gguf"}), ckpt::kExitUsage);
    EXPECT_THAT(err_, HasSubstr("exists, and nothing is ever overwritten"));
    // Through another topology, into the same bytes.
    const std::string sharded = In(model), again = In("again/" + model + ".gguf");
    ASSERT_EQ(Run({"convert", file, sharded, "--to=tessera", "--topology=dp2_zero1_tp2_pp2"}), 0)
        << err_;
    EXPECT_EQ(Run({"diff", file, sharded}), 0) << out_ << err_;
    EXPECT_THAT(out_, Not(HasSubstr("values")));  // both have those of the file
    ASSERT_EQ(Run({"convert", sharded, again, "--to=gguf"}), 0) << err_;
    EXPECT_TRUE(ReadFile(again) == ReadFile(file));
    ASSERT_EQ(Run({"convert", file, In("bf16.gguf"), "--to=gguf", "--dtype=bf16"}), 0) << err_;
    EXPECT_EQ(Run({"inspect", In("bf16.gguf"), "--json"}), 0) << err_;
    for (const auto& tensor : Json()["tensors"]) {
      const bool is_f32 = tensor["shape"].size() == 1 || tensor["name"] == "transformer.wpe.weight";
      EXPECT_EQ(tensor["dtype"], is_f32 ? "F32" : "BF16") << tensor["name"];
    }
    fs::remove(In("bf16.gguf"));
    EXPECT_EQ(std::distance(fs::directory_iterator(In("again")), {}), 1);
    fs::remove_all(In("again"));
  }
  // Beside the model that they were made from, that one is meant.
  fs::copy(ModelAt("gpt2.hf"), In("hf"));
  for (const char* name : {"hf/a.gguf", "hf/b.gguf"}) fs::copy(In("out/gpt2.gguf"), In(name));
  EXPECT_EQ(Run({"inspect", In("hf")}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("format      hf "));
}

TEST_F(ConvertCommandTest, ConvertRefuses) {
  const std::string hf = ModelAt("gpt2.hf");
  EXPECT_EQ(Run({"convert", hf, In("a")}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("convert needs --to; see ckpt convert --help"));
  EXPECT_EQ(Run({"convert", hf, In("a"), "--to=onnx"}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("ten are hf, megatron, paddle, dcp, llmc, torch, gguf, tessera;"));
  EXPECT_EQ(Run({"convert", hf, folder_.string(), "--to=hf"}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("nothing is ever overwritten"));
  EXPECT_EQ(Run({"convert", hf, In("a"), "--to=hf", "--dtype=int4"}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("expected f32, bf16 or f16"));
  EXPECT_EQ(Run({"convert", hf, In("a"), "--to=llmc", "--dtype=f16"}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("F32 or BF16, not F16"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

// `inspect` shows why a checkpoint has no model, and the errors of other commands do, too.
TEST_F(ConvertCommandTest, ErrorsHaveTheNotesThatExplainThem) {
  const std::string meta = CopyOf("tests/interop/state_dict/llama_meta");
  nlohmann::json params = nlohmann::json::parse(ReadFile(meta + "/params.json"));
  params["use_scaled_rope"] = true;
  WriteFile(meta + "/params.json", params.dump());
  const std::string gpt2 = CopyOf("tests/interop/state_dict/gpt2");
  fs::copy_file(ModelAt("llama3_untied.hf") + "/config.json", gpt2 + "/config.json",
                fs::copy_options::overwrite_existing);
  const std::map<std::string, std::string> reasons = {
      {meta, "add \"rope_scaling_factor\", which is 8 in Llama 3.1"},
      {gpt2, "the model's model.embed_tokens.weight is not among lm_head.weight, transformer.h.0."},
      {"convert/formats/torch/testdata/unread.pt", "Left out: a tensor of the kind "}};
  for (const auto& [source, reason] : reasons) {
    SCOPED_TRACE(source);
    ASSERT_EQ(Run({"inspect", source}), ckpt::kExitOk) << err_;
    EXPECT_THAT(out_, HasSubstr(reason));
    EXPECT_EQ(Run({"convert", source, In("out"), "--to=hf"}), ckpt::kExitUsage);
    EXPECT_THAT(err_, HasSubstr(reason));
    EXPECT_FALSE(fs::exists(In("out")));
    CheckpointConfig config;
    config.set_load(source);
    const auto model = FindSavedModel(config);
    EXPECT_TRUE(absl::IsInvalidArgument(model.status())) << model.status();
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(reason));
  }
}

// A conversion that is killed leaves a folder, which the next one to the same place removes: what
// nobody has locked any more, and nothing else.
TEST_F(ConvertCommandTest, WhatAKilledConversionHasLeftIsRemoved) {
  const std::vector<std::string> convert = {"convert", ModelAt("gpt2.model.bin"), In("new"),
                                            "--to=hf"};
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);  // SIGXFSZ in the middle of the weights
    std::signal(SIGXFSZ, SIG_DFL);
    Run(convert);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      found.insert(entry.path().filename().string());
    }
    return found;
  };
  const std::set<std::string> left = names();
  ASSERT_EQ(left.size(), 1);
  EXPECT_TRUE(left.begin()->starts_with("new.unfinished-"));

  const auto make = [&](const std::string& name, bool with_lock) {
    fs::create_directory(In(name));
    WriteFile(In(name + "/model.safetensors"), "");
    if (with_lock) WriteFile(In(name + "/.lock"), "");
  };
  make("new.unfinished-00000001", true);  // being written
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       FolderLock::Acquire(*OpenStorage(In("new.unfinished-00000001")), {}));
  make("new.unfinished-00000002", false);  // somebody's own
  make("other.unfinished-00000003", true);
  make("new.unfinished-4", true);
  make("elsewhere", true);
  fs::create_directory_symlink("elsewhere", In("new.unfinished-00000005"));
  WriteFile(In("new.unfinished-00000006"), "");
  std::set<std::string> kept = names();
  kept.erase(*left.begin());
  kept.insert("new");

  ASSERT_EQ(Run(convert), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("note: " + In(*left.begin()) +
                              " is removed: it was left by a conversion that was killed"));
  EXPECT_EQ(names(), kept);
  EXPECT_FALSE(fs::exists(In("new/.lock")));
  EXPECT_TRUE(fs::exists(In("elsewhere/.lock")));
}

}  // namespace
}  // namespace tessera
