// A manifest comes back as it was, and one that contradicts itself is refused with the place.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/testing/test_manifest.h"

namespace tessera::ckpt {
namespace {

TEST(DType, EveryValueOfTheSchemaIsKnown) {
  const auto* descriptor = DTypeProto_descriptor();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto dtype = static_cast<DType>(descriptor->value(i)->number());
    if (dtype == DType::kUnspecified) continue;
    EXPECT_GT(ElementSize(dtype), 0u);
  }
  EXPECT_EQ(ElementSize(DType::kF64), 8u);
  EXPECT_EQ(ElementSize(DType::kF32), 4u);
  EXPECT_EQ(ElementSize(DType::kBF16), 2u);
  EXPECT_EQ(ElementSize(DType::kF8E4M3), 1u);
  EXPECT_EQ(ElementSize(DType::kUnspecified), 0u);
  EXPECT_EQ(ElementSize(static_cast<DType>(99)), 0u);
}

// The fixture sets every field, so that a new field without a test is detected here.
void ExpectAllFieldsSet(const google::protobuf::Message& message) {
  const auto* descriptor = message.GetDescriptor();
  std::vector<const google::protobuf::FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const auto* field : set) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->is_map() || field->name() == "tensors") continue;
    if (field->is_repeated()) {
      ExpectAllFieldsSet(message.GetReflection()->GetRepeatedMessage(message, field, 0));
    } else {
      ExpectAllFieldsSet(message.GetReflection()->GetMessage(message, field));
    }
  }
  // In version 1.0 the minor version is 0, which is the default and therefore not "set".
  const int unset = descriptor->name() == "Manifest" && kFormatMinor == 0 ? 1 : 0;
  EXPECT_EQ(static_cast<int>(set.size()) + unset, descriptor->field_count())
      << descriptor->full_name();
}

TEST(Manifest, RoundTripsEveryField) {
  const Manifest manifest = FullManifest();
  ExpectAllFieldsSet(manifest);
  const std::string bytes = EncodeManifest(manifest).value();
  ASSERT_OK_AND_ASSIGN(const Manifest decoded, DecodeManifest(bytes));
  EXPECT_EQ(decoded.DebugString(), manifest.DebugString());
  EXPECT_EQ(EncodeManifest(decoded).value(), bytes) << "not deterministic";
  EXPECT_OK(ValidateCoverage(decoded));
}

TEST(Manifest, EncodeStampsTheVersion) {
  Manifest manifest;
  manifest.set_format_major(77);
  const std::string bytes = EncodeManifest(manifest).value();
  EXPECT_EQ(DecodeManifest(bytes)->format_major(), kFormatMajor);
}

TEST(Manifest, MapsAreSerializedInOrder) {
  std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g", "h"};
  Manifest forward, backward;
  for (const auto& name : names) (*forward.mutable_trainer()->mutable_extra())[name] = name;
  std::reverse(names.begin(), names.end());
  for (const auto& name : names) (*backward.mutable_trainer()->mutable_extra())[name] = name;
  EXPECT_EQ(EncodeManifest(forward).value(), EncodeManifest(backward).value());
}

TEST(Manifest, Accessors) {
  const Manifest manifest = FullManifest();
  const LogicalTensor& moment = manifest.tensors(2);
  EXPECT_EQ(GlobalShape(moment), (Shape{6, 8}));
  EXPECT_EQ(ShardCount(moment), 2);
  EXPECT_EQ(ShardBox(moment, 1), (Box{{0, 4}, {6, 4}}));
  EXPECT_EQ(ShardBytes(moment, 1), 96u);
  EXPECT_EQ(ShardCount(manifest.tensors(1)), 0);
  EXPECT_EQ(DataFileName("model", 2, 16), "model-00003-of-00016.safetensors");
  EXPECT_EQ(DataFileName("optimizer", 123455, 200000), "optimizer-123456-of-200000.safetensors");
}

TEST(Manifest, ScalarsAndEmptyTensors) {
  Manifest manifest = FullManifest();
  LogicalTensor& scalar = *manifest.add_tensors();
  scalar.set_name("scalar");
  scalar.set_role(ToProto(TensorRole::kBuffer));
  scalar.set_dtype(ToProto(DType::kI64));
  manifest.mutable_files(0)->set_size_bytes(4096 + 104);
  AddShard({}, 0, 4096 + 96, scalar);
  LogicalTensor& empty = *manifest.add_tensors();
  empty.set_name("empty");
  empty.set_role(ToProto(TensorRole::kBuffer));
  empty.set_dtype(ToProto(DType::kI64));
  empty.add_global_shape(0);
  empty.add_global_shape(5);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  const Manifest decoded = DecodeManifest(bytes).value();
  EXPECT_EQ(ShardBytes(decoded.tensors(4), 0), 8u);
  EXPECT_OK(ValidateCoverage(decoded));
}

// One way to break one rule, and the text that the message must contain.
struct BrokenRule {
  const char* name;
  std::function<void(Manifest&)> damage;
  std::vector<const char*> message;
};

std::vector<BrokenRule> BrokenFileRules() {
  return {
      {"absolute path", [](Manifest& m) { m.mutable_files(0)->set_path("/etc/passwd"); }, {"path"}},
      {"path upwards", [](Manifest& m) { m.mutable_files(0)->set_path("a/../../b"); }, {"path"}},
      {"path with a dot", [](Manifest& m) { m.mutable_files(0)->set_path("./a"); }, {"path"}},
      {"path ends in slash", [](Manifest& m) { m.mutable_files(0)->set_path("a/"); }, {"path"}},
      {"empty path", [](Manifest& m) { m.mutable_files(0)->set_path(""); }, {"path"}},
      {"control character", [](Manifest& m) { m.mutable_files(0)->set_path("a\nb"); }, {"path"}},
      {"long path",
       [](Manifest& m) { m.mutable_files(0)->set_path(std::string(5000, 'a')); },
       {"path"}},
      {"manifest's path",
       [](Manifest& m) { m.mutable_files(0)->set_path("manifest.pb"); },
       {"path"}},
      {"path twice",
       [](Manifest& m) { m.mutable_files(1)->set_path(m.files(0).path()); },
       {"twice"}},
      {"no chunk size",
       [](Manifest& m) { m.mutable_files(0)->set_chunk_bytes(0); },
       {"chunk_bytes"}},
      {"a checksum too few",
       [](Manifest& m) { m.mutable_files(0)->clear_chunk_crc32c(); },
       {"model-00001", "checksums"}},
      {"a checksum too many",
       [](Manifest& m) { m.mutable_files(1)->add_chunk_crc32c(1); },
       {"optimizer-00001", "checksums"}},
      {"hostile file size",
       [](Manifest& m) { m.mutable_files(0)->set_size_bytes(~uint64_t{0}); },
       {"checksums"}},
  };
}

std::vector<BrokenRule> BrokenTensorRules() {
  return {
      {"unknown dtype",
       [](Manifest& m) { m.mutable_tensors(0)->set_dtype(static_cast<DTypeProto>(99)); },
       {"wte.weight", "dtype 99"}},
      {"no dtype", [](Manifest& m) { m.mutable_tensors(0)->clear_dtype(); }, {"dtype"}},
      {"unknown role",
       [](Manifest& m) { m.mutable_tensors(0)->set_role(static_cast<RoleProto>(99)); },
       {"role 99"}},
      {"no role", [](Manifest& m) { m.mutable_tensors(0)->clear_role(); }, {"role"}},
      {"no name", [](Manifest& m) { m.mutable_tensors(0)->clear_name(); }, {"empty"}},
      {"long name",
       [](Manifest& m) { m.mutable_tensors(0)->set_name(std::string(5000, 'a')); },
       {"tensor aaa", "5000 bytes"}},
      {"name like a key",
       [](Manifest& m) { m.mutable_tensors(0)->set_name("a@[0:1]"); },
       {"reserved"}},
      {"reserved name",
       [](Manifest& m) { m.mutable_tensors(0)->set_name("__metadata__"); },
       {"reserved"}},
      {"control character",
       [](Manifest& m) { m.mutable_tensors(0)->set_name("a\tb"); },
       {"tensor a\\u0009b: ", "control"}},
      {"not UTF-8", [](Manifest& m) { m.mutable_tensors(0)->set_name("a\xFF"); }, {"UTF-8"}},
      {"not UTF-8 in a map",
       [](Manifest& m) {
         (*m.mutable_optimizer()->mutable_groups(0)->mutable_options())["\xFF"] = 1;
       },
       {"UTF-8"}},
      {"name twice", [](Manifest& m) { m.mutable_tensors(3)->set_name("wte.weight"); }, {"twice"}},
      {"too many dims",
       [](Manifest& m) { m.mutable_tensors(1)->mutable_global_shape()->Resize(33, 1); },
       {"33 dims"}},
      {"hostile extent",
       [](Manifest& m) { m.mutable_tensors(1)->set_global_shape(0, ~uint64_t{0}); },
       {"too large"}},
      {"hostile product",
       [](Manifest& m) {
         m.mutable_tensors(1)->set_global_shape(0, uint64_t{1} << 62);
         m.mutable_tensors(1)->set_global_shape(1, 4);
       },
       {"overflows"}},
      {"padding of another rank",
       [](Manifest& m) { m.mutable_tensors(0)->add_padded_shape(1); },
       {"padded_shape"}},
      {"padding too small",
       [](Manifest& m) { m.mutable_tensors(0)->set_padded_shape(0, 5); },
       {"padded_shape"}},
      {"alias of nothing",
       [](Manifest& m) { m.mutable_tensors(1)->set_alias_of("x"); },
       {"lm_head.weight", "does not exist"}},
      {"alias of itself",
       [](Manifest& m) { m.mutable_tensors(1)->set_alias_of("lm_head.weight"); },
       {"is an alias itself"}},
      {"alias of another dtype",
       [](Manifest& m) { m.mutable_tensors(1)->set_dtype(ToProto(DType::kF16)); },
       {"another dtype"}},
      {"alias of another shape",
       [](Manifest& m) { m.mutable_tensors(1)->set_global_shape(0, 7); },
       {"another global_shape"}},
      {"alias with a partition",
       [](Manifest& m) { m.mutable_tensors(1)->mutable_partition()->set_layer(1); },
       {"lm_head.weight", "partition"}},
      {"partition of a dim that is not there",
       [](Manifest& m) { m.mutable_tensors(0)->mutable_partition()->set_dim(2); },
       {"wte.weight", "dim 2 of 2"}},
      {"partition of the last dim that a number holds",
       [](Manifest& m) { m.mutable_tensors(0)->mutable_partition()->set_dim(~0u); },
       {"wte.weight", "partition: dim"}},
      {"partition in sections that do not divide",
       [](Manifest& m) { m.mutable_tensors(0)->mutable_partition()->set_sections(4); },
       {"wte.weight", "4 sections do not divide"}},
      {"partition in more sections than an int holds",
       [](Manifest& m) { m.mutable_tensors(0)->mutable_partition()->set_sections(~0u); },
       {"wte.weight", "0 sections"}},
      {"partition of sections of no dim",
       [](Manifest& m) { m.mutable_tensors(2)->mutable_partition()->set_sections(2); },
       {"sections of no dim"}},
      {"partition with padded columns",
       [](Manifest& m) { m.mutable_tensors(0)->mutable_partition()->set_dim(1); },
       {"wte.weight", "padding"}},
      {"partition in a layer and at an end",
       [](Manifest& m) { m.mutable_tensors(0)->mutable_partition()->set_layer(0); },
       {"wte.weight", "at an end"}},
      {"alias with a digest",
       [](Manifest& m) { m.mutable_tensors(1)->mutable_digest(); },
       {"alias"}},
      {"alias with shards",
       [](Manifest& m) {
         AddShard({{0, 0}, {6, 8}}, 1, 0, *m.mutable_tensors(1));
       },
       {"alias"}},
  };
}

std::vector<BrokenRule> BrokenShardRules() {
  const auto shards = [](Manifest& m, int tensor = 0) {
    return m.mutable_tensors(tensor)->mutable_shards();
  };
  return {
      {"file_offset too short",
       [=](Manifest& m) { shards(m)->mutable_file_offset()->RemoveLast(); },
       {"file_offset"}},
      {"file_index too short",
       [=](Manifest& m) { shards(m)->mutable_file_index()->RemoveLast(); },
       {"file_index"}},
      {"global_offset too short",
       [=](Manifest& m) { shards(m)->mutable_global_offset()->RemoveLast(); },
       {"global_offset"}},
      {"shape too long", [=](Manifest& m) { shards(m)->add_shape(1); }, {"shape"}},
      {"shape without the rest", [=](Manifest& m) { shards(m, 1)->add_shape(1); }, {"shape"}},
      {"box outside",
       [=](Manifest& m) { shards(m)->set_global_offset(2, 4); },
       {"shard 1", "dim 0 offset 4"}},
      {"hostile box offset",
       [=](Manifest& m) { shards(m)->set_global_offset(2, ~uint64_t{0}); },
       {"shard 1"}},
      {"hostile box extent",
       [=](Manifest& m) { shards(m)->set_shape(3, ~uint64_t{0}); },
       {"shard 1", "dim 1"}},
      {"unknown file", [=](Manifest& m) { shards(m)->set_file_index(1, 2); }, {"file_index 2"}},
      {"behind the file",
       [=](Manifest& m) { shards(m)->set_file_offset(1, 4096 + 49); },
       {"shard 1", "leave file model-00001"}},
      {"hostile file offset",
       [=](Manifest& m) { shards(m)->set_file_offset(1, ~uint64_t{0}); },
       {"leave file"}},
      {"shared bytes in one tensor",
       [=](Manifest& m) { shards(m)->set_file_offset(1, 4096 + 47); },
       {"wte.weight shard 0", "wte.weight shard 1", "4143"}},
      {"shared bytes of two tensors",
       [=](Manifest& m) { shards(m, 3)->set_file_offset(0, 4096 + 96); },
       {"exp_avg.wte.weight shard 1", "exp_avg_sq.wte.weight shard 0"}},
  };
}

std::vector<BrokenRule> BrokenOtherRules() {
  const auto parameter = [](Manifest& m) { return m.mutable_optimizer()->mutable_parameters(0); };
  return {
      {"unknown group",
       [=](Manifest& m) { parameter(m)->set_group(2); },
       {"wte.weight", "group 2"}},
      {"no parameter name", [=](Manifest& m) { parameter(m)->clear_parameter(); }, {"empty"}},
      {"parameter twice",
       [=](Manifest& m) { *m.mutable_optimizer()->add_parameters() = *parameter(m); },
       {"twice"}},
      {"unknown state tensor",
       [=](Manifest& m) { (*parameter(m)->mutable_states())["exp_avg"] = "nothing"; },
       {"exp_avg", "no tensor nothing"}},
      {"one tensor for two states",
       [=](Manifest& m) {
         (*parameter(m)->mutable_states())["exp_avg"] = "optimizer.exp_avg_sq.wte.weight";
       },
       {"another state too"}},
      {"negative step", [](Manifest& m) { m.mutable_trainer()->set_step(-1); }, {"trainer.step"}},
      {"step that overflows",
       [](Manifest& m) { m.mutable_trainer()->set_step(std::numeric_limits<int64_t>::max()); },
       {"trainer.step"}},
      {"samples that overflow",
       [](Manifest& m) {
         m.mutable_trainer()->mutable_data()->set_consumed_samples(
             std::numeric_limits<int64_t>::max());
       },
       {"trainer.data.consumed_samples"}},
      {"negative samples",
       [](Manifest& m) { m.mutable_trainer()->mutable_data()->set_consumed_samples(-1); },
       {"consumed_samples"}},
      {"negative epoch",
       [](Manifest& m) { m.mutable_trainer()->mutable_data()->set_epoch(-1); },
       {"epoch"}},
  };
}

void ExpectRefused(const std::vector<BrokenRule>& rules) {
  for (const BrokenRule& rule : rules) {
    Manifest manifest = FullManifest();
    rule.damage(manifest);
    const absl::Status status = EncodeManifest(manifest).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << rule.name << ": " << status;
    for (const char* part : rule.message) {
      EXPECT_NE(status.message().find(part), status.message().npos)
          << rule.name << ": \"" << part << "\" is not in: " << status;
    }
  }
}

TEST(ManifestRules, Files) { ExpectRefused(BrokenFileRules()); }
TEST(ManifestRules, Tensors) { ExpectRefused(BrokenTensorRules()); }
TEST(ManifestRules, Shards) { ExpectRefused(BrokenShardRules()); }
TEST(ManifestRules, OptimizerAndTrainer) { ExpectRefused(BrokenOtherRules()); }

TEST(ManifestRules, ParameterWithoutWeightsIsAllowed) {
  Manifest manifest = FullManifest();
  manifest.mutable_optimizer()->mutable_parameters(0)->set_parameter("only.master");
  EXPECT_OK(ValidateManifest(manifest));
}

TEST(ManifestRules, CoverageNamesTensorAndElement) {
  Manifest manifest = FullManifest();
  manifest.mutable_tensors(2)->mutable_shards()->set_shape(1, 3);
  EXPECT_OK(ValidateManifest(manifest));
  EXPECT_EQ(ValidateCoverage(manifest),
            absl::InvalidArgumentError(
                "tensor optimizer.exp_avg.wte.weight: element [0,3] is in no shard"));
}

// Prints the time without asserting it, since it depends on the machine.
TEST(ManifestScale, OneMillionShards) {
  constexpr int kTensors = 1000, kShardsEach = 1000, kFiles = 64;
  constexpr uint64_t kShardBytes = 16 * 64 * 4;
  Manifest manifest;
  for (int f = 0; f < kFiles; ++f) {
    DataFile& file = *manifest.add_files();
    file.set_path(DataFileName("model", f, kFiles));
    file.set_size_bytes(4096 + kShardBytes * (uint64_t{kTensors} * kShardsEach / kFiles));
    file.set_chunk_bytes(1 << 20);
    for (uint64_t at = 0; at < file.size_bytes(); at += 1 << 20) file.add_chunk_crc32c(at);
  }
  std::vector<uint64_t> end(kFiles, 4096);
  int64_t shard = 0;
  for (int t = 0; t < kTensors; ++t) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name("model.layers." + std::to_string(t) + ".weight");
    tensor.set_role(ToProto(TensorRole::kWeight));
    tensor.set_dtype(ToProto(DType::kF32));
    tensor.add_global_shape(16 * kShardsEach);
    tensor.add_global_shape(64);
    for (int64_t s = 0; s < kShardsEach; ++s, ++shard) {
      const uint32_t file = shard % kFiles;
      AddShard({{16 * s, 0}, {16, 64}}, file, end[file], tensor);
      end[file] += kShardBytes;
    }
  }
  const auto now = [] { return std::clock(); };
  const auto ms = [](std::clock_t ticks) {
    return 1e3 * static_cast<double>(ticks) / CLOCKS_PER_SEC;
  };
  const auto start = now();
  ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(std::move(manifest)));
  const auto encoded = now();
  ASSERT_OK_AND_ASSIGN(const Manifest decoded, DecodeManifest(bytes));
  const auto parsed = now();
  EXPECT_OK(ValidateCoverage(decoded));
  std::printf(
      "one million shards: %.1f MB; CPU: encode %.0f ms, decode %.0f ms, coverage %.0f ms\n",
      bytes.size() / 1e6, ms(encoded - start), ms(parsed - encoded), ms(now() - parsed));
}

}  // namespace
}  // namespace tessera::ckpt
