#ifndef TESSERA_STORAGE_OPEN_STORAGE_H_
#define TESSERA_STORAGE_OPEN_STORAGE_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

class Storage;  // storage.h

// What a name alone does not say. A program fills it once, from its command line or settings, and
// passes it on as a whole.
struct OpenStorageOptions {
  // For writing. Creates a root directory, with its parents, if it does not exist; an object store
  // is asked at once whether objects can be listed, created and deleted there.
  bool create_root = false;

  // The address of an S3-compatible store, "http://host:9000" for example, for names without one.
  // Empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon's own.
  std::string s3_endpoint = {};

  // Which uploads to an object store the program may remove, with create_root, a day after they
  // began: those whose whole path below the root matches this regular expression (ECMAScript).
  // Processes that die leave such uploads behind. Empty: none.
  std::string own_uploads = {};

  // The same for writing.
  OpenStorageOptions ForWriting() const {
    OpenStorageOptions writing = *this;
    writing.create_root = true;
    return writing;
  }
};

// Opens the storage that a name stands for:
//
//   /runs/a, runs/a                       a directory
//   local:/runs/a                         the same; for paths that look like something else
//   s3://bucket/prefix                    S3, or a store that speaks its protocol
//   boto3:s3://bucket.endpoint/prefix     the same; the endpoint follows the first dot, if any
//   volc:vc://bucket.endpoint/prefix      Volcano Engine TOS by its S3 protocol; also vc://
//   oss2:ali://bucket.endpoint/prefix     Alibaba Cloud OSS by its S3 protocol; also ali://
//   gs://bucket/prefix                    Google Cloud Storage by its XML protocol, with HMAC keys
//
// An endpoint without a scheme is https, except for IP addresses and localhost, which are http.
// Credentials come from the environment, the files of the AWS tools, or the role of the machine
// (docs/storage.md).
//
// Errors, each with a sentence that names what is wrong: InvalidArgument for a name of another form
// and for a path that is not a directory; NotFound if the directory or the bucket does not exist;
// FailedPrecondition if credentials are missing; PermissionDenied if they do not suffice;
// Unavailable if the store does not answer.
absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(std::string_view name,
                                                     const OpenStorageOptions& options = {});

// Returns the path of the directory that a name stands for; nullopt for other storages.
std::optional<std::string> LocalPathOfName(std::string_view name);

}  // namespace tessera

#endif  // TESSERA_STORAGE_OPEN_STORAGE_H_
