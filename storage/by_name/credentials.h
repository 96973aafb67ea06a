#ifndef TESSERA_STORAGE_BY_NAME_CREDENTIALS_H_
#define TESSERA_STORAGE_BY_NAME_CREDENTIALS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "storage/by_name/storage_name.h"
#include "storage/s3/http.h"
#include "storage/s3/sigv4.h"

namespace tessera {

// Returns the value of an environment variable; nullopt if it is not set, or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// Returns a variable of this process's environment.
std::optional<std::string> ProcessEnvironment(const std::string& name);

// The settings of a profile in the AWS configuration files, by their names.
using Profile = std::map<std::string, std::string>;

// The region if nothing names one.
inline constexpr char kDefaultRegion[] = "us-east-1";

// An account as the environment and the AWS configuration files state it; empty strings for missing
// values.
struct S3Account {
  s3::Credentials credentials;
  std::string region;
  std::string endpoint;
};

// Finds the account. Credentials are, in this order:
//
//   S3        S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY_ID (InternEvo's names);
//             AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN;
//             the profile AWS_PROFILE (or "default") of ~/.aws/credentials and ~/.aws/config, or of
//             the files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name
//   Volcano   VOLC_ACCESS_KEY_ID and VOLC_SECRET_ACCESS_KEY_ID
//   Aliyun    ALI_ACCESS_KEY_ID and ALI_SECRET_ACCESS_KEY_ID;
//             OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET
//   Google    GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY, an HMAC key
//
// then ACCESS_KEY and SECRET_ACCESS_KEY for all providers. For S3, the credentials of a role are
// last, see FindRoleCredentials(); they expire. Also for S3 alone, the region is AWS_REGION,
// AWS_DEFAULT_REGION or the profile's; the endpoint is AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the
// profile's.
//
// Errors: Unauthenticated, naming the variables, if no credentials are found or one of a pair is
// missing; those of FindRoleCredentials().
absl::StatusOr<S3Account> FindAccount(S3Provider provider, const Environment& environment,
                                      s3::HttpClient& http);

// Returns temporary credentials of a role of this process, from the services that the AWS SDKs ask
// if neither the environment nor the files have keys. The first of these that applies:
//
//   web identity  AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN (AWS_ROLE_SESSION_NAME), or the
//                 profile's settings of these names in lower case without AWS_. Asks STS in
//                 `region`, or at AWS_ENDPOINT_URL_STS or AWS_ENDPOINT_URL
//   container     AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, or ..._FULL_URI, which must be https or
//                 an address of this machine or of such services. Sends
//                 AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE or AWS_CONTAINER_AUTHORIZATION_TOKEN
//   instance      the metadata service, version 2, at 169.254.169.254 or
//                 AWS_EC2_METADATA_SERVICE_ENDPOINT, unless AWS_EC2_METADATA_DISABLED is true
//
// Returns nullopt if none applies: no settings, and no metadata service that answers. Errors are
// those of the service that applies: Unavailable, FailedPrecondition, Unauthenticated or
// PermissionDenied, naming the service. Waits a second for a metadata service that may not be
// there.
absl::StatusOr<std::optional<s3::Credentials>> FindRoleCredentials(const Environment& environment,
                                                                   const Profile& profile,
                                                                   const std::string& region,
                                                                   s3::HttpClient& http);

}  // namespace tessera

#endif  // TESSERA_STORAGE_BY_NAME_CREDENTIALS_H_
