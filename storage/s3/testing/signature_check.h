#ifndef TESSERA_STORAGE_S3_TESTING_SIGNATURE_CHECK_H_
#define TESSERA_STORAGE_S3_TESTING_SIGNATURE_CHECK_H_

#include <string>

#include "storage/s3/testing/http_server.h"

namespace tessera::s3 {

// A store's rules for signatures, from its documents.
struct SignatureRules {
  std::string begin = "AWS4", service = "s3", end = "aws4_request";
  std::string headers = "x-amz-";  // those that begin like this must be signed
};

// Checks that a request has the signature of `secret`, computed from the received request without
// code of the client. Returns what is wrong; empty if nothing is.
std::string CheckSignature(const HttpMessage& request, const std::string& secret,
                           const SignatureRules& rules);

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_TESTING_SIGNATURE_CHECK_H_
