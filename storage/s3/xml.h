#ifndef TESSERA_STORAGE_S3_XML_H_
#define TESSERA_STORAGE_S3_XML_H_

// The documents of the S3 protocol. Parsers accept any bytes: an answer that is not the expected
// document is an error or, where a field is optional, empty.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::s3 {

// An <Error> document; empty strings for missing elements.
struct ErrorDocument {
  std::string code;  // "NoSuchKey"
  std::string message;
  std::string region;  // the bucket's, if the request named another one
};
// Returns nullopt if `body` is not an <Error>.
std::optional<ErrorDocument> ParseError(std::string_view body);

// One page of ListObjectsV2.
struct ListPage {
  struct Object {
    std::string key;
    uint64_t size_bytes = 0;
  };
  std::vector<Object> objects;
  std::vector<std::string> prefixes;  // up to and including the delimiter
  std::string next_token;             // empty: the last page
};
absl::StatusOr<ListPage> ParseListPage(std::string_view body);

// One page of ListMultipartUploads.
struct UploadsPage {
  struct Upload {
    std::string key;
    std::string upload_id;
    absl::Time initiated;  // InfiniteFuture where the answer does not say
  };
  std::vector<Upload> uploads;
  std::string next_key, next_upload_id;  // both empty: the last page
};
absl::StatusOr<UploadsPage> ParseUploadsPage(std::string_view body);

// Returns the upload's name in the answer to CreateMultipartUpload.
absl::StatusOr<std::string> ParseUploadId(std::string_view body);

struct UploadedPart {
  int number = 0;
  std::string etag;
  std::string checksum;  // as sent
  uint64_t size_bytes = 0;
};
// Returns whether `body` says that an upload is complete.
bool IsCompleteUploadResult(std::string_view body);

std::string CompleteUploadDocument(const std::vector<UploadedPart>& parts, bool with_checksums);

std::string DeleteDocument(const std::vector<std::string>& keys);
// Returns the first key that was not deleted, with the reason; nullopt if all were.
std::optional<ErrorDocument> ParseDeleteErrors(std::string_view body);

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_XML_H_
