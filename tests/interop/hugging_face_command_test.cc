// `ckpt` on folders of Hugging Face that other programs have written, or that are damaged.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "convert/core/models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

std::string HfFixture(const std::string& name) { return "tests/interop/pytorch/" + name; }

using HuggingFaceCommandTest = testing::ForeignTest;

// A safetensors file in memory.
struct Safetensors {
  nlohmann::json header;
  std::string data;

  static Safetensors Read(const std::string& path) {
    const std::string bytes = ReadFile(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    return {nlohmann::json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
  }
  void Write(const std::string& path) const {
    const std::string text = header.dump();
    const uint64_t length = text.size();
    WriteFile(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
  }
  // Adds a copy of a tensor's entry and data under another name.
  void Copy(const std::string& from, const std::string& to) {
    const uint64_t begin = header[from]["data_offsets"][0], end = header[from]["data_offsets"][1];
    header[to] = header[from];
    header[to]["data_offsets"] = {data.size(), data.size() + (end - begin)};
    data += data.substr(begin, end - begin);
  }
};

// As OpenAI's own files: no prefix, masks of the attention, and the head beside the embedding.
TEST_F(HuggingFaceCommandTest, NamesWithoutPrefixAndCopiesOfTheHead) {
  const std::string folder = In("hf"), file = folder + "/model.safetensors";
  fs::copy(HfFixture("gpt2.hf"), folder);
  Safetensors tensors = Safetensors::Read(file);
  const nlohmann::json header = tensors.header;
  tensors.header.clear();
  for (const auto& [name, entry] : header.items()) {
    const std::string prefix = "transformer.";
    tensors.header[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = entry;
  }
  tensors.Copy("h.0.ln_1.weight", "h.0.attn.bias");
  tensors.Copy("wte.weight", "lm_head.weight");
  tensors.Write(file);
  EXPECT_EQ(Run({"diff", folder, HfFixture("gpt2.hf")}), ckpt::kExitOk) << out_ << err_;
  tensors.data.back() ^= 1;
  tensors.Write(file);
  EXPECT_EQ(Run({"verify", folder}), ckpt::kExitDifferent);
  EXPECT_THAT(
      err_, AllOf(HasSubstr("tensor transformer.wte.weight: the copies of"), HasSubstr("differ")));
}

// torch.compile, DistributedDataParallel and peft add them, and safetensors keep them.
TEST_F(HuggingFaceCommandTest, NamesWithWrappers) {
  const std::string folder = In("hf"), file = folder + "/model.safetensors";
  fs::copy(HfFixture("gpt2.hf"), folder);
  Safetensors tensors = Safetensors::Read(file);
  const nlohmann::json header = tensors.header;
  const auto write = [&](const std::string& wrapper) {
    tensors.header.clear();
    for (const auto& [name, entry] : header.items()) {
      tensors.header[(name == "__metadata__" ? "" : wrapper) + name] = entry;
    }
    tensors.Write(file);
  };
  write("module._orig_mod.");
  EXPECT_EQ(Run({"diff", folder, HfFixture("gpt2.hf")}), ckpt::kExitOk) << out_ << err_;
  write("stu\tdent.");
  EXPECT_EQ(Run({"verify", folder}), ckpt::kExitDifferent);
  EXPECT_THAT(err_, AllOf(HasSubstr("tensor transformer.wte.weight is missing"),
                          HasSubstr("the files have stu\\tdent.transformer.h.0.attn.c_attn.bias, "),
                          HasSubstr(", and 18 more, which the model does not have")));
}

// Norms in fp32 beside matrices in bf16: the file has the larger elements first.
TEST_F(HuggingFaceCommandTest, WeightsOfSeveralDtypesAreWrittenAndReadBack) {
  for (const std::string model : {"gpt2", "llama3_tied", "llama3_untied"}) {
    SCOPED_TRACE(model);
    const std::string file = In(model + ".gguf"), hf = In(model + ".hf");
    ASSERT_EQ(Run({"convert", HfFixture(model + ".hf"), file, "--to=gguf", "--dtype=bf16"}), 0);
    ASSERT_EQ(Run({"convert", file, hf, "--to=hf"}), 0) << err_;
    EXPECT_EQ(Run({"diff", file, hf}), 0) << out_ << err_;
    const nlohmann::json header = Safetensors::Read(hf + "/model.safetensors").header;
    std::set<std::string> dtypes;
    for (const auto& [name, entry] : header.items()) {
      if (entry.contains("dtype")) dtypes.insert(entry["dtype"].get<std::string>());
    }
    EXPECT_EQ(dtypes, std::set<std::string>({"BF16", "F32"}));
  }
}

// transformers warns where the context before the stretch is not less than that of the model, and
// of keys in rope_scaling that it does not know.
TEST_F(HuggingFaceCommandTest, RopeScalingIsAsTransformersWantsItAndReadsBackTheSame) {
  for (const auto& [positions, original] : {std::pair(2048, 1024), std::pair(131072, 8192)}) {
    const std::string scaling =
        "rope_scaling_factor: 8 rope_scaling_low_freq_factor: 1 rope_scaling_high_freq_factor: 4 "
        "rope_scaling_original_max_position_embeddings: 8192";
    ckpt::ModelProto config;
    config.set_text(
        "architecture: LLAMA3 num_layers: 1 hidden_size: 16 ffn_hidden_size: 32 vocab_size: 48 "
        "num_attention_heads: 2 num_query_groups: 1 use_rope_scaling: true rotary_base: 500000 "
        "max_position_embeddings: " +
        std::to_string(positions) + " " + scaling);
    ASSERT_OK_AND_ASSIGN(const auto text,
                         ckpt::convert::WriteHuggingFaceConfig(config, DType::kF32));
    const nlohmann::json json = nlohmann::json::parse(text);
    const double scale = original / 8192.0;
    EXPECT_EQ(json["rope_scaling"],
              nlohmann::json({{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", scale},
                              {"high_freq_factor", 4 * scale},
                              {"original_max_position_embeddings", original}}));
    EXPECT_EQ(json["rope_theta"], 500000);
    ASSERT_OK_AND_ASSIGN(const auto read, ckpt::convert::ReadHuggingFaceConfig(text, 12));
    const std::string& found = read.model.config.text();
    for (const char* field : {"factor: 8", "low_freq_factor: 1", "high_freq_factor: 4",
                              "original_max_position_embeddings: 8192"}) {
      EXPECT_THAT(found, HasSubstr(std::string("rope_scaling_") + field));
    }
  }
}

// A change of the untied model's folder, and what the error says of it.
struct Damage {
  std::string file, from, to;
  int exit_code;
  std::string message;
};

TEST_F(HuggingFaceCommandTest, DamagedFolders) {
  const std::string folder = In("hf"), third = folder + "/model-00003-of-00004.safetensors";
  const auto refused = [&](int exit_code, const std::string& message) {
    EXPECT_EQ(Run({"verify", folder}), exit_code) << out_;
    EXPECT_THAT(err_, HasSubstr(message));
    fs::remove_all(folder);
    fs::copy(HfFixture("llama3_untied.hf"), folder);
  };
  fs::copy(HfFixture("gpt2.hf"), folder);
  fs::remove(folder + "/model.safetensors");
  fs::create_symlink("lost", folder + "/model.safetensors");
  refused(ckpt::kExitDifferent, folder + ": missing: model.safetensors\n");
  fs::remove(folder + "/model-00002-of-00004.safetensors");
  refused(ckpt::kExitDifferent, "missing: model-00002-of-00004.safetensors");
  WriteFile(third, ReadFile(third).substr(0, 4000));
  refused(ckpt::kExitDifferent, "model-00003-of-00004.safetensors");
  const char* const index = "/model.safetensors.index.json";
  const char* const config = "/config.json";
  for (const Damage& damage : std::vector<Damage>{
           {index, "model-00003-of", "model-00001-of", ckpt::kExitDifferent, "no tensor"},
           {index, "\"weight_map\"", "\"weight_mop\"", ckpt::kExitDifferent, "weight_map"},
           {index, "model-00003-of-00004.safetensors", "../../etc/passwd", ckpt::kExitDifferent,
            "../../etc/passwd"},
           {config, "\"intermediate_size\": 56", "\"intermediate_size\": 64", ckpt::kExitDifferent,
            "expected F32 [64,16], found F32 [56,16]"},
           {config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", ckpt::kExitDifferent,
            "tensor model.layers.2.input_layernorm.weight is missing"},
           {config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", ckpt::kExitDifferent,
            "model.layers.1.self_attn.v_proj.weight, which the model does not have"},
           {config, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 5000", ckpt::kExitUsage,
            "5000 layers, but the files have 21 tensors"},
           {config, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"relu\"", ckpt::kExitUsage,
            "hidden_act is \"relu\", only \"silu\" is supported; ckpt COMMAND --from=safetensors "},
           {config, "\"num_hidden_layers\": 2",
            R"("num_hidden_layers": 3, "architectures": ["LlamaForSequenceClassification"])",
            ckpt::kExitDifferent, ": tensor model.layers.2.input_layernorm.weight is missing"},
           {config, "\"num_hidden_layers\": 2",
            R"("num_hidden_layers": 1, "architectures": ["LlamaForSequenceClassification"])",
            ckpt::kExitUsage,
            "architectures is \"LlamaForSequenceClassification\", known is LlamaForCausalLM: "
            "the files have model.layers.1."},
           {config, "\"hidden_size\": 16", "\"hidden_size\": \"16\"", ckpt::kExitUsage,
            "hidden_size is \"16\", expected an integer"},
           {config, "\"model_type\": \"llama\"", "\"model_type\": \"bert\"", ckpt::kExitUsage,
            "model_type is \"bert\", known are gpt2, llama; ckpt COMMAND --from=safetensors "},
           {config, "\"intermediate_size\": 56",
            R"("intermediate_size": 64, "quantization_config": {"quant_method": "gptq"})",
            ckpt::kExitUsage, "quantized (quantization_config): tensor model.layers.0.mlp."},
           {config, "\"num_hidden_layers\": 2",
            R"("num_hidden_layers": 3, "quantization_config": {"quant_method": "gptq"})",
            ckpt::kExitUsage,
            "(quantization_config): tensor model.layers.2.input_layernorm.weight "},
           {config, "{", "", ckpt::kExitDifferent, "config.json: not a JSON object"},
           {config, "{", "{\"a\": " + std::string(1000, '[') + std::string(1000, ']') + ",",
            ckpt::kExitDifferent, "config.json: not a JSON object of at most 64 levels"},
           {config, "\"hidden_size\": 16", "\"hidden_size\": 160000000000", ckpt::kExitUsage,
            "config.json: hidden_size must be 16, num_attention_heads (4) times head_dim (4), but "
            "is 160000000000"}}) {
    std::string text = ReadFile(folder + damage.file);
    ASSERT_NE(text.find(damage.from), text.npos) << damage.from;
    WriteFile(folder + damage.file,
              text.replace(text.find(damage.from), damage.from.size(), damage.to));
    refused(damage.exit_code, damage.message);
  }
}

TEST_F(HuggingFaceCommandTest, QuantizedWeightsAreReadUnderTheNamesOfTheFiles) {
  const std::string folder = CopyOf(HfFixture("llama3_untied.hf"));
  nlohmann::json config = nlohmann::json::parse(ReadFile(folder + "/config.json"));
  config["quantization_config"] = {{"quant_method", "gptq"}};
  WriteFile(folder + "/config.json", config.dump());
  EXPECT_EQ(Run({"diff", folder, HfFixture("llama3_untied.hf")}), ckpt::kExitOk) << out_ << err_;
  const std::string part = folder + "/model-00003-of-00004.safetensors";
  const std::string plain = ReadFile(part);
  std::string integers = plain;
  WriteFile(part, integers.replace(integers.find("\"F32\""), 5, "\"I32\""));
  EXPECT_EQ(Run({"verify", folder}), ckpt::kExitUsage) << out_;
  EXPECT_THAT(err_, HasSubstr("(quantization_config); ckpt COMMAND --from=safetensors reads "));
  WriteFile(part, plain);
  config["intermediate_size"] = 64;
  WriteFile(folder + "/config.json", config.dump());
  EXPECT_EQ(Run({"verify", folder, "--from=safetensors"}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("Names are those of the files: the weights are quantized"));
}

// A class with another head has all layers, whatever the format of its weights.
TEST_F(HuggingFaceCommandTest, AClassThatIsNotKnownHasTheModelsLayers) {
  const std::string folder = CopyOf("tests/interop/state_dict/gpt2"),
                    path = folder + "/config.json";
  nlohmann::json config = nlohmann::json::parse(ReadFile(path));
  config["architectures"] = {"GPT2ForSequenceClassification"};
  WriteFile(path, config.dump());
  EXPECT_EQ(Run({"verify", folder}), ckpt::kExitOk) << out_ << err_;
  config["n_layer"] = 3;
  WriteFile(path, config.dump());
  EXPECT_EQ(Run({"verify", folder}), ckpt::kExitDifferent) << out_;
  EXPECT_THAT(out_, HasSubstr("the model's transformer.h.2.ln_1.weight is missing"));
}

// The state dict of a model of peft, with layers beside their adapters.
TEST_F(HuggingFaceCommandTest, LayersOfPeftAreNotDamage) {
  const std::string folder = CopyOf(HfFixture("gpt2.hf"));
  const std::string weights = folder + "/model.safetensors", plain = ReadFile(weights);
  const std::string from = "transformer.h.0.mlp.c_proj.weight";
  std::string adapted = plain;
  adapted.replace(adapted.find(from), from.size(), "transformer.h.0.p.base_layer.weig");
  WriteFile(weights, adapted);
  const std::string reason = "transformer.h.0.p.base_layer.weig is a layer of peft beside its ";
  EXPECT_EQ(Run({"verify", folder}), ckpt::kExitUsage) << out_;
  EXPECT_THAT(err_, HasSubstr(reason));
  EXPECT_EQ(Run({"verify", folder, "--from=safetensors"}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("Names are those of the files: " + reason));
}

TEST_F(HuggingFaceCommandTest, TensorsThatAreNotReadAreNeitherProvenNorEqual) {
  const std::string file = "convert/formats/torch/testdata/unread.pt";
  EXPECT_EQ(Run({"verify", file}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("5 tensors are not read, such as complex (a tensor in a "),
                          Not(HasSubstr("every element"))));
  EXPECT_EQ(Run({"verify", file, "--json"}), ckpt::kExitOk) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["unread"].size(), 5);
  EXPECT_EQ(Run({"diff", file, "./" + file, "--data"}), ckpt::kExitOk) << out_;
  const std::string copy = In("unread.pt");
  WriteFile(copy, ReadFile(file));
  EXPECT_EQ(Run({"diff", file, copy, "--data"}), ckpt::kExitDifferent) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("tensor    complex: not read in the first: a tensor in a "),
                          HasSubstr("; not read in the second: "), HasSubstr("equal tensors: 1,"),
                          Not(HasSubstr("the same state"))));
}

// torch and DCP store the other one of two tied tensors.
TEST_F(HuggingFaceCommandTest, TiedTensorsAreEqualWhicheverIsStored) {
  const std::string copy = CopyOf(HfFixture("gpt2.hf"));
  for (const std::string format : {"dcp", "torch"}) {
    ASSERT_EQ(Run({"convert", copy, In(format), "--to=" + format}), 0) << err_;
    EXPECT_EQ(Run({"diff", copy, In(format)}), ckpt::kExitOk) << out_;
    EXPECT_THAT(out_, HasSubstr("1 as other names of the same tensors"));
    EXPECT_EQ(Run({"diff", In(format), copy}), ckpt::kExitOk) << out_;
  }
  Safetensors file = Safetensors::Read(copy + "/model.safetensors");
  file.data[file.header["transformer.wte.weight"]["data_offsets"][0]] ^= 1;
  file.Write(copy + "/model.safetensors");
  EXPECT_EQ(Run({"diff", copy, In("dcp")}), ckpt::kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("transformer.wte.weight: 1 element differs"));
  EXPECT_EQ(Run({"diff", In("dcp"), copy}), ckpt::kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("lm_head.weight: 1 element differs"));
}

}  // namespace
}  // namespace tessera
