#include "models/llmc.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compute/comm/threads/thread_world.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/parallel/tensor_parallel.h"
#include "gtest/gtest.h"
#include "models/layers/model.h"
#include "models/model_config.h"
#include "models/testing/test_model.h"

namespace tessera {
namespace {

std::string Fixture(const std::string& name) { return "tests/fixtures/pytorch/" + name; }

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

// A temporary folder for each test.
class LlmcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string(info->test_suite_name()) + "." + info->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::unique_ptr<Model> Make(const ModelConfig& config, DType dtype, const StageLayers& stage = {},
                              const TensorParallel& tensor_parallel = kNoTensorParallel) {
    ModelOptions options;
    options.tensor_parallel = &tensor_parallel;
    options.compute_dtype = dtype;
    options.with_gradients = false;
    options.stage = stage;
    return testing::MakeTestModel(config, options, *backend_);
  }
  // Imports the file into a fresh model of its own config and exports that.
  void ExpectRoundTrip(const std::string& path, DType compute_dtype) {
    const auto info = ReadLlmcInfo(path);
    ASSERT_TRUE(info.ok()) << info.status();
    const auto model = Make(info->config, compute_dtype);
    const ParameterSet& parameters = model->parameters();
    auto status = ImportLlmc(path, info->config, parameters, parameters.values());
    ASSERT_TRUE(status.ok()) << status;
    const std::string copy = folder_ / "copy.bin";
    status = ExportLlmc(copy, info->config, info->options, parameters, parameters.values());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(ReadFile(copy) == ReadFile(path)) << path;
  }

  std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
  std::filesystem::path folder_;
};

std::string WithField(std::string file, int field, int32_t value) {
  std::memcpy(file.data() + 4 * field, &value, sizeof(value));
  return file;
}

TEST_F(LlmcTest, RoundTripsBitForBitInFp32) {
  for (const char* name : {"gpt2", "llama3_tied", "llama3_untied"}) {
    ExpectRoundTrip(Fixture(std::string(name) + ".model.bin"), DType::kF32);
  }
}

TEST_F(LlmcTest, RoundTripsBitForBitInBf16) {
  for (const char* name : {"gpt2", "llama3_untied"}) {
    const std::string path = Fixture(std::string(name) + ".model.bin");
    auto info = ReadLlmcInfo(path);
    ASSERT_TRUE(info.ok()) << info.status();
    const auto model = Make(info->config, DType::kF32);
    const ParameterSet& parameters = model->parameters();
    auto status = ImportLlmc(path, info->config, parameters, parameters.values());
    ASSERT_TRUE(status.ok()) << status;
    info->options.dtype = DType::kBF16;
    const std::string version5 = folder_ / "version5.bin";
    status = ExportLlmc(version5, info->config, info->options, parameters, parameters.values());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(ReadFile(version5)[4], 5);
    EXPECT_EQ(ReadFile(version5).size() - 1024, (ReadFile(path).size() - 1024) / 2);
    ExpectRoundTrip(version5, DType::kBF16);
    ExpectRoundTrip(version5, DType::kF32);
  }
}

// llm.c truncates 1.3, 1e-5 and 50.0 to 1, 0 and 50.
TEST_F(LlmcTest, TruncatedRealsAreDetectedAndKept) {
  std::string file = ReadFile(Fixture("llama3_untied.model.bin"));
  file = WithField(WithField(WithField(file, 8, 1), 10, 0), 11, 50);
  const std::string path = Write("truncated_reals.bin", file);
  const auto info = ReadLlmcInfo(path);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->options.real_encoding, LlmcRealEncoding::kTruncated);
  EXPECT_EQ(info->config.ffn_multiplier(), 1.3);
  EXPECT_EQ(info->config.ffn_hidden_size(), 56);
  EXPECT_EQ(info->config.norm_epsilon(), 1e-5);
  EXPECT_EQ(info->config.rotary_base(), 50);
  ExpectRoundTrip(path, DType::kF32);
}

TEST_F(LlmcTest, FloatBitsAreReadAsTheDecimalsThatWereMeant) {
  const auto info = ReadLlmcInfo(Fixture("llama3_untied.model.bin"));
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->options.real_encoding, LlmcRealEncoding::kFloatBits);
  EXPECT_EQ(info->config.ffn_multiplier(), 1.3);
  EXPECT_EQ(info->config.norm_epsilon(), 1e-5);
  EXPECT_EQ(info->config.rotary_base(), 50);
  EXPECT_EQ(info->config.num_query_groups(), 2);
  EXPECT_TRUE(info->config.use_rope_scaling());
}

TEST_F(LlmcTest, AnyPartOfAModelTakesItsPart) {
  for (const char* name : {"gpt2", "llama3_untied"}) {
    const std::string path = Fixture(std::string(name) + ".model.bin");
    const auto info = ReadLlmcInfo(path);
    ASSERT_TRUE(info.ok()) << info.status();
    const auto whole = Make(info->config, DType::kF32);
    ASSERT_TRUE(
        ImportLlmc(path, info->config, whole->parameters(), whole->parameters().values()).ok());
    const StageLayers stages[] = {{.last_layer = 1, .has_head = false},
                                  {.first_layer = 1, .has_embedding = false}};
    size_t found = 0;
    for (const StageLayers& stage : stages) {
      const auto part = Make(info->config, DType::kF32, stage);
      ASSERT_TRUE(
          ImportLlmc(path, info->config, part->parameters(), part->parameters().values()).ok());
      for (const Parameter* p : part->parameters().parameters()) {
        for (const Parameter* w : whole->parameters().parameters()) {
          if (w->pieces[0].name != p->pieces[0].name) continue;
          testing::ExpectBitwiseEqual(p->value, w->value, p->pieces[0].name);
          ++found;
        }
      }
    }
    EXPECT_GE(found, whole->parameters().parameters().size());
  }
}

// fp32 master weights in the parameters' layout are initialised from all bits of the file.
TEST_F(LlmcTest, FillsMasterWeightsOfABf16Model) {
  const std::string path = Fixture("gpt2.model.bin");
  const auto info = ReadLlmcInfo(path);
  ASSERT_TRUE(info.ok()) << info.status();
  const auto bf16 = Make(info->config, DType::kBF16);
  const auto fp32 = Make(info->config, DType::kF32);
  Tensor master(DType::kF32, {bf16->parameters().flat_elements()});
  ASSERT_TRUE(ImportLlmc(path, info->config, bf16->parameters(), master).ok());
  ASSERT_TRUE(ImportLlmc(path, info->config, fp32->parameters(), fp32->parameters().values()).ok());
  testing::ExpectBitwiseEqual(master, fp32->parameters().values(), "master weights");
}

TEST_F(LlmcTest, EveryTruncationAndEveryTrailingByteIsDataLoss) {
  const std::string file = ReadFile(Fixture("gpt2.model.bin"));
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1023}, size_t{1024}, size_t{1025},
                            file.size() / 2, file.size() - 4, file.size() - 1}) {
    const auto info = ReadLlmcInfo(Write("short.bin", file.substr(0, size)));
    EXPECT_EQ(info.status().code(), absl::StatusCode::kDataLoss) << size;
    const std::string message(info.status().message());
    EXPECT_NE(message.find("truncated: expected "), std::string::npos) << message;
    EXPECT_NE(message.find("found " + std::to_string(size)), std::string::npos) << message;
  }
  const auto info = ReadLlmcInfo(Write("long.bin", file + "x"));
  EXPECT_EQ(info.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(info.status().message())
                .find("trailing bytes: expected 36416 bytes, found "
                      "36417"),
            std::string::npos)
      << info.status();
}

TEST_F(LlmcTest, WrongMagicAndVersionSayWhatWasExpected) {
  const std::string file = ReadFile(Fixture("gpt2.model.bin"));
  const auto magic = ReadLlmcInfo(Write("magic.bin", WithField(file, 0, 20240520)));
  EXPECT_EQ(magic.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(magic.status().message())
                .find("expected 20240326 (GPT-2) or 20240803 (Llama-3), found 20240520"),
            std::string::npos)
      << magic.status();
  const auto version = ReadLlmcInfo(Write("version.bin", WithField(file, 1, 4)));
  EXPECT_EQ(version.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(version.status().message()).find("expected 3 (fp32) or 5 (bf16), found 4"),
            std::string::npos)
      << version.status();
}

// No header crashes the reader or makes it allocate; every field that the model depends on is
// checked.
TEST_F(LlmcTest, HostileHeaderFieldsAreDataLoss) {
  for (const std::string name : {"gpt2", "llama3_untied"}) {
    const std::string file = ReadFile(Fixture(name + ".model.bin"));
    constexpr int kLastSizeField = 7;
    for (int field = 2; field <= 15; ++field) {
      for (const int32_t value : {INT32_MIN, -1, 0, 1 << 30, INT32_MAX, 0x7fc00000}) {
        const auto info = ReadLlmcInfo(Write("hostile.bin", WithField(file, field, value)));
        if (field <= kLastSizeField && !(name == "llama3_untied" && field == 2)) {
          EXPECT_EQ(info.status().code(), absl::StatusCode::kDataLoss)
              << name << " field " << field << " = " << value << ": " << info.status();
        } else if (!info.ok()) {
          EXPECT_EQ(info.status().code(), absl::StatusCode::kDataLoss) << info.status();
        }
      }
    }
  }
}

TEST_F(LlmcTest, AnotherModelIsRefusedBeforeAnythingIsWritten) {
  const std::string path = Fixture("gpt2.model.bin");
  auto info = ReadLlmcInfo(path);
  ASSERT_TRUE(info.ok()) << info.status();
  ModelConfig other = info->config;
  other.set_num_layers(3);
  other.set_max_position_embeddings(32);
  const auto model = Make(other, DType::kF32);
  const auto status = ImportLlmc(path, other, model->parameters(), model->parameters().values());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()),
            path +
                ": num_layers is 2 in the file and 3 in the model; max_position_embeddings is "
                "13 in the file and 32 in the model");
  EXPECT_EQ(backend_->SumOfSquares({model->parameters().values()}), 0);

  const ModelConfig llama = testing::SmallLlama3(true);
  const auto llama_model = Make(llama, DType::kF32);
  const auto resolved = ResolveModelConfig(llama);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(std::string(ImportLlmc(path, *resolved, llama_model->parameters(),
                                   llama_model->parameters().values())
                            .message()),
            path + ": architecture is GPT2 in the file and LLAMA3 in the model");
}

TEST_F(LlmcTest, ATiedModelRefusesAHeadOfItsOwn) {
  auto info = ReadLlmcInfo(Fixture("llama3_untied.model.bin"));
  ASSERT_TRUE(info.ok()) << info.status();
  info->config.set_untie_embeddings_and_output_weights(false);
  const auto model = Make(info->config, DType::kF32);
  const auto status = ImportLlmc(Fixture("llama3_untied.model.bin"), info->config,
                                 model->parameters(), model->parameters().values());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(ImportLlmc(Fixture("llama3_tied.model.bin"), info->config, model->parameters(),
                         model->parameters().values())
                  .ok());
}

TEST_F(LlmcTest, MissingFilesAndFolders) {
  EXPECT_EQ(ReadLlmcInfo(folder_ / "none.bin").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadLlmcInfo(folder_).status().code(), absl::StatusCode::kInvalidArgument);
  const auto info = ReadLlmcInfo(Fixture("gpt2.model.bin"));
  ASSERT_TRUE(info.ok()) << info.status();
  const auto model = Make(info->config, DType::kF32);
  EXPECT_EQ(ExportLlmc(folder_ / "none" / "model.bin", info->config, info->options,
                       model->parameters(), model->parameters().values())
                .code(),
            absl::StatusCode::kNotFound);
}

// The shards of every rank are filled with their parts; one process with all of them writes the
// same file again.
TEST_F(LlmcTest, ShardsAreFilledFromTheFileAndMakeItAgain) {
  for (const std::string name : {"gpt2", "llama3_tied", "llama3_untied"}) {
    const std::string file = Fixture(name + ".model.bin");
    const auto info = ReadLlmcInfo(file);
    ASSERT_TRUE(info.ok()) << info.status();
    ModelConfig config = info->config;
    config.set_untie_embeddings_and_output_weights(name == "llama3_untied");
    ThreadWorld world(2);
    const absl::Status status = world.Run([&](Communicator& comm) {
      const auto all = Make(config, DType::kF32, {}, TensorParallel(nullptr, 2, false));
      const auto part = Make(config, DType::kF32, {}, TensorParallel(&comm, 2, false));
      for (const Model* model : {all.get(), part.get()}) {
        const ParameterSet& parameters = model->parameters();
        const absl::Status read = ImportLlmc(file, config, parameters, parameters.values());
        EXPECT_TRUE(read.ok()) << read;
      }
      std::map<std::string, TensorView> values;
      for (const Parameter* parameter : all->parameters().parameters()) {
        EXPECT_TRUE(values.emplace(parameter->key, parameter->value).second) << parameter->key;
      }
      EXPECT_LT(part->parameters().flat_elements(), all->parameters().flat_elements());
      for (const Parameter* parameter : part->parameters().parameters()) {
        testing::ExpectBitwiseEqual(parameter->value, values.at(parameter->key), parameter->key);
      }
      if (comm.rank() != 0) return absl::OkStatus();
      const absl::Status written = ExportLlmc(folder_ / name, config, info->options,
                                              all->parameters(), all->parameters().values());
      EXPECT_TRUE(written.ok()) << written;
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(ReadFile(folder_ / name), ReadFile(file)) << name;
  }
}

TEST_F(LlmcTest, WhatCannotBeExportedLeavesNoFile) {
  const auto info = ReadLlmcInfo(Fixture("gpt2.model.bin"));
  ASSERT_TRUE(info.ok()) << info.status();
  const auto half = Make(info->config, DType::kF32, {.last_layer = 1});
  const std::string path = folder_ / "model.bin";
  const auto sharded = ExportLlmc(path, info->config, info->options, half->parameters(),
                                  half->parameters().values());
  EXPECT_EQ(sharded.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(sharded.message()).find("transformer.h.1.ln_1.weight: 0 of 16"),
            std::string::npos)
      << sharded;
  ModelConfig wide = info->config;
  wide.set_ffn_hidden_size(65);
  const auto model = Make(wide, DType::kF32);
  EXPECT_EQ(ExportLlmc(path, wide, info->options, model->parameters(), model->parameters().values())
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace tessera
