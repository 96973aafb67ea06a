#ifndef TESSERA_STORAGE_S3_DIALECT_H_
#define TESSERA_STORAGE_S3_DIALECT_H_

#include <array>
#include <string_view>

namespace tessera::s3 {

// The names in a store's dialect of the S3 protocol, and the features that it lacks.
struct Dialect {
  struct Field {
    std::string_view name, value;
  };

  // In signature version 4: the beginning of the algorithm's name and of the signing key, and the
  // end of the scope.
  std::string_view signature = "AWS4";
  std::string_view service = "s3";
  std::string_view terminator = "aws4_request";

  std::string_view headers = "x-amz-";  // what the names of its own headers begin with
  // The header with the checksum of a body, and the beginning of its value. In content-md5 the
  // checksum is an MD5, in others a CRC-32C.
  Field checksum = {"x-amz-checksum-crc32c", ""};
  bool has_part_checksums = true;  // in the request that completes an upload

  // The header that identifies the version of an object, and the header that asks for a version.
  std::string_view version = "etag";
  std::string_view if_version = "if-match";
  bool numbers_versions = false;
  bool replaces_versions = true;  // writes and deletions may ask for a version, too
  // The fields that ask a write not to replace any object; fields without a name are left out.
  std::array<Field, 2> create_only = {{{"if-none-match", "*"}, {}}};
};

inline constexpr Dialect kAmazon;

// Volcano Engine TOS, at its addresses for the S3 protocol. Its own header is sent beside the usual
// one, which its documents do not promise.
inline constexpr Dialect kVolcano = {
    .checksum = {"content-md5", ""},
    .has_part_checksums = false,
    .create_only = {{{"if-none-match", "*"}, {"x-tos-forbid-overwrite", "true"}}}};

// Alibaba Cloud OSS answers 501 to conditions of writes and deletions.
inline constexpr Dialect kAliyun = {.checksum = {"content-md5", ""},
                                    .has_part_checksums = false,
                                    .replaces_versions = false,
                                    .create_only = {{{"x-oss-forbid-overwrite", "true"}, {}}}};

// Google Cloud Storage: its XML interface, with HMAC keys. Conditions of writes need Google's
// headers, which cannot be mixed with Amazon's.
inline constexpr Dialect kGoogle = {.signature = "GOOG4",
                                    .service = "storage",
                                    .terminator = "goog4_request",
                                    .headers = "x-goog-",
                                    .checksum = {"x-goog-hash", "crc32c="},
                                    .has_part_checksums = false,
                                    .version = "x-goog-generation",
                                    .if_version = "x-goog-if-generation-match",
                                    .numbers_versions = true,
                                    .create_only = {{{"x-goog-if-generation-match", "0"}, {}}}};

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_DIALECT_H_
