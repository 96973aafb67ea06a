#ifndef TESSERA_CHECKPOINT_STORAGE_BY_NAME_ROLE_CREDENTIALS_H_
#define TESSERA_CHECKPOINT_STORAGE_BY_NAME_ROLE_CREDENTIALS_H_

// Temporary credentials of the roles that a process may have, from the services that give them:
// where the AWS SDKs look once neither the environment nor the files have keys.

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/s3/sigv4.h"

namespace tessera::ckpt {

// The value of an environment variable; nullopt: not set, or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// The first of these that applies:
//
//   web identity  AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN (AWS_ROLE_SESSION_NAME), or the
//                 profile's settings of these names in lower case without AWS_: by STS in `region`,
//                 or at AWS_ENDPOINT_URL_STS or AWS_ENDPOINT_URL
//   container     AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, or ..._FULL_URI, which must be https or
//                 an address of this machine or of such services; with
//                 AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE or AWS_CONTAINER_AUTHORIZATION_TOKEN
//   instance      the metadata service, version 2, at 169.254.169.254 or
//                 AWS_EC2_METADATA_SERVICE_ENDPOINT, unless AWS_EC2_METADATA_DISABLED is true
//
// Nullopt where none applies: no settings, and no metadata service that answers. An error of one
// that applies is not passed over. Unavailable, FailedPrecondition or PermissionDenied, naming the
// service. Waits a second for a metadata service that may not be there.
absl::StatusOr<std::optional<s3::Credentials>> FindRoleCredentials(
    const Environment& environment, const std::map<std::string, std::string>& profile,
    const std::string& region, s3::HttpClient& http);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_BY_NAME_ROLE_CREDENTIALS_H_
