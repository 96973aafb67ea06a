#include "checkpoint/storage/by_name/credentials.h"

#include <fstream>
#include <map>
#include <string>

#include "checkpoint/storage/temporary_directory.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

class CredentialsTest : public testing::Test {
 protected:
  CredentialsTest() {
    variables_["AWS_SHARED_CREDENTIALS_FILE"] = directory_.path() + "/credentials";
    variables_["AWS_CONFIG_FILE"] = directory_.path() + "/config";
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_.path() + "/" + name) << text;
  }

  absl::StatusOr<S3Account> Find(S3Provider provider = S3Provider::kS3) {
    return FindAccount(provider, [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    });
  }

  std::string Id(S3Provider provider = S3Provider::kS3) {
    const auto account = Find(provider);
    if (!account.ok()) return account.status().ToString();
    return account->credentials.access_key_id + "/" + account->credentials.secret_access_key + "/" +
           account->credentials.session_token;
  }

  const TemporaryDirectory directory_;
  std::map<std::string, std::string> variables_;
};

TEST_F(CredentialsTest, VariablesComeInOrder) {
  variables_["ACCESS_KEY"] = "any";
  variables_["SECRET_ACCESS_KEY"] = "s0";
  EXPECT_EQ(Id(), "any/s0/");
  Write("credentials", "[default]\naws_access_key_id=file\naws_secret_access_key = s1\n");
  EXPECT_EQ(Id(), "file/s1/");
  variables_["AWS_ACCESS_KEY_ID"] = "aws";
  variables_["AWS_SECRET_ACCESS_KEY"] = "s2";
  variables_["AWS_SESSION_TOKEN"] = "token";
  EXPECT_EQ(Id(), "aws/s2/token");
  variables_["S3_ACCESS_KEY_ID"] = "s3";
  variables_["S3_SECRET_ACCESS_KEY_ID"] = "s3secret";
  EXPECT_EQ(Id(), "s3/s3secret/");
}

TEST_F(CredentialsTest, OtherProvidersHaveTheirOwn) {
  variables_["AWS_ACCESS_KEY_ID"] = "aws";
  variables_["AWS_SECRET_ACCESS_KEY"] = "s";
  variables_["VOLC_ACCESS_KEY_ID"] = "volc";
  variables_["VOLC_SECRET_ACCESS_KEY_ID"] = "v";
  variables_["OSS_ACCESS_KEY_ID"] = "oss";
  variables_["OSS_ACCESS_KEY_SECRET"] = "o";
  EXPECT_EQ(Id(S3Provider::kVolcano), "volc/v/");
  EXPECT_EQ(Id(S3Provider::kAliyun), "oss/o/");
  variables_["ALI_ACCESS_KEY_ID"] = "ali";
  variables_["ALI_SECRET_ACCESS_KEY_ID"] = "a";
  EXPECT_EQ(Id(S3Provider::kAliyun), "ali/a/");
}

TEST_F(CredentialsTest, ProfilesAreInTwoFiles) {
  Write("credentials",
        "# comment\n[default]\naws_access_key_id = d\naws_secret_access_key = ds\n\n"
        "[other]\naws_access_key_id = o\naws_secret_access_key = a=b/+\naws_session_token = t\n");
  Write("config",
        "[profile other]\nregion = eu-west-9\ns3 =\n  addressing_style = path\n"
        "endpoint_url = http://localhost:9000\n[profile third]\nregion = x\n");
  EXPECT_EQ(Id(), "d/ds/");
  variables_["AWS_PROFILE"] = "other";
  EXPECT_EQ(Id(), "o/a=b/+/t");
  EXPECT_EQ(Find()->region, "eu-west-9");
  EXPECT_EQ(Find()->endpoint, "http://localhost:9000");
  variables_["AWS_DEFAULT_REGION"] = "r2";
  variables_["AWS_ENDPOINT_URL"] = "e2";
  EXPECT_EQ(Find()->region, "r2");
  EXPECT_EQ(Find()->endpoint, "e2");
  variables_["AWS_REGION"] = "r1";
  variables_["AWS_ENDPOINT_URL_S3"] = "e1";
  EXPECT_EQ(Find()->region, "r1");
  EXPECT_EQ(Find()->endpoint, "e1");
}

TEST_F(CredentialsTest, WhatIsMissingIsNamed) {
  const auto expect = [&](S3Provider provider, const std::string& text) {
    const absl::Status status = Find(provider).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.ToString().find(text), std::string::npos) << status;
  };
  expect(S3Provider::kS3, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  expect(S3Provider::kS3, variables_["AWS_SHARED_CREDENTIALS_FILE"]);
  expect(S3Provider::kVolcano, "VOLC_ACCESS_KEY_ID and VOLC_SECRET_ACCESS_KEY_ID");
  expect(S3Provider::kAliyun, "ALI_ACCESS_KEY_ID and ALI_SECRET_ACCESS_KEY_ID");
  variables_["AWS_PROFILE"] = "none";
  expect(S3Provider::kS3, "AWS_PROFILE=none: there is no such profile");
  variables_.erase("AWS_PROFILE");
  variables_["AWS_ACCESS_KEY_ID"] = "id";
  expect(S3Provider::kS3, "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not");
}

}  // namespace
}  // namespace tessera::ckpt
