#include "storage/by_name/credentials.h"

#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "storage/s3/testing/http_server.h"

namespace tessera {
namespace {

class CredentialsTest : public testing::Test {
 protected:
  CredentialsTest() {
    variables_["AWS_SHARED_CREDENTIALS_FILE"] = directory_.path() + "/credentials";
    variables_["AWS_CONFIG_FILE"] = directory_.path() + "/config";
    variables_["AWS_EC2_METADATA_DISABLED"] = "true";
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_.path() + "/" + name) << text;
  }

  absl::StatusOr<S3Account> Find(S3Provider provider = S3Provider::kS3) {
    const auto environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    return FindAccount(provider, environment, *http_);
  }

  std::string Id(S3Provider provider = S3Provider::kS3) {
    const auto account = Find(provider);
    if (!account.ok()) return account.status().ToString();
    return account->credentials.access_key_id + "/" + account->credentials.secret_access_key + "/" +
           account->credentials.session_token;
  }

  const TestFolder directory_;
  std::map<std::string, std::string> variables_;
  std::unique_ptr<s3::HttpClient> http_ = s3::MakeHttpClient();
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
        "endpoint_url = http://localhost:9000\n[profile third]\nregion = x\n"
        "[profile other]\n");
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
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
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

// Sends what is meant for a fixed address to a server of this machine.
class RedirectingClient final : public s3::HttpClient {
 public:
  RedirectingClient(std::string from, std::string to)
      : from_(std::move(from)), to_(std::move(to)), http_(s3::MakeHttpClient()) {}
  absl::Status Perform(const s3::HttpRequest& request, s3::HttpResponse& response) override {
    s3::HttpRequest redirected = request;
    if (request.url.starts_with(from_)) redirected.url.replace(0, from_.size(), to_);
    return http_->Perform(redirected, response);
  }
  std::unique_ptr<s3::HttpBatch> NewBatch() override { return http_->NewBatch(); }

 private:
  const std::string from_, to_;
  const std::unique_ptr<s3::HttpClient> http_;
};

// A server in place of those that give credentials of roles.
class RoleCredentialsTest : public CredentialsTest {
 protected:
  RoleCredentialsTest()
      : server_([this](s3::HttpMessage& request) {
          requests_.push_back(request);
          if (failures_-- > 0) return Reply(failures_ == 0 ? 503 : 429, "busy");
          return answer_(request);
        }) {}

  static s3::HttpReply Reply(int status, const std::string& text) {
    const auto body = std::make_shared<std::string>(text);
    return {.status = status, .headers = {}, .body = {{body, 0, text.size()}}};
  }
  static s3::HttpReply Json(const std::string& id) {
    return Reply(200, absl::StrCat(R"({"Code": "Success", "AccessKeyId": ")", id,
                                   R"(", "SecretAccessKey": "s", "Token": "t", )",
                                   R"("Expiration": "2033-05-18T03:33:20Z"})"));
  }
  std::string Error() {
    const absl::Status status = Find().status();
    EXPECT_FALSE(status.ok() || absl::IsNotFound(status)) << status;
    return status.ToString();
  }

  std::function<s3::HttpReply(const s3::HttpMessage&)> answer_;
  int failures_ = 0;
  std::vector<s3::HttpMessage> requests_;
  s3::HttpServer server_;
};

TEST_F(RoleCredentialsTest, AWebIdentityIsExchangedAtSts) {
  Write("token", "the token+/=\n");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = directory_.path() + "/token";
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/train";
  variables_["AWS_ENDPOINT_URL_STS"] = server_.url();
  answer_ = [](const s3::HttpMessage&) {
    return Reply(200,
                 "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                 "<AccessKeyId>web</AccessKeyId><SecretAccessKey>a/b</SecretAccessKey>"
                 "<SessionToken>t</SessionToken><Expiration>2033-05-18T03:33:20Z</Expiration>"
                 "</Credentials></AssumeRoleWithWebIdentityResult>"
                 "</AssumeRoleWithWebIdentityResponse>");
  };
  failures_ = 2;
  EXPECT_EQ(Id(), "web/a/b/t");
  EXPECT_EQ(Find()->credentials.expiration, absl::FromUnixSeconds(2'000'000'000));
  EXPECT_EQ(requests_[1].method, "POST");
  EXPECT_EQ(requests_[1].headers["content-type"], "application/x-www-form-urlencoded");
  EXPECT_EQ(*requests_[1].body,
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1"
            "%3Arole%2Ftrain&RoleSessionName=tessera&WebIdentityToken=the%20token%2B%2F%3D");
  answer_ = [](const s3::HttpMessage&) { return Reply(403, "<Code>AccessDenied</Code>"); };
  EXPECT_NE(Error().find("answers 403 (<Code>AccessDenied"), std::string::npos) << Error();
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/no/such/token";
  EXPECT_NE(Error().find("/no/such/token: the file is missing"), std::string::npos) << Error();
}

TEST_F(RoleCredentialsTest, TheRegionAndTheProfileNameTheServiceAndTheRole) {
  Write("token", "x");
  Write("config", absl::StrCat("[default]\nregion = eu-north-1\nrole_arn = r\n",
                               "web_identity_token_file = ", directory_.path(), "/token\n"));
  http_ =
      std::make_unique<RedirectingClient>("https://sts.eu-north-1.amazonaws.com", server_.url());
  answer_ = [](const s3::HttpMessage&) { return Reply(200, "<other/>"); };
  EXPECT_NE(Error().find("sends no credentials"), std::string::npos) << Error();
}

TEST_F(RoleCredentialsTest, AContainersServiceWantsItsToken) {
  Write("token", "first");
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server_.url() + "/v1/credentials";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = directory_.path() + "/token";
  answer_ = [](const s3::HttpMessage& request) {
    return Json(absl::StrCat(request.path, " ", request.headers.at("authorization")));
  };
  EXPECT_EQ(Id(), "/v1/credentials first/s/t");
  Write("token", "second");
  EXPECT_EQ(Id(), "/v1/credentials second/s/t") << "the file is read each time";
  variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/x";
  http_ = std::make_unique<RedirectingClient>("http://169.254.170.2", server_.url());
  EXPECT_EQ(Id(), "/v2/x second/s/t");
  answer_ = [](const s3::HttpMessage&) { return Reply(200, "{}"); };
  EXPECT_NE(Error().find("sends no credentials"), std::string::npos) << Error();
  variables_.erase("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  http_ = std::make_unique<RedirectingClient>("https://example.org", server_.url());
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "https://example.org/v3";
  EXPECT_NE(Error().find("sends no credentials"), std::string::npos) << Error();
  for (const char* url : {"http://example.org/", "http://127.0.0.1.example.org/",
                          "http://127.0.0.1:80@example.org/"}) {
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    EXPECT_NE(Error().find("neither https nor an address of this machine"), std::string::npos);
  }
}

TEST_F(RoleCredentialsTest, AnInstanceHasARoleByItsMetadata) {
  variables_.erase("AWS_EC2_METADATA_DISABLED");
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server_.url() + "/";
  const std::string roles = "/latest/meta-data/iam/security-credentials/";
  answer_ = [&](const s3::HttpMessage& request) {
    if (request.path == "/latest/api/token") {
      return request.method == "PUT" ? Reply(200, "session") : Reply(405, "");
    }
    if (request.headers.at("x-aws-ec2-metadata-token") != "session") return Reply(401, "");
    if (request.path == roles) return Reply(200, "a/role\n");
    return request.path == roles + "a%2Frole" ? Json("instance") : Reply(404, "");
  };
  EXPECT_EQ(Id(), "instance/s/t");
  failures_ = 1;
  EXPECT_EQ(Id(), "instance/s/t");
  // What is set comes first; what is disabled is not asked.
  requests_.clear();
  variables_["AWS_EC2_METADATA_DISABLED"] = "TRUE";
  EXPECT_NE(Error().find("there are no credentials"), std::string::npos);
  variables_.erase("AWS_EC2_METADATA_DISABLED");
  variables_["ACCESS_KEY"] = variables_["SECRET_ACCESS_KEY"] = "own";
  EXPECT_EQ(Id(), "own/own/");
  EXPECT_TRUE(requests_.empty());
  // No service, and a machine without a role.
  variables_.erase("ACCESS_KEY");
  variables_.erase("SECRET_ACCESS_KEY");
  answer_ = [](const s3::HttpMessage& request) {
    return request.method == "PUT" ? Reply(200, "session") : Reply(404, "");
  };
  EXPECT_NE(Error().find("there are no credentials"), std::string::npos);
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1";
  EXPECT_NE(Error().find("there are no credentials"), std::string::npos);
}

}  // namespace
}  // namespace tessera
