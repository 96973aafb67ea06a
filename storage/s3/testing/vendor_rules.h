#ifndef TESSERA_STORAGE_S3_TESTING_VENDOR_RULES_H_
#define TESSERA_STORAGE_S3_TESTING_VENDOR_RULES_H_

#include <string>

#include "storage/s3/testing/http_server.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::s3 {

// Return a header or parameter of a request; "" if it is missing.
std::string Header(const HttpMessage& request, const std::string& name);
std::string Parameter(const HttpMessage& request, const std::string& name);

HttpReply XmlReply(const std::string& body);
HttpReply ErrorReply(int status, const std::string& code);
HttpReply EmptyReply(int status);

// Returns whether a bucket is only in the host's name.
bool NeedsVirtualHost(Vendor vendor);

// Adds the store's headers about a body that it has stored.
void AddChecksum(Vendor vendor, const std::string& body, bool verify, HttpReply& reply);

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_TESTING_VENDOR_RULES_H_
