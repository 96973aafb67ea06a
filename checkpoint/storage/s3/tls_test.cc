// Certificates: which are accepted, and where those of authorities are looked for.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/testing/temporary_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::s3 {
namespace {

using ::testing::HasSubstr;

// A certificate that is its own authority.
struct Certificate {
  explicit Certificate(const std::string& alternative_name) {
    X509_set_version(x509, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
    X509_set_pubkey(x509, key);
    X509_NAME* const name = X509_get_subject_name(x509);
    const std::string common = "test of " + alternative_name;
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(common.c_str()), -1, -1, 0);
    X509_set_issuer_name(x509, name);
    X509_EXTENSION* const extension =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, alternative_name.c_str());
    X509_add_ext(x509, extension, -1);
    X509_EXTENSION_free(extension);
    X509_sign(x509, key, EVP_sha256());
  }
  ~Certificate() {
    X509_free(x509);
    EVP_PKEY_free(key);
  }
  void Write(const std::string& path) const {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr) << path;
    PEM_write_X509(file, x509);
    std::fclose(file);
  }

  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const x509 = X509_new();
};

// Answers every connection with "ok" over TLS.
class TlsServer {
 public:
  explicit TlsServer(const Certificate& certificate) : context_(SSL_CTX_new(TLS_server_method())) {
    SSL_CTX_use_certificate(context_, certificate.x509);
    SSL_CTX_use_PrivateKey(context_, certificate.key);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    signal(SIGPIPE, SIG_IGN);  // clients go when they have seen the certificate
    thread_ = std::thread([this] { Serve(); });
  }
  ~TlsServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    SSL_CTX_free(context_);
  }
  std::string url() const { return absl::StrCat("https://127.0.0.1:", port_, "/"); }

 private:
  void Serve() {
    for (int fd = accept(listener_, nullptr, nullptr); fd >= 0;
         fd = accept(listener_, nullptr, nullptr)) {
      SSL* const ssl = SSL_new(context_);
      SSL_set_fd(ssl, fd);
      char request[4096];
      if (SSL_accept(ssl) == 1 && SSL_read(ssl, request, sizeof(request)) > 0) {
        const std::string answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        SSL_write(ssl, answer.data(), static_cast<int>(answer.size()));
        SSL_shutdown(ssl);
      }
      SSL_free(ssl);
      close(fd);
    }
  }

  SSL_CTX* const context_;
  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
  std::thread thread_;
};

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    good_.Write(good_file_);
    other_.Write(other_file_);
  }
  ~TlsTest() override {
    for (const char* name : kVariables) unsetenv(name);
  }
  // "ok", or the error. With one variable set.
  static std::string Fetch(const TlsServer& server, const char* variable,
                           const std::string& value) {
    for (const char* name : kVariables) unsetenv(name);
    if (variable != nullptr) setenv(variable, value.c_str(), 1);
    HttpResponse response;
    const absl::Status status =
        MakeHttpClient()->Perform({.method = "GET", .url = server.url()}, response);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return status.ok() ? response.body : std::string(status.message());
  }

  static constexpr const char* kVariables[] = {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE",
                                               "SSL_CERT_DIR"};
  const TemporaryDirectory directory_;
  const Certificate good_{"IP:127.0.0.1"}, other_{"IP:127.0.0.1"}, elsewhere_{"DNS:elsewhere"};
  const std::string good_file_ = directory_.path() + "/good.pem";
  const std::string other_file_ = directory_.path() + "/other.pem";
};

TEST_F(TlsTest, TheEnvironmentNamesTheAuthorities) {
  const TlsServer server(good_);
  for (const char* variable : {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    EXPECT_EQ(Fetch(server, variable, good_file_), "ok") << variable;
    EXPECT_THAT(Fetch(server, variable, other_file_), HasSubstr("AWS_CA_BUNDLE names")) << variable;
    EXPECT_THAT(Fetch(server, variable, "/no/such/file"), HasSubstr("/no/such/file"));
  }
  char hash[16];
  std::snprintf(hash, sizeof(hash), "/%08lx.0", X509_subject_name_hash(good_.x509));
  const std::string folder = directory_.path() + "/hashed";
  std::filesystem::create_directory(folder);
  good_.Write(folder + hash);
  for (const char* variable : {"SSL_CERT_DIR", "AWS_CA_BUNDLE"}) {
    EXPECT_EQ(Fetch(server, variable, folder), "ok") << variable;
  }
}

TEST_F(TlsTest, ACertificateOfNoKnownAuthorityOrOfAnotherHostIsRefused) {
  const TlsServer server(good_), impostor(elsewhere_);
  EXPECT_THAT(Fetch(server, nullptr, ""), HasSubstr("AWS_CA_BUNDLE names"));
  elsewhere_.Write(other_file_);
  EXPECT_THAT(Fetch(impostor, "AWS_CA_BUNDLE", other_file_), HasSubstr("127.0.0.1"));
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
}  // namespace tessera::ckpt::s3
