#include "checkpoint/storage/s3/certificate_authorities.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace tessera::ckpt::s3 {
namespace {

constexpr const char* kFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, RHEL, Amazon
    "/etc/pki/tls/certs/ca-bundle.crt",                   // the same, older
    "/etc/ssl/ca-bundle.pem",                             // SUSE
    "/var/lib/ca-certificates/ca-bundle.pem",             // likewise
    "/etc/ssl/cert.pem",                                  // Alpine without its package, musl, BSD
    "/etc/pki/tls/cacert.pem",
};
constexpr const char* kDirectories[] = {"/etc/ssl/certs", "/etc/pki/tls/certs"};

// "" where it is not set.
std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

CertificateAuthorities FindCertificateAuthorities(const std::string& root) {
  for (const char* name : {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE"}) {
    const std::string path = Variable(name);
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return {.file = "", .directory = path};
    if (!path.empty()) return {.file = path, .directory = ""};
  }
  CertificateAuthorities found = {Variable("SSL_CERT_FILE"), Variable("SSL_CERT_DIR")};
  if (!found.file.empty() || !found.directory.empty()) return found;
  for (const char* path : kFiles) {
    if (access((root + path).c_str(), R_OK) == 0) return {.file = root + path, .directory = ""};
  }
  for (const char* path : kDirectories) {
    if (access((root + path).c_str(), R_OK) == 0) return {.file = "", .directory = root + path};
  }
  return {};
}

}  // namespace tessera::ckpt::s3
