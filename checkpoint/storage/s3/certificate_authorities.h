#ifndef TESSERA_CHECKPOINT_STORAGE_S3_CERTIFICATE_AUTHORITIES_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_CERTIFICATE_AUTHORITIES_H_

#include <string>

namespace tessera::ckpt::s3 {

// Where certificates of authorities are. Empty: nowhere.
struct CertificateAuthorities {
  std::string file;       // a bundle
  std::string directory;  // a file each, named by its hash
};

// What the environment names: AWS_CA_BUNDLE, else CURL_CA_BUNDLE, else SSL_CERT_FILE and
// SSL_CERT_DIR. Else the first place that exists of those where Linux systems have them, below
// `root`: the library that checks certificates knows that of the system it was built on.
CertificateAuthorities FindCertificateAuthorities(const std::string& root = "");

}  // namespace tessera::ckpt::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_CERTIFICATE_AUTHORITIES_H_
