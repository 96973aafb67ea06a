#include "storage/s3/testing/certificate.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <random>

#include "glog/logging.h"

namespace tessera::s3 {
namespace {

void AddExtension(X509* x509, int id, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value.c_str());
  CHECK(extension != nullptr) << value;
  X509_add_ext(x509, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

Certificate::Certificate(const CertificateOptions& options) {
  X509_set_version(x509_, 2);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(x509_), std::random_device()());
  X509_gmtime_adj(X509_getm_notBefore(x509_), -7200);
  X509_gmtime_adj(X509_getm_notAfter(x509_), options.expires_seconds);
  X509_set_pubkey(x509_, key_);
  X509_NAME* const name = X509_get_subject_name(x509_);
  const std::string common = "test of " + options.names;
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common.c_str()), -1, -1, 0);
  const Certificate& issuer = options.issuer == nullptr ? *this : *options.issuer;
  X509_set_issuer_name(x509_, X509_get_subject_name(issuer.x509_));
  if (options.issuer == nullptr) AddExtension(x509_, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(x509_, NID_subject_alt_name, options.names);
  CHECK_GT(X509_sign(x509_, issuer.key_, EVP_sha256()), 0);
}

Certificate::~Certificate() {
  X509_free(x509_);
  EVP_PKEY_free(key_);
}

void Certificate::Write(const std::string& path) const {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  PCHECK(file != nullptr) << path;
  PEM_write_X509(file, x509_);
  std::fclose(file);
}

}  // namespace tessera::s3
