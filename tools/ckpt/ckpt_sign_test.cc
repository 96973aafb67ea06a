// Signatures of checkpoints, and what becomes of them.

#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/testing/s3_server.h"
#include "tools/ckpt/ckpt_run.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

class CkptSignTest : public CkptTest {
 protected:
  // Writes NAME.pem and NAME.pub.
  void MakeKey(const std::string& name, const char* algorithm = "ED25519") {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
        EVP_PKEY_Q_keygen(nullptr, nullptr, algorithm), EVP_PKEY_free);
    ASSERT_NE(key, nullptr);
    std::FILE* file = std::fopen(In(name + ".pem").c_str(), "wb");
    EXPECT_EQ(PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
    std::fclose(file);
    file = std::fopen(In(name + ".pub").c_str(), "wb");
    EXPECT_EQ(PEM_write_PUBKEY(file, key.get()), 1);
    std::fclose(file);
  }

  std::string In(const std::string& name) const { return root_ + "/" + name; }
  std::string Private(const std::string& name) const { return "--key=" + In(name + ".pem"); }
  std::string Public(const std::string& name) const { return "--key=" + In(name + ".pub"); }

  static std::string Read(const std::string& path) { return OrFail(ReadWholeFile(path)); }
  static void Write(const std::string& path, const std::string& contents) {
    std::ofstream(path, std::ios::binary) << contents;
  }

  // Verifying ends with this code, one line, and no other output.
  void ExpectRefused(const std::vector<std::string>& arguments, int code, const std::string& says) {
    EXPECT_EQ(Run(arguments), code) << out_ << err_;
    EXPECT_THAT(err_, HasSubstr(says));
    EXPECT_EQ(std::ranges::count(err_, '\n'), 1) << err_;
    EXPECT_EQ(out_, "");
  }
};

TEST_F(CkptSignTest, AManifestIsSignedAndEachDoubtIsRefused) {
  MustSave("a", 5, 2);
  for (const char* name : {"mine", "other"}) MakeKey(name);
  const std::string step = In("a/step-00000005"), signature = step + "/manifest.sig";
  ExpectRefused({"verify", In("a"), Public("mine")}, kExitDifferent,
                "/manifest.pb is not signed: there is no " + signature);
  EXPECT_EQ(Run({"sign", In("a"), Private("mine")}), kExitOk) << err_;
  EXPECT_THAT(out_,
              HasSubstr(signature + ": the signature of " + step + "/manifest.pb, by the key"));
  EXPECT_EQ(Run({"verify", In("a"), Public("mine")}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("good, "), HasSubstr("the manifest is signed by the key in ")));
  EXPECT_EQ(Run({"verify", step, Public("mine"), "--json"}), kExitOk) << err_;
  EXPECT_EQ(Json()["signed_by"].get<std::string>().size(), 44);
  ExpectRefused({"verify", In("a"), Public("other")}, kExitDifferent, "another key has signed, ");

  const std::string good = Read(signature);
  ExpectRefused({"sign", In("a"), Private("other")}, kExitUsage, "exists; --overwrite replaces it");
  EXPECT_EQ(Run({"sign", In("a"), Private("other"), "--overwrite"}), kExitOk) << err_;
  EXPECT_EQ(Run({"verify", In("a"), Public("other")}), kExitOk) << err_;
  EXPECT_EQ(Run({"sign", In("a"), Private("mine"), "--overwrite"}), kExitOk) << err_;
  EXPECT_EQ(Read(signature), good) << "Ed25519 signs the same bytes the same way";

  // Every byte of the signature counts, and so does its length.
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 1;
    for (const std::string& bytes : {bad, good.substr(0, at)}) {
      Write(signature, bytes);
      EXPECT_EQ(Run({"verify", step, Public("mine")}), kExitDifferent) << at << out_;
    }
  }
  Write(signature, std::string(100'000, 'x'));
  ExpectRefused({"verify", step, Public("mine")}, kExitDifferent, "it is damaged");
  Write(signature, good);
  EXPECT_EQ(Run({"verify", step, Public("mine")}), kExitOk) << err_;

  // A manifest that is valid, and another one.
  EditManifest("a/step-00000005", [](LogicalTensor& tensor) { tensor.clear_digest(); });
  EXPECT_EQ(Run({"verify", step}), kExitOk) << out_;
  ExpectRefused({"verify", step, Public("mine")}, kExitDifferent,
                "one of the two has changed since this key signed");
}

TEST_F(CkptSignTest, KeysThatAreNone) {
  MustSave("a", 5, 1);
  MakeKey("mine");
  MakeKey("curve", "X25519");
  Write(In("garbage.pem"), "-----BEGIN PRIVATE KEY-----\nxyz\n");
  Write(In("locked.pem"), "-----BEGIN ENCRYPTED PRIVATE KEY-----\nxyz\n");
  const std::string a = In("a");
  ExpectRefused({"sign", a, "--key=" + In("none.pem")}, kExitUsage,
                "cannot read the key: cannot open " + In("none.pem") + ": No such file");
  ExpectRefused({"sign", a, "--key=/dev/zero"}, kExitUsage, "/dev/zero: not a regular file");
  ExpectRefused({"sign", a, Private("garbage")}, kExitUsage, "expected an Ed25519 private key");
  ExpectRefused({"sign", a, Private("curve")}, kExitUsage, "expected an Ed25519 private key");
  ExpectRefused({"sign", a, Public("mine")}, kExitUsage, "expected an Ed25519 private key");
  ExpectRefused({"sign", a, Private("locked")}, kExitUsage, "without a password");
  ExpectRefused({"sign", a}, kExitUsage, "sign needs --key");
  EXPECT_EQ(Run({"sign", a, Private("mine")}), kExitOk) << err_;
  ExpectRefused({"verify", a, Private("mine")}, kExitUsage, "expected an Ed25519 public key");
  ExpectRefused({"verify", a, "--key="}, kExitUsage, "expected the path of a key");
}

// No other command, copy or reader is disturbed.
TEST_F(CkptSignTest, ASignatureIsNoPartOfTheCheckpoint) {
  MustSave("a", 5, 2);
  MustSave("a", 6, 2);
  MakeKey("mine");
  ASSERT_EQ(Run({"sign", In("a/step-00000005"), Private("mine")}), kExitOk) << err_;
  EXPECT_EQ(Run({"ls", In("a")}), kExitOk);
  EXPECT_EQ(std::ranges::count(out_, '\n'), 3) << out_;
  EXPECT_EQ(Run({"inspect", In("a/step-00000005")}), kExitOk);
  EXPECT_EQ(Run({"verify", In("a"), "--all"}), kExitOk) << out_;
  EXPECT_EQ(Run({"verify", In("a"), "--all", Public("mine")}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("step-00000005: good"), HasSubstr("step-00000006: DAMAGED"),
                          HasSubstr("step-00000006/manifest.pb is not signed")));
  EXPECT_EQ(Run({"diff", In("a/step-00000005"), In("a/step-00000005")}), kExitOk) << out_;
  EXPECT_EQ(Run({"convert", In("a/step-00000005"), In("torch"), "--to=torch"}), kExitOk) << err_;
  EXPECT_EQ(Run({"reshard", In("a/step-00000005"), In("b"), "--topology=tp2"}), kExitOk) << err_;
  ExpectRefused({"verify", In("b"), Public("mine")}, kExitDifferent, "is not signed");
  fs::copy(In("a"), In("copy"), fs::copy_options::recursive);
  EXPECT_EQ(Run({"verify", In("copy/step-00000005"), Public("mine")}), kExitOk) << err_;
  ASSERT_OK_AND_ASSIGN(const auto folder, CheckpointFolder::Open(In("a")));
  float w[12] = {};
  ASSERT_OK(folder.At(5)->LoadTensor("w", Shard::Of(w, WholeBox({4, 3}))));
  EXPECT_EQ(w[11], 12);
}

TEST_F(CkptSignTest, ItGoesWithItsCheckpoint) {
  MakeKey("mine");
  for (const int step : {5, 6, 7}) MustSave("a", step, 1);
  for (const char* step : {"a/step-00000005", "a/step-00000006", "a/step-00000007"}) {
    ASSERT_EQ(Run({"sign", In(step), Private("mine")}), kExitOk) << err_;
  }
  ASSERT_OK(CheckpointFolder::Open(In("a"))->Prune(1));
  EXPECT_EQ(std::distance(fs::directory_iterator(In("a")), fs::directory_iterator()), 1);
  EXPECT_EQ(Run({"verify", In("a"), Public("mine")}), kExitOk) << err_;

  const s3::S3Server server({.region = "us-east-1"});
  setenv("AWS_ACCESS_KEY_ID", "TESTKEY", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "a/secret+key", 1);
  const std::string endpoint = "--s3-endpoint=" + server.endpoint();
  MustSave("from", 5, 1);
  MustSave("from", 6, 1);
  for (const std::string step : {"step-00000005", "step-00000006"}) {
    const std::string place = "s3://bucket/run/" + step;
    ASSERT_EQ(
        Run({"reshard", In("from/" + step), "s3://bucket/run", "--topology=single", endpoint}),
        kExitOk)
        << err_;
    ASSERT_EQ(Run({"sign", place, Private("mine"), endpoint}), kExitOk) << err_;
    ExpectRefused({"sign", place, Private("mine"), endpoint}, kExitUsage, "--overwrite");
    EXPECT_EQ(Run({"verify", place, Public("mine"), endpoint}), kExitOk) << err_;
  }
  ASSERT_OK_AND_ASSIGN(
      const auto folder,
      CheckpointFolder::Open("s3://bucket/run", {.s3_endpoint = server.endpoint()}));
  ASSERT_OK(folder.Prune(1));
  for (const std::string& key : server.keys()) {
    EXPECT_THAT(key, Not(HasSubstr("step-00000005"))) << "nothing is left, not even a tombstone";
  }
  EXPECT_EQ(Run({"verify", "s3://bucket/run", Public("mine"), endpoint}), kExitOk) << err_;
}

// Another framework's checkpoint is signed by its seal.
TEST_F(CkptSignTest, ASealIsSigned) {
  MustSave("a", 5, 1);
  for (const char* name : {"mine", "other"}) MakeKey(name);
  const std::string theirs = In("torch"), signature = theirs + "/tessera.seal.sig";
  ASSERT_EQ(Run({"convert", In("a"), theirs, "--to=torch"}), kExitOk) << err_;
  ExpectRefused({"sign", theirs, Private("mine")}, kExitUsage, "is not sealed");
  ExpectRefused({"verify", theirs, Public("mine")}, kExitUsage, "is not sealed");
  ASSERT_EQ(Run({"seal", theirs}), kExitOk) << err_;
  ExpectRefused({"verify", theirs, Public("mine")}, kExitDifferent, "is not signed");
  ASSERT_EQ(Run({"sign", theirs, Private("mine")}), kExitOk) << err_;
  EXPECT_EQ(Run({"verify", theirs, Public("mine"), "--digests"}), kExitOk) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("the seal is signed by the key in"));
  ExpectRefused({"verify", theirs, Public("other")}, kExitDifferent, "another key has signed");
  // The same files give the same seal, whose signature still holds.
  EXPECT_EQ(Run({"seal", theirs, "--overwrite"}), kExitOk) << err_;
  EXPECT_EQ(Run({"verify", theirs, Public("mine")}), kExitOk) << out_ << err_;
  // One of other files does not have it.
  const std::string old = Read(signature);
  Write(theirs + "/README.md", "a model");
  EXPECT_EQ(Run({"verify", theirs, Public("mine")}), kExitDifferent) << out_;
  EXPECT_THAT(out_, HasSubstr("README.md"));
  EXPECT_EQ(Run({"seal", theirs, "--overwrite"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("the signature of the seal that was there is removed"));
  ExpectRefused({"verify", theirs, Public("mine")}, kExitDifferent, "is not signed");
  Write(signature, old);
  ExpectRefused({"verify", theirs, Public("mine")}, kExitDifferent, "one of the two has changed");
}

}  // namespace
}  // namespace tessera::ckpt
