#ifndef TESSERA_STORAGE_S3_TESTING_CERTIFICATE_H_
#define TESSERA_STORAGE_S3_TESTING_CERTIFICATE_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <cstdint>
#include <string>

namespace tessera::s3 {

struct CertificateOptions {
  std::string names;                          // "IP:127.0.0.1", "DNS:a,DNS:b"
  const class Certificate* issuer = nullptr;  // null: it is its own authority
  int64_t expires_seconds = 3600;             // from now; negative: it has expired
};

// A key with a certificate, valid from two hours ago.
class Certificate {
 public:
  explicit Certificate(const CertificateOptions& options);
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;
  ~Certificate();

  EVP_PKEY* key() const { return key_; }
  X509* x509() const { return x509_; }
  // Writes the certificate in PEM, without the key.
  void Write(const std::string& path) const;

 private:
  EVP_PKEY* const key_ = EVP_EC_gen("P-256");
  X509* const x509_ = X509_new();
};

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_TESTING_CERTIFICATE_H_
