#ifndef TESSERA_STORAGE_S3_SIGV4_H_
#define TESSERA_STORAGE_S3_SIGV4_H_

// AWS Signature Version 4 for S3, and its variants in other stores. A request is reduced to its
// canonical form, which is signed with a key derived from the secret key, the day, the region and
// the service.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "storage/s3/dialect.h"

namespace tessera::s3 {

struct Credentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // empty: none
  absl::Time expiration = absl::InfiniteFuture();

  bool operator==(const Credentials&) const = default;
};

// The payload hash of a body that is protected by a checksum header instead.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

// The parts of a request that are signed.
struct SignedParts {
  std::string method;
  std::string path;                            // as sent: percent-encoded, begins with '/'
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case, values trimmed
  std::string payload_hash;                    // SHA-256 in hexadecimal, or kUnsignedPayload
};

// Percent-encodes everything but letters, digits, '-', '.', '_' and '~'; '/' is kept on request.
std::string UriEncode(std::string_view text, bool keep_slashes);

// Returns "a=1&b=%20", sorted by encoded name, as it is signed and sent.
std::string EncodeQuery(const std::map<std::string, std::string>& query);

std::string HexSha256(std::span<const std::byte> data);
std::string HexSha256(std::string_view data);

// Returns "20130524T000000Z".
std::string AmzDate(absl::Time time);

std::string CanonicalRequest(const SignedParts& parts);

// Returns the signature in hexadecimal.
std::string Sign(const SignedParts& parts, const Credentials& credentials, std::string_view region,
                 std::string_view amz_date, const Dialect& dialect = kAmazon);

// Returns the value of the header Authorization. All headers of `parts` are signed.
std::string AuthorizationHeader(const SignedParts& parts, const Credentials& credentials,
                                std::string_view region, std::string_view amz_date,
                                const Dialect& dialect = kAmazon);

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_SIGV4_H_
