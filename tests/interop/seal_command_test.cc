// `ckpt seal`, and what is proven by a seal.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "storage/s3/testing/s3_server.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr char kSealedGpt2[] = "tests/interop/pytorch/gpt2.hf";

class SealCommandTest : public testing::ForeignTest {
 protected:
  nlohmann::json Json() const { return nlohmann::json::parse(out_); }

  static void Write(const std::string& path, const std::string& contents) {
    WriteFile(path, contents);
  }

  static void Flip(const std::string& path, size_t offset) {
    std::string contents = ReadFile(path);
    contents.at(offset) ^= 1;
    Write(path, contents);
  }

  static std::map<std::string, std::string> Files(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) files[entry.path()] = ReadFile(entry.path());
    }
    return files;
  }

  std::vector<std::string> Damaged(const std::string& path) {
    std::vector<std::string> places;
    EXPECT_EQ(Run({"verify", path, "--json"}), ckpt::kExitDifferent) << out_ << err_;
    const nlohmann::json report = Json();
    for (const auto& place : report["damage"]) {
      places.push_back(absl::StrCat(
          place["file"].get<std::string>(), " ", place["offset"].get<uint64_t>(), " ",
          place["tensor"].get<std::string>(), ": ", place["message"].get<std::string>()));
    }
    return places;
  }
};

// Each format, folders and files: sealed, read as before, verified, and noticed when a byte of any
// of its files changes.
TEST_F(SealCommandTest, EveryFormatCanBeSealed) {
  const std::pair<std::string, std::string> kCheckpoints[] = {
      {kSealedGpt2, "hf"},
      {"tests/interop/deepspeed/universal", "deepspeed"},
      {"tests/interop/megatron/gpt2_tp2_pp2", "megatron"},
      {"tests/interop/paddle/testdata/mp2_pp2", "paddle"},
      {"tests/interop/internevo/tp2", "internevo"},
      {"tests/interop/infinitrain/llama3/checkpoint_step_000003", "infinitrain"},
      {"convert/formats/dcp/testdata/one", "dcp"},
      {"convert/formats/torch/testdata/training.pt", "torch"},
      {"tests/interop/pytorch/llama3_untied.model.bin", "llmc"},
      {"convert/formats/gguf/testdata/llama3_untied/model.gguf", "gguf"}};
  for (const auto& [from, format] : kCheckpoints) {
    SCOPED_TRACE(format);
    const bool is_file = fs::is_regular_file(from);
    const std::string path =
        CopyOf(from, format + (is_file ? from.substr(from.rfind('/') + 1) : ""));
    const auto before = Files(is_file ? folder_.string() : path);
    ASSERT_EQ(Run({"inspect", path, "--json"}), 0) << err_;
    const std::string contents = out_;
    ASSERT_EQ(Run({"seal", path, "--json"}), 0) << err_;
    const auto report = Json();
    const std::string seal = is_file ? path + ".tessera.seal" : path + "/tessera.seal";
    EXPECT_EQ(report["seal"], seal);
    EXPECT_EQ(report["format"], format);
    if (!is_file) EXPECT_EQ(report["files"], before.size());
    EXPECT_EQ(report["tensors"].get<int>() > 0, true);
    auto after = Files(is_file ? folder_.string() : path);
    const std::string bytes = after[seal];
    after.erase(seal);
    EXPECT_TRUE(after == before) << "a file was touched";
    // Readers see no difference, but for digests.
    ASSERT_EQ(Run({"inspect", path, "--json"}), 0) << err_;
    auto sealed = Json(), unsealed = nlohmann::json::parse(contents);
    for (auto* json : {&sealed, &unsealed}) {
      for (auto& tensor : (*json)["tensors"]) tensor.erase("digest");
    }
    EXPECT_EQ(sealed, unsealed);
    EXPECT_EQ(sealed["format"], format);
    ASSERT_EQ(Run({"ls", path, "--json"}), 0) << err_;
    const auto listed = Json()[0];
    EXPECT_EQ(listed["directory"], path);
    EXPECT_EQ(listed["format"], format);
    EXPECT_EQ(listed["step"], sealed["step"]);
    EXPECT_EQ(Run({"verify", path}), 0) << out_;
    EXPECT_THAT(out_, AllOf(HasSubstr("was written: sizes, CRC-32C and SHA-256"), HasSubstr(seal)));
    EXPECT_EQ(Run({"verify", path, "--digests", "--json"}), 0) << out_;
    EXPECT_GE(Json()["digests_verified"], report["tensors"]) << "without elements, none is needed";
    EXPECT_EQ(Json()["digests_missing"], 0);
    EXPECT_EQ(Run({"seal", path, "--overwrite"}), 0) << err_;
    EXPECT_EQ(ReadFile(seal), bytes) << "sealed again, other bytes";
    const std::map<std::string, std::string> files =
        is_file ? std::map<std::string, std::string>{{path, ReadFile(path)}} : before;
    for (const auto& [file, good] : files) {
      if (good.empty()) continue;
      Flip(file, good.size() / 2);
      const std::vector<std::string> places = Damaged(path);
      ASSERT_EQ(places.size(), 1) << file;
      EXPECT_THAT(places[0],
                  ContainsRegex(absl::StrCat(" ", good.size() / 2, " .*checksum of bytes ", ".0, ",
                                             good.size(), ")")));
      Write(file, good);
    }
    EXPECT_EQ(Run({"verify", path}), 0) << out_;
  }
}

TEST_F(SealCommandTest, WhatHasChangedIsNamed) {
  const std::string path = CopyOf(kSealedGpt2, "hf"), weights = path + "/model.safetensors";
  EXPECT_EQ(Run({"verify", path}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("damage to the contents cannot be detected (ckpt seal writes"));
  ASSERT_EQ(Run({"seal", path}), 0) << err_;
  EXPECT_THAT(out_, ContainsRegex("/hf/tessera.seal: written for .*/hf \\(hf\\), .* in [0-9]+ "
                                  "files, digests of [0-9]+ tensors"));
  const std::string good = ReadFile(weights);
  // The last byte is the last tensor's.
  Flip(weights, good.size() - 1);
  std::vector<std::string> places = Damaged(path);
  ASSERT_EQ(places.size(), 1);
  EXPECT_THAT(places[0],
              ContainsRegex(absl::StrCat("^model.safetensors ", good.size() - 1,
                                         " transformer\\.[a-z0-9_.]+: checksum of bytes")));
  Write(weights, good + "more");
  EXPECT_THAT(Damaged(path),
              ElementsAre(HasSubstr(absl::StrCat("size: expected ", good.size(), " bytes, found ",
                                                 good.size() + 4))));
  Write(weights, good.substr(0, good.size() - 1));
  EXPECT_THAT(Damaged(path), ElementsAre(HasSubstr("size: expected")));
  // A forger changes the weights by the polynomial of CRC-32C, which keeps the checksum.
  std::string forged = good;
  for (int k = 0; k < 33; ++k) {
    if ((0x11EDC6F41 >> (32 - k) & 1) != 0) forged[good.size() - 8 + k / 8] ^= 1 << k % 8;
  }
  Write(weights, forged);
  EXPECT_THAT(Damaged(path), ElementsAre(HasSubstr("SHA-256 of bytes [0, ")));
  // What the format needs in order to be recognised is missing, too.
  for (const std::string& file : {weights, path + "/config.json"}) {
    const std::string contents = file == weights ? good : ReadFile(file);
    fs::remove(file);
    places = Damaged(path);
    ASSERT_EQ(places.size(), 1);
    EXPECT_THAT(places[0],
                AllOf(HasSubstr(file.substr(path.size() + 1)), HasSubstr("No such file")));
    Write(file, contents);
  }
  fs::create_directories(path + "/below");
  Write(path + "/below/extra.bin", "x");
  EXPECT_THAT(Damaged(path),
              ElementsAre(AllOf(HasSubstr("below/extra.bin"), HasSubstr("not in the seal"))));
  fs::remove_all(path + "/below");
  EXPECT_EQ(Run({"verify", path}), 0) << out_;
}

// The seal itself: refused in every other state, and never taken for what it is not.
TEST_F(SealCommandTest, ADamagedSealIsDamage) {
  const std::string path = CopyOf(kSealedGpt2, "hf"), seal = path + "/tessera.seal";
  ASSERT_EQ(Run({"seal", path}), 0) << err_;
  EXPECT_EQ(Run({"seal", path}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("tessera.seal exists; --overwrite replaces it"));
  const std::string good = ReadFile(seal);
  for (const std::string& bad : {good.substr(0, good.size() / 2), std::string(), good + "x"}) {
    Write(seal, bad);
    EXPECT_EQ(Run({"verify", path}), ckpt::kExitDifferent);
    EXPECT_THAT(out_, AllOf(HasSubstr("tessera.seal"), HasSubstr("DAMAGED in 1 place")));
    EXPECT_EQ(Run({"inspect", path}), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("The seal is not used: "));
    EXPECT_EQ(Run({"seal", path}), ckpt::kExitUsage);
  }
  EXPECT_EQ(Run({"seal", path, "--overwrite"}), 0) << err_;
  EXPECT_EQ(ReadFile(seal), good);
  const std::string own = In("own");
  ASSERT_EQ(Run({"convert", path, own, "--to=tessera"}), 0) << err_;
  EXPECT_EQ(Run({"seal", own}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("needs no seal"));
  EXPECT_EQ(Run({"seal", In("nothing")}), ckpt::kExitUsage);
}

TEST_F(SealCommandTest, DamageIsNotSealed) {
  const std::string path = In("training.pt");
  std::string zip = ReadFile("convert/formats/torch/testdata/training.pt");
  zip[zip.size() / 4] ^= 1;
  Write(path, zip);
  EXPECT_EQ(Run({"seal", path}), ckpt::kExitDifferent) << out_ << err_;
  EXPECT_FALSE(fs::exists(path + ".tessera.seal"));
}

// A conversion proves itself: by the digests of the seal, and nothing is read for it.
TEST_F(SealCommandTest, AConversionIsComparedWithTheSeal) {
  const std::string path = CopyOf(kSealedGpt2, "hf"), own = In("own"), again = In("again");
  ASSERT_EQ(Run({"seal", path, "--json"}), 0) << err_;
  const auto tensors = Json()["tensors"];
  ASSERT_EQ(Run({"convert", path, own, "--to=tessera", "--topology=tp2_pp2"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr(absl::StrCat("the digests of all ", tensors.get<int>(), " tensors")));
  ASSERT_EQ(Run({"convert", path, again, "--to=hf", "--json"}), 0) << err_;
  EXPECT_EQ(Json()["digests_compared"], tensors);
  // Same size, other contents: only reading shows it.
  const std::string weights = path + "/model.safetensors", good = ReadFile(weights);
  Flip(weights, good.size() - 1);
  EXPECT_EQ(Run({"diff", path, own}), 0) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr(absl::StrCat("equal: ", tensors.get<int>(),
                                           " by the digests in manifest and seal, without reading "
                                           "the files")));
  EXPECT_EQ(Run({"diff", path, own, "--data"}), ckpt::kExitDifferent);
  // A conversion of it is refused.
  EXPECT_EQ(Run({"convert", path, In("new"), "--to=tessera"}), ckpt::kExitDifferent) << out_;
  EXPECT_THAT(err_, HasSubstr("logical digest"));
  EXPECT_EQ(Run({"convert", path, In("new"), "--to=hf"}), ckpt::kExitDifferent) << out_;
  // With another size, the seal is no longer believed.
  const std::string file =
      CopyOf("convert/formats/gguf/testdata/llama3_untied/model.gguf", "m.gguf");
  ASSERT_EQ(Run({"seal", file}), 0) << err_;
  Write(file, ReadFile(file) + "x");
  EXPECT_EQ(Run({"inspect", file}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("The seal is not used: m.gguf had"));
}

// The newest checkpoint of a run, and one that cannot be written to.
TEST_F(SealCommandTest, OfARunTheNewestIsMeant) {
  for (const std::string step : {"checkpoint-5", "checkpoint-10"}) {
    fs::create_directories(In("run"));
    CopyOf(kSealedGpt2, "run/" + step);
  }
  ASSERT_EQ(Run({"seal", In("run"), "--json"}), 0) << err_;
  EXPECT_EQ(Json()["seal"], In("run/checkpoint-10/tessera.seal"));
  // It stays the newest, whatever becomes of it.
  fs::remove(In("run/checkpoint-10/config.json"));
  fs::remove(In("run/checkpoint-10/model.safetensors"));
  EXPECT_EQ(Damaged(In("run")).size(), 2);
}

TEST_F(SealCommandTest, InAnObjectStore) {
  const s3::S3Server server({.region = "us-east-1"});
  setenv("AWS_ACCESS_KEY_ID", "TESTKEY", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "a/secret+key", 1);
  const std::string endpoint = "--s3-endpoint=" + server.endpoint();
  for (const std::string format : {"hf", "gguf"}) {
    const std::string place = "s3://bucket/models/a." + format;
    ASSERT_EQ(Run({"convert", kSealedGpt2, place, "--to=" + format, endpoint}), 0) << err_;
    ASSERT_EQ(Run({"seal", place, endpoint}), 0) << err_;
    EXPECT_EQ(Run({"seal", place, endpoint}), ckpt::kExitUsage);
    EXPECT_EQ(Run({"seal", place, endpoint, "--overwrite"}), 0) << err_;
    EXPECT_EQ(Run({"verify", place, endpoint, "--digests"}), 0) << out_ << err_;
    EXPECT_THAT(out_, HasSubstr("tessera.seal was written"));
    EXPECT_EQ(Run({"diff", place, kSealedGpt2, endpoint}), 0) << out_ << err_;
  }
}

}  // namespace
}  // namespace tessera
