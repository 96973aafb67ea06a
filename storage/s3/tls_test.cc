// Certificates: which are accepted, and where those of authorities are looked for.

#include <openssl/x509.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/http.h"
#include "storage/s3/s3_storage.h"
#include "storage/s3/testing/certificate.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::s3 {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    good_.Write(good_file_);
    other_.Write(other_file_);
  }
  ~TlsTest() override { Trust(nullptr, ""); }

  static void Trust(const char* variable, const std::string& value) {
    for (const char* name : {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"}) {
      unsetenv(name);
    }
    if (variable != nullptr) setenv(variable, value.c_str(), 1);
  }
  // "ok", or the error. With one variable set.
  static std::string Fetch(const HttpServer& server, const char* variable,
                           const std::string& value) {
    Trust(variable, value);
    HttpResponse response;
    const absl::Status status =
        MakeHttpClient()->Perform({.method = "GET", .url = server.url() + "/"}, response);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return status.ok() ? response.body : std::string(status.message());
  }
  static HttpReply Ok(HttpMessage& /*request*/) {
    return {.body = {{std::make_shared<std::string>("ok"), 0, 2}}};
  }
  // A storage whose bucket is in the host's name: bucket.localhost.
  static absl::StatusOr<std::unique_ptr<Storage>> Open(const S3Server& server) {
    ClientOptions client = server.ForClient();
    client.endpoint.replace(client.endpoint.find("127.0.0.1"), 9, "localhost");
    client.virtual_host = true;
    return OpenS3Storage({.client = client, .prefix = "run", .create_root = true});
  }

  const TestFolder directory_;
  const Certificate good_{{.names = "IP:127.0.0.1"}}, other_{{.names = "IP:127.0.0.1"}};
  const std::string good_file_ = directory_.path() + "/good.pem";
  const std::string other_file_ = directory_.path() + "/other.pem";
};

TEST_F(TlsTest, TheEnvironmentNamesTheAuthorities) {
  const HttpServer server(Ok, &good_);
  for (const char* variable : {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    EXPECT_EQ(Fetch(server, variable, good_file_), "ok") << variable;
    EXPECT_THAT(Fetch(server, variable, other_file_), HasSubstr("AWS_CA_BUNDLE names")) << variable;
    EXPECT_THAT(Fetch(server, variable, "/no/such/file"),
                testing::AllOf(HasSubstr("/no/such/file"), HasSubstr("AWS_CA_BUNDLE names")));
  }
  EXPECT_THAT(Fetch(server, nullptr, ""), HasSubstr("AWS_CA_BUNDLE names"));
  char hash[16];
  std::snprintf(hash, sizeof(hash), "/%08lx.0", X509_subject_name_hash(good_.x509()));
  const std::string folder = directory_.path() + "/hashed";
  std::filesystem::create_directory(folder);
  good_.Write(folder + hash);
  for (const char* variable : {"SSL_CERT_DIR", "AWS_CA_BUNDLE"}) {
    EXPECT_EQ(Fetch(server, variable, folder), "ok") << variable;
  }
}

TEST_F(TlsTest, ABucketIsAHostWithACertificateOfAKnownAuthority) {
  const Certificate bucket({.names = "DNS:bucket.localhost", .issuer = &good_});
  const S3Server server({.certificate = &bucket});
  Trust("AWS_CA_BUNDLE", good_file_);
  ASSERT_OK_AND_ASSIGN(const auto storage, Open(server));
  ASSERT_OK(WriteAll(*storage, "d/file", "contents"));
  EXPECT_EQ(server.contents("run/d/file"), "contents");
  EXPECT_EQ(*ReadAll(*storage, "d/file", 100), "contents");
  EXPECT_EQ(*storage->List("d"), std::vector<std::string>({"file"}));
  EXPECT_THAT(server.hosts(), testing::Each(testing::StartsWith("bucket.localhost:")));
}

// In a sentence and after one connection: what a certificate lacks does not pass.
TEST_F(TlsTest, ACertificateThatProvesNothingIsRefusedAtOnce) {
  const Certificate expired(
      {.names = "DNS:bucket.localhost", .issuer = &good_, .expires_seconds = -60}),
      elsewhere({.names = "DNS:localhost", .issuer = &good_}),
      authority({.names = "DNS:authority"}),
      unknown({.names = "DNS:bucket.localhost", .issuer = &authority}),
      of_same_name({.names = "DNS:bucket.localhost", .issuer = &other_});
  Trust("AWS_CA_BUNDLE", good_file_);
  const std::pair<const Certificate*, std::string> cases[] = {
      {&expired, " has expired (SSL certificate problem: certificate has expired)"},
      {&elsewhere,
       " is for another name (SSL: no alternative certificate subject name matches "
       "target host name 'bucket.localhost')"},
      {&unknown,
       " comes from no authority that is trusted here (SSL certificate problem: unable "
       "to get local issuer certificate); AWS_CA_BUNDLE names the file of the "
       "authorities to trust"},
      {&of_same_name, " comes from no authority that is trusted here (OpenSSL"}};
  for (const auto& [certificate, cause] : cases) {
    const S3Server server({.certificate = certificate});
    const std::string port = server.endpoint().substr(server.endpoint().rfind(':'));
    const absl::Status status = Open(server).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::StartsWith("cannot list what is in s3://bucket/run: https://localhost" +
                                    port + ": the certificate of bucket.localhost" + port + cause));
    EXPECT_THAT(server.connections(), SizeIs(1)) << status;
    EXPECT_THAT(server.requests(), SizeIs(0));
  }
}

TEST_F(TlsTest, EachSystemHasThemSomewhereElse) {
  const std::string root = directory_.path();
  EXPECT_EQ(FindCertificateAuthorities(root).file, "");
  const auto found_at = [&](const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << "certificates";
    const CertificateAuthorities found = FindCertificateAuthorities(root);
    return found.file == root + path && found.directory.empty();
  };
  // From the last to the first.
  EXPECT_TRUE(found_at("/etc/ssl/cert.pem"));
  EXPECT_TRUE(found_at("/etc/ssl/ca-bundle.pem"));
  EXPECT_TRUE(found_at("/etc/pki/tls/certs/ca-bundle.crt"));
  EXPECT_TRUE(found_at("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"));
  EXPECT_TRUE(found_at("/etc/ssl/certs/ca-certificates.crt"));
  std::filesystem::remove_all(root + "/etc");
  std::filesystem::create_directories(root + "/etc/ssl/certs");
  EXPECT_EQ(FindCertificateAuthorities(root).directory, root + "/etc/ssl/certs");
}

}  // namespace
}  // namespace tessera::s3
