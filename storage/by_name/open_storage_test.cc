#include "storage/open_storage.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "gtest/gtest.h"
#include "storage/s3/testing/certificate.h"
#include "storage/s3/testing/s3_server.h"
#include "storage/storage.h"

namespace tessera {
namespace {

TEST(OpenStorageTest, APathAndItsLocalNameAreOnePlace) {
  const TestFolder directory;
  const std::string root = directory.path() + "/runs:a";
  EXPECT_EQ(OpenStorage(root).status().code(), absl::StatusCode::kNotFound);
  ASSERT_OK_AND_ASSIGN(const auto by_path, OpenStorage(root, {.create_root = true}));
  ASSERT_OK(WriteAll(*by_path, "file", "contents"));
  ASSERT_OK_AND_ASSIGN(const auto by_name, OpenStorage("local:" + root));
  EXPECT_EQ(*ReadAll(*by_name, "file", 100), "contents");
  EXPECT_EQ(by_name->LocalPath(""), root);
  EXPECT_EQ(by_name->LocalPath("file"), root + "/file");
}

TEST(OpenStorageTest, AnEmptyNameIsRefused) {
  for (const char* name : {"", "local:"}) {
    EXPECT_EQ(OpenStorage(name, {.create_root = true}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
}

TEST(OpenStorageTest, LocalNamesAreRecognised) {
  EXPECT_EQ(LocalPathOfName("/runs/a"), "/runs/a");
  EXPECT_EQ(LocalPathOfName("local:runs/a"), "runs/a");
}

// All names of a store lead to the same objects.
TEST(OpenStorageTest, ABucketHasManyNames) {
  const s3::S3Server server({.region = "us-east-1"});
  setenv("AWS_ACCESS_KEY_ID", "TESTKEY", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "a/secret+key", 1);
  const std::string host = server.endpoint().substr(7);
  ASSERT_OK_AND_ASSIGN(const auto first,
                       OpenStorage("boto3:s3://bucket." + host + "/runs/a", {.create_root = true}));
  ASSERT_OK(WriteAll(*first, "file", "contents"));
  EXPECT_EQ(server.contents("runs/a/file"), "contents");
  EXPECT_EQ(first->LocalPath(""), std::nullopt);
  EXPECT_EQ(first->Describe("file"), "s3://bucket/runs/a/file");
  ASSERT_OK_AND_ASSIGN(const auto second,
                       OpenStorage("s3://bucket/runs/", {.s3_endpoint = server.endpoint()}));
  EXPECT_EQ(*ReadAll(*second, "a/file", 100), "contents");
  setenv("AWS_ENDPOINT_URL", host.c_str(), 1);
  ASSERT_OK_AND_ASSIGN(const auto third, OpenStorage("s3://bucket"));
  EXPECT_EQ(*ReadAll(*third, "runs/a/file", 100), "contents");
  EXPECT_EQ(LocalPathOfName("s3://bucket"), std::nullopt);

  unsetenv("AWS_SECRET_ACCESS_KEY");
  const absl::Status status = OpenStorage("s3://bucket").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_NE(status.ToString().find("s3://bucket: AWS_ACCESS_KEY_ID is set"), std::string::npos)
      << status;
}

// Stores of others under their real names, as what a proxy leads to: requests are signed by their
// rules, and the bucket is where they want it.
struct VendorCase {
  std::string place;  // without the prefix
  std::string host;   // that a request goes to
  s3::S3ServerOptions server;
  const char *id, *secret;
};

class OpenVendorStorageTest : public testing::TestWithParam<VendorCase> {};

TEST_P(OpenVendorStorageTest, PutsGetsListsAndReplacesNothing) {
  const auto& [place, host, rules, id, secret] = GetParam();
  const TestFolder directory;
  const s3::Certificate certificate({.names = "DNS:" + host});
  certificate.Write(directory.path() + "/ca.pem");
  s3::S3ServerOptions options = rules;
  options.certificate = &certificate;
  s3::S3Server server(options);
  std::string proxy = server.endpoint();
  const std::pair<std::string, std::string> variables[] = {
      {"AWS_CA_BUNDLE", directory.path() + "/ca.pem"},
      {"https_proxy", proxy.erase(4, 1)},
      {"AWS_REGION", rules.region},
      {id, "TESTKEY"},
      {secret, "a/secret+key"}};
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  for (const char* other : {"no_proxy", "NO_PROXY", "AWS_ENDPOINT_URL"}) unsetenv(other);
  const std::string name = place + "/runs/a";
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(name, {.create_root = true}));
  ASSERT_OK(WriteAll(*storage, "file of mine", "contents"));
  EXPECT_EQ(server.contents("runs/a/file of mine"), "contents");
  EXPECT_EQ(*ReadAll(*storage, "file of mine", 100), "contents");
  EXPECT_EQ(*storage->List(""), std::vector<std::string>({"file of mine"}));
  ASSERT_OK(storage->Write("manifest", "first", {}));
  EXPECT_EQ(storage->Write("manifest", "second", {}).status(),
            absl::AlreadyExistsError("Write " + name + "/manifest: another object is there"));
  EXPECT_EQ(server.contents("runs/a/manifest"), "first");
  ASSERT_OK(storage->DeleteTree("manifest"));
  for (const std::string& connection : server.connections()) EXPECT_EQ(connection, host + ":443");
  for (const std::string& asked : server.hosts()) EXPECT_EQ(asked, host);

  setenv(secret, "another+secret", 1);
  const std::string refused = OpenStorage(name, {.create_root = true}).status().ToString();
  EXPECT_NE(refused.find(name + ": the secret key does not belong to the access key TESTKEY"),
            std::string::npos)
      << refused;
  EXPECT_EQ(refused.find("another+secret"), std::string::npos) << refused;
  for (const auto& [variable, value] : variables) unsetenv(variable.c_str());
}

INSTANTIATE_TEST_SUITE_P(
    Vendors, OpenVendorStorageTest,
    testing::Values(VendorCase{"volc:vc://bucket.tos-cn-beijing.volces.com",
                               "bucket.tos-s3-cn-beijing.volces.com",
                               {.vendor = s3::Vendor::kVolcano, .region = "cn-beijing"},
                               "VOLC_ACCESS_KEY_ID",
                               "VOLC_SECRET_ACCESS_KEY_ID"},
                    VendorCase{"oss2:ali://bucket.oss-cn-hangzhou.aliyuncs.com",
                               "bucket.oss-cn-hangzhou.aliyuncs.com",
                               {.vendor = s3::Vendor::kAliyun, .region = "cn-hangzhou"},
                               "ALI_ACCESS_KEY_ID",
                               "ALI_SECRET_ACCESS_KEY_ID"},
                    VendorCase{"gs://bucket",
                               "storage.googleapis.com",
                               {.vendor = s3::Vendor::kGoogle, .region = "auto"},
                               "GS_ACCESS_KEY_ID",
                               "GS_SECRET_ACCESS_KEY"},
                    VendorCase{"s3://bucket",
                               "bucket.s3.eu-west-3.amazonaws.com",
                               {.region = "eu-west-3"},
                               "AWS_ACCESS_KEY_ID",
                               "AWS_SECRET_ACCESS_KEY"}),
    [](const auto& info) { return std::string(info.param.id).substr(0, 3) + "Keys"; });

}  // namespace
}  // namespace tessera
