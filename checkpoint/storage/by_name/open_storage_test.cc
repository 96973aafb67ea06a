#include "checkpoint/include/open_storage.h"

#include <cstdlib>

#include "checkpoint/include/storage.h"
#include "checkpoint/storage/s3/testing/s3_server.h"
#include "checkpoint/storage/testing/temporary_directory.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

TEST(OpenStorageTest, APathAndItsLocalNameAreOnePlace) {
  const TemporaryDirectory directory;
  const std::string root = directory.path() + "/runs:a";
  EXPECT_EQ(OpenStorage(root).status().code(), absl::StatusCode::kNotFound);
  const auto by_path = OpenStorage(root, {.create_root = true});
  ASSERT_TRUE(by_path.ok()) << by_path.status();
  ASSERT_TRUE(WriteAll(**by_path, "file", "contents").ok());
  const auto by_name = OpenStorage("local:" + root);
  ASSERT_TRUE(by_name.ok()) << by_name.status();
  EXPECT_EQ(*ReadAll(**by_name, "file", 100), "contents");
  EXPECT_EQ((*by_name)->LocalPath(""), root);
  EXPECT_EQ((*by_name)->LocalPath("file"), root + "/file");
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
  const auto first = OpenStorage("boto3:s3://bucket." + host + "/runs/a", {.create_root = true});
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(WriteAll(**first, "file", "contents").ok());
  EXPECT_EQ(server.contents("runs/a/file"), "contents");
  EXPECT_EQ((*first)->LocalPath(""), std::nullopt);
  EXPECT_EQ((*first)->Describe("file"), "s3://bucket/runs/a/file");
  const auto second = OpenStorage("s3://bucket/runs/", {.s3_endpoint = server.endpoint()});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*ReadAll(**second, "a/file", 100), "contents");
  setenv("AWS_ENDPOINT_URL", host.c_str(), 1);
  const auto third = OpenStorage("s3://bucket");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(*ReadAll(**third, "runs/a/file", 100), "contents");
  EXPECT_EQ(LocalPathOfName("s3://bucket"), std::nullopt);

  unsetenv("AWS_SECRET_ACCESS_KEY");
  const absl::Status status = OpenStorage("s3://bucket").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.ToString().find("s3://bucket: AWS_ACCESS_KEY_ID is set"), std::string::npos)
      << status;
}

}  // namespace
}  // namespace tessera::ckpt
