#include "convert/formats/gguf/gguf.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/models.h"
#include "convert/core/output.h"
#include "convert/formats/gguf/gguf_file.h"
#include "convert/testing/packed_folder.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"
#include "storage/testing/memory_storage.h"
#include "tokenizer/byte_tokenizer.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;

constexpr char kFile[] = "model.gguf";

// What PyPI's gguf has written.
std::string Written(const std::string& name) {
  return OrFail(ReadWholeFile("convert/formats/gguf/testdata/" + name + "/model.gguf"));
}

GgufHeader HeaderOf(const std::string& bytes) { return OrFail(ReadGgufHeader(StringFile(bytes))); }

std::map<std::string, GgufValue> MetadataOf(const std::string& bytes) {
  const GgufHeader header = HeaderOf(bytes);
  return {header.metadata.begin(), header.metadata.end()};
}

// The bytes of each tensor, with its type and shape before them.
std::map<std::string, std::string> TensorsOf(const std::string& bytes) {
  std::map<std::string, std::string> tensors;
  for (const GgufTensor& tensor : HeaderOf(bytes).tensors) {
    const auto size = static_cast<size_t>(ElementCount(tensor.shape) * ElementSize(tensor.dtype));
    tensors[tensor.name] = std::to_string(static_cast<int>(tensor.dtype)) +
                           ShapeToString(tensor.shape) + bytes.substr(tensor.offset_bytes, size);
  }
  return tensors;
}

absl::StatusOr<std::unique_ptr<ForeignStorage>> Open(const std::string& bytes) {
  const std::shared_ptr<Storage> storage = FolderOf({{kFile, bytes}});
  TESSERA_ASSIGN_OR_RETURN(auto checkpoint, ReadGguf(*storage, kFile));
  return ForeignStorage::Create(storage, std::move(checkpoint));
}

ModelConfig ConfigIn(const std::string& bytes) {
  const auto checkpoint = ReadGguf(*FolderOf({{kFile, bytes}}), kFile);
  EXPECT_OK(checkpoint);
  if (!checkpoint.ok()) return {};
  return OrFail(ConfigOf(checkpoint->description.model()));
}

// A file that is written from another one.
std::string Rewritten(const std::string& bytes, const PlanOptions& options) {
  const auto source = OrFail(Open(bytes));
  const auto checkpoint = Checkpoint::Open(*source, "");
  EXPECT_OK(checkpoint);
  const auto files = PlanGguf(checkpoint->manifest(), options);
  EXPECT_OK(files);
  if (!files.ok()) return "";
  MemoryStorage storage;
  EXPECT_OK(WriteOutput(*checkpoint, *files, storage, "", {}));
  const auto file = OrFail(storage.Open(kFile));
  std::string contents(file->size_bytes(), '\0');
  EXPECT_OK(file->ReadAt(0, std::as_writable_bytes(std::span(contents))));
  return contents;
}

TEST(GgufTest, TheMetadataIsTheModel) {
  const ModelConfig gpt2 = ConfigIn(Written("gpt2"));
  EXPECT_EQ(gpt2.architecture(), ModelConfig::GPT2);
  EXPECT_EQ(gpt2.num_layers(), 2);
  EXPECT_EQ(gpt2.vocab_size(), 61);
  EXPECT_EQ(gpt2.max_position_embeddings(), 13);
  EXPECT_EQ(gpt2.norm_epsilon(), 1e-5) << "the decimal that was meant";
  for (const bool is_tied : {true, false}) {
    const ModelConfig llama = ConfigIn(Written(is_tied ? "llama3_tied" : "llama3_untied"));
    EXPECT_EQ(llama.architecture(), ModelConfig::LLAMA3);
    EXPECT_EQ(llama.num_query_groups(), 2);
    EXPECT_EQ(llama.rotary_base(), 1e9);
    EXPECT_EQ(llama.ffn_hidden_size(), 56);
    EXPECT_TRUE(llama.use_rope_scaling());
    EXPECT_EQ(llama.rope_scaling_factor(), 8);
    EXPECT_EQ(llama.untie_embeddings_and_output_weights(), !is_tied);
  }
}

// Every tensor and everything that a file says of its model, against what was written by gguf.
TEST(GgufTest, WritesWhatTheOriginalProgramWrites) {
  for (const std::string name : {"gpt2", "llama3_tied", "llama3_untied"}) {
    SCOPED_TRACE(name);
    const std::string theirs = Written(name), ours = Rewritten(theirs, {});
    EXPECT_EQ(TensorsOf(ours), TensorsOf(theirs));
    std::map<std::string, GgufValue> expected = MetadataOf(theirs), found = MetadataOf(ours);
    for (const auto& [key, value] : expected) {
      if (key == "general.name" || key.starts_with("tokenizer.")) continue;
      EXPECT_TRUE(found[key] == value) << key;
    }
    EXPECT_TRUE(found["tokenizer.ggml.model"] == GgufValue("none"));
    EXPECT_EQ(ours.size() % 32, 0);
  }
}

TEST(GgufTest, VectorsAndPositionsAreF32WhateverTheDType) {
  for (const auto& [dtype, file_type] : {std::pair(DType::kF16, 1), std::pair(DType::kBF16, 32)}) {
    const std::string file = Rewritten(Written("gpt2"), {.dtype = dtype});
    EXPECT_TRUE(MetadataOf(file)["general.file_type"] == GgufValue(int64_t{file_type}));
    for (const GgufTensor& tensor : HeaderOf(file).tensors) {
      const bool is_f32 = tensor.shape.size() == 1 || tensor.name == "position_embd.weight";
      EXPECT_EQ(tensor.dtype, is_f32 ? DType::kF32 : dtype) << tensor.name;
      EXPECT_EQ(tensor.offset_bytes % 32, 0) << tensor.name;
    }
    // What is saved decides where nothing is asked for.
    EXPECT_EQ(TensorsOf(Rewritten(file, {})), TensorsOf(file));
  }
}

// Settings that no Llama has are stated in keys of our own.
TEST(GgufTest, ScalingOfRotaryFrequenciesIsReadBackAsItWas) {
  const std::string theirs = Written("llama3_tied");
  ASSERT_OK_AND_ASSIGN(auto source, Open(theirs));
  Manifest manifest = *ReadManifest(*source, "");
  ModelConfig config = *ConfigOf(manifest.model());
  config.set_rope_scaling_factor(3.3);
  config.set_rope_scaling_low_freq_factor(0.7);
  config.set_rope_scaling_high_freq_factor(5);
  config.set_rope_scaling_original_max_position_embeddings(8);
  *manifest.mutable_model() = DescribeModel(config).config;
  ASSERT_OK_AND_ASSIGN(const auto files, PlanGguf(manifest, {}));
  MemoryStorage storage;
  ASSERT_OK(WriteOutput(CheckpointOfManifest(*source, "", manifest), files, storage, "", {}));
  ASSERT_OK_AND_ASSIGN(const auto read, ReadGguf(storage, kFile));
  EXPECT_EQ(read.description.model().text(), manifest.model().text());
}

class BeginsText final : public ByteTokenizer {
 public:
  std::optional<int32_t> begin_of_text() const override { return 65; }
};

TEST(GgufTest, ATokenizerIsInTheFile) {
  const ByteTokenizer tokenizer;
  GgufHeader header = {.metadata = {{"general.architecture", "gpt2"},
                                    {"gpt2.block_count", int64_t{1}},
                                    {"gpt2.context_length", int64_t{3}},
                                    {"gpt2.embedding_length", int64_t{2}},
                                    {"gpt2.feed_forward_length", int64_t{8}},
                                    {"gpt2.attention.head_count", int64_t{1}},
                                    {"gpt2.attention.layer_norm_epsilon", 1e-5}}};
  const std::pair<const char*, Shape> tensors[] = {
      {"token_embd.weight", {260, 2}},      {"position_embd.weight", {3, 2}},
      {"blk.0.attn_norm.weight", {2}},      {"blk.0.attn_norm.bias", {2}},
      {"blk.0.attn_qkv.weight", {6, 2}},    {"blk.0.attn_qkv.bias", {6}},
      {"blk.0.attn_output.weight", {2, 2}}, {"blk.0.attn_output.bias", {2}},
      {"blk.0.ffn_norm.weight", {2}},       {"blk.0.ffn_norm.bias", {2}},
      {"blk.0.ffn_up.weight", {8, 2}},      {"blk.0.ffn_up.bias", {8}},
      {"blk.0.ffn_down.weight", {2, 8}},    {"blk.0.ffn_down.bias", {2}},
      {"output_norm.weight", {2}},          {"output_norm.bias", {2}}};
  for (const auto& [name, shape] : tensors) {
    header.tensors.push_back({.name = name, .dtype = DType::kF32, .shape = shape});
  }
  std::string bytes = BuildGgufHeader(header);
  bytes.resize(header.tensors.back().offset_bytes + PaddedGgufBytes(header.tensors.back()));
  const std::string file = Rewritten(bytes, {.tokenizer = &tokenizer});
  const auto metadata = MetadataOf(file);
  EXPECT_TRUE(metadata.at("tokenizer.ggml.model") == GgufValue("gpt2"));
  EXPECT_TRUE(metadata.at("tokenizer.ggml.pre") == GgufValue("gpt-2"));
  EXPECT_TRUE(metadata.at("tokenizer.ggml.eos_token_id") == GgufValue(int64_t{256}));
  EXPECT_TRUE(metadata.at("tokenizer.ggml.bos_token_id") == GgufValue(int64_t{256}));
  EXPECT_TRUE(metadata.at("tokenizer.ggml.add_bos_token") == GgufValue(false));
  const BeginsText begins;
  const auto with_begin = MetadataOf(Rewritten(bytes, {.tokenizer = &begins}));
  EXPECT_TRUE(with_begin.at("tokenizer.ggml.bos_token_id") == GgufValue(int64_t{65}));
  EXPECT_TRUE(with_begin.at("tokenizer.ggml.add_bos_token") == GgufValue(true));
  for (const char* key : {"tokens", "token_type", "merges"}) {
    EXPECT_TRUE(metadata.contains(std::string("tokenizer.ggml.") + key)) << key;
  }
  EXPECT_THAT(file, HasSubstr("[PAD259]"));
  EXPECT_EQ(TensorsOf(file), TensorsOf(bytes));
}

TEST(GgufTest, Version2AndAnyAlignmentAreRead) {
  const std::string file = Written("gpt2");
  std::string older = file;
  older[4] = 2;
  EXPECT_OK(Open(older));
  GgufHeader header = {.metadata = {{"general.alignment", int64_t{1}}},
                       .tensors = {{.name = "a", .dtype = DType::kF16, .shape = {3}},
                                   {.name = "b", .dtype = DType::kF16, .shape = {2}}}};
  std::string bytes = BuildGgufHeader(header);
  // The tensors follow each other, and the header, without padding.
  const size_t end = bytes.find(std::string("b\x01\0\0\0", 5)) + 1 + 4 + 8 + 4;
  bytes[end] = 6;
  bytes.resize(end + 8);
  const GgufHeader read = HeaderOf(bytes + std::string(10, 'x'));
  EXPECT_EQ(read.tensors[0].offset_bytes, bytes.size());
  EXPECT_EQ(read.tensors[1].offset_bytes, bytes.size() + 6);
}

// Every length of a file but its own, less the padding at its end, is refused.
TEST(GgufTest, CutOffAnywhereIsDataLossThatNamesTheFile) {
  const std::string file = Written("llama3_tied");
  const GgufTensor last = HeaderOf(file).tensors.back();
  const auto end =
      last.offset_bytes + static_cast<uint64_t>(ElementCount(last.shape) * ElementSize(last.dtype));
  EXPECT_OK(Open(file.substr(0, end)));
  for (size_t length = 0; length < end; length += length < 4096 ? 1 : 97) {
    const absl::Status status = Open(file.substr(0, length)).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << length << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr(kFile)) << length;
  }
  EXPECT_FALSE(Open(file.substr(0, end - 1)).ok());
}

struct Damage {
  std::function<void(GgufHeader& header)> header;  // may be null
  std::function<void(std::string& bytes)> bytes;   // may be null
  std::string said;
  bool is_damage = true;  // else it is not supported
};

// Replaces a number that follows a text.
std::function<void(std::string&)> After(const std::string& text, size_t skip, uint64_t value,
                                        size_t size) {
  return [=](std::string& bytes) {
    const size_t at = bytes.find(text);
    ASSERT_NE(at, bytes.npos) << text;
    std::memcpy(bytes.data() + at + text.size() + skip, &value, size);
  };
}

TEST(GgufTest, HostileHeadersAreRefused) {
  const auto at = [](size_t offset, uint64_t value, size_t size) {
    return [=](std::string& bytes) { std::memcpy(bytes.data() + offset, &value, size); };
  };
  const auto add = [](const char* key, GgufValue value) {
    return [=](GgufHeader& header) { header.metadata.emplace_back(key, value); };
  };
  // Behind a tensor's name: dims, extents, type, offset. Behind a key: type, value.
  constexpr size_t kOffset = 4 + 8 + 8 + 4;
  constexpr char kTensor[] = "blk.1.ffn_up.weight";
  const std::vector<Damage> damages = {
      {nullptr, at(0, 'H', 1), "does not begin with GGUF"},
      {nullptr, at(4, 1, 4), "version 1 of GGUF is not read", false},
      {nullptr, at(4, 4, 4), "version 4 of GGUF is not read", false},
      {nullptr, at(4, 3 << 24, 4), "big-endian", false},
      {nullptr, at(8, uint64_t{1} << 60, 8), "tensors do not fit into the"},
      {nullptr, at(16, uint64_t{1} << 60, 8), "entries do not fit into the"},
      {nullptr, at(24, uint64_t{1} << 62, 8), "more bytes, found"},
      {nullptr, at(24, 0, 8), "the key at byte 24 is empty"},
      {nullptr, at(32, 0xFF, 1), "the key at byte 24 is too long or not UTF-8"},
      {add("other", "a"), After("other", 4, uint64_t{1} << 62, 8), "key other: offset"},
      {add("other", "a"), After("other", 0, 13, 4), "values of type 13 are not known"},
      {add("other", std::vector<int32_t>{13}), After("other", 4, 9, 4),
       "values of type 13 are not known"},
      {add("other", std::vector<int32_t>{1}), After("other", 8, uint64_t{1} << 62, 8),
       "elements do not fit"},
      {add("general.architecture", "llama"), nullptr, "key general.architecture occurs twice"},
      {add("general.alignment", int64_t{24}), nullptr, "general.alignment is not a power of two"},
      {add("general.alignment", "32"), nullptr, "general.alignment is not a power of two"},
      {add("split.count", int64_t{3}), nullptr, "one of 3 files", false},
      {[](GgufHeader& header) { header.tensors[2].name = header.tensors[1].name; }, nullptr,
       "occurs twice"},
      {[](GgufHeader& header) { header.tensors[2].name = ""; }, nullptr, "is empty"},
      {nullptr, After(kTensor, 0, 5, 4), "blk.1.ffn_up.weight: 5 dims"},
      {nullptr, After(kTensor, 4, uint64_t{1} << 63, 8), "is not inside the file"},
      {nullptr, After(kTensor, 4, uint64_t{1} << 62, 8), "is not inside the file"},
      {nullptr, After(kTensor, 20, 12, 4), "blk.1.ffn_up.weight is Q4_K: only", false},
      {nullptr, After(kTensor, 20, 77, 4), "blk.1.ffn_up.weight is of type 77", false},
      {nullptr, After(kTensor, kOffset, 33, 8), "offset 33 is not a multiple of 32"},
      {nullptr, After(kTensor, kOffset, 32, 8), "two tensors overlap at byte"},
      {nullptr, After(kTensor, kOffset, ~uint64_t{31}, 8), "is not inside the file"},
      {[](GgufHeader& header) { header.tensors.back().name = "output.scale"; }, nullptr,
       "tensor output.scale belongs to no parameter", false},
      {[](GgufHeader& header) { header.tensors.erase(header.tensors.begin() + 2); }, nullptr,
       "no file has"},
      {[](GgufHeader& header) { header.metadata[0].second = "mamba"; }, nullptr,
       "general.architecture mamba: gguf's configuration describes a model of another kind", false},
      {[](GgufHeader& header) {
         for (auto& [key, value] : header.metadata) {
           if (key == "general.type") value = "adapter";
         }
       },
       nullptr, "general.type is adapter: only whole models are read", false},
      {nullptr, After("llama.block_count", 4, 1'000'000'000, 4), "layers, but the files have",
       false},
      {nullptr, After("llama.embedding_length", 4, 1'000'000'000, 4), "llama.attention", false},
      {nullptr, After("llama.feed_forward_length", 4, 1 << 30, 4), "more parameters than", false},
      {nullptr, After("llama.context_length", 4, 0, 4), "max_position_embeddings", false},
      {add("llama.expert_count", int64_t{8}), nullptr, "only 0 is supported", false},
      {add("llama.rope.scaling.type", "yarn"), nullptr, "only \"none\" is supported", false},
      {add("llama.rope.scaling.factor", 4.0), nullptr, "scaling.factor is 4, only 1 is", false},
      {add("llama.rope.scale_linear", 8.0), nullptr, "scale_linear is 8, only 1 is", false},
  };
  GgufHeader original = HeaderOf(Written("llama3_untied"));
  std::erase_if(original.metadata, [](const auto& entry) {
    return std::holds_alternative<std::monostate>(entry.second);
  });
  std::erase_if(original.tensors,
                [](const GgufTensor& tensor) { return tensor.name == "rope_freqs.weight"; });
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.said);
    GgufHeader header = original;
    if (damage.header) damage.header(header);
    std::string bytes = BuildGgufHeader(header);
    bytes.resize(header.tensors.back().offset_bytes + PaddedGgufBytes(header.tensors.back()));
    if (damage.bytes) damage.bytes(bytes);
    const absl::Status status = Open(bytes).status();
    EXPECT_EQ(status.code(),
              damage.is_damage ? absl::StatusCode::kDataLoss : absl::StatusCode::kInvalidArgument)
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(damage.said));
    EXPECT_THAT(std::string(status.message()), HasSubstr(kFile));
  }
}

TEST(GgufTest, ValuesOfUnreadKindsAreSkipped) {
  GgufHeader header = HeaderOf(Written("gpt2"));
  std::erase_if(header.metadata, [](const auto& entry) {
    return std::holds_alternative<std::monostate>(entry.second);
  });
  header.metadata.emplace_back("large", "");
  header.metadata.emplace_back("nested", std::vector<int32_t>{5, 1, 0, 7, 5, 0, 0});
  std::string bytes = BuildGgufHeader(header);
  bytes.resize(header.tensors.back().offset_bytes + PaddedGgufBytes(header.tensors.back()));
  After("large", 0, 10, 4)(bytes);  // an unsigned number of 64 bits
  After("large", 4, ~uint64_t{0}, 8)(bytes);
  After("nested", 4, 9, 4)(bytes);  // two arrays of 32-bit numbers: {{7}, {}}
  After("nested", 8, 2, 8)(bytes);
  EXPECT_OK(Open(bytes));
}

// The factors decide which scaling a file has, not what one would guess.
TEST(GgufTest, OtherFactorsThanLlamasAreRefused) {
  std::string file = Written("llama3_tied");
  for (const GgufTensor& tensor : HeaderOf(file).tensors) {
    if (tensor.name != "rope_freqs.weight") continue;
    const float factor = 1.5;
    std::memcpy(file.data() + tensor.offset_bytes, &factor, sizeof(factor));
  }
  EXPECT_THAT(std::string(Open(file).status().message()),
              HasSubstr("rope_freqs.weight is not Llama 3's scaling by 8 from 8192"));
}

TEST(GgufTest, OneFileIsFoundInAFolder) {
  const std::string file = Written("gpt2");
  EXPECT_EQ(*FindGguf(*FolderOf({{"a.gguf", file}, {"b.txt", "x"}}), ""), "a.gguf");
  EXPECT_EQ(*FindGguf(*FolderOf({{"a", file}}), "a"), "a");
  EXPECT_EQ(*FindGguf(*FolderOf({{"a.gguf", "GGU"}}), ""), "");
  EXPECT_EQ(*FindGguf(*FolderOf({{"a.txt", file}}), ""), "");
  EXPECT_THAT(
      std::string(FindGguf(*FolderOf({{"a.gguf", file}, {"b.gguf", file}}), "").status().message()),
      HasSubstr("2 GGUF files: give one of a.gguf, b.gguf"));
}

}  // namespace
}  // namespace tessera::ckpt::convert
