#ifndef TESSERA_STORAGE_OPEN_STORAGE_H_
#define TESSERA_STORAGE_OPEN_STORAGE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

class Storage;  // storage.h

// The options that a name does not state. A program fills them in once, from its command line or
// settings, and passes them on as a whole.
struct OpenStorageOptions {
  // Whether to prepare for writing. Creates a root directory, with its parents, if it does not
  // exist. Asks an object store at once whether objects can be listed, created and deleted there.
  bool create_root = false;

  // The address of an S3-compatible store, "http://host:9000" for example, for names without one.
  // Empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon's own.
  std::string s3_endpoint = {};

  // Processes that die leave unfinished uploads in an object store. With create_root, opening
  // removes an upload a day after it began if its whole path below the root matches this regular
  // expression (ECMAScript). Empty: removes no upload.
  std::string own_uploads = {};

  // Receives a sentence, once, if an object store takes longer than a few seconds for its first
  // answer; a store that does not answer at all is an error after about 15 s. Called by any thread
  // that uses the storage, during the call. May be null.
  std::function<void(const std::string&)> note = nullptr;

  // Returns these options with create_root.
  OpenStorageOptions ForWriting() const {
    OpenStorageOptions writing = *this;
    writing.create_root = true;
    return writing;
  }
};

// Opens the storage of a name:
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
// Errors, each with a sentence that names the problem:
//   InvalidArgument      a name of another form, or a path that is not a directory
//   NotFound             the directory or the bucket does not exist
//   FailedPrecondition   credentials are missing
//   PermissionDenied     credentials do not suffice
//   Unavailable          the store does not answer
absl::StatusOr<std::unique_ptr<Storage>> OpenStorage(std::string_view name,
                                                     const OpenStorageOptions& options = {});

// Returns the path of the directory that a name names; nullopt for other storages.
std::optional<std::string> LocalPathOfName(std::string_view name);

}  // namespace tessera

#endif  // TESSERA_STORAGE_OPEN_STORAGE_H_
