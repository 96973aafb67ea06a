#ifndef TESSERA_CHECKPOINT_STORAGE_BY_NAME_CREDENTIALS_H_
#define TESSERA_CHECKPOINT_STORAGE_BY_NAME_CREDENTIALS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/by_name/role_credentials.h"
#include "checkpoint/storage/by_name/storage_name.h"
#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/s3/sigv4.h"

namespace tessera::ckpt {

// That of this process.
std::optional<std::string> ProcessEnvironment(const std::string& name);

// Where nothing names a region.
inline constexpr char kDefaultRegion[] = "us-east-1";

// What the environment and the AWS configuration files say. Empty strings for what they do not.
struct S3Account {
  s3::Credentials credentials;
  std::string region;
  std::string endpoint;
};

// Credentials are, in this order:
//
//   S3        S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY_ID (InternEvo's names);
//             AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN;
//             the profile AWS_PROFILE (or "default") of ~/.aws/credentials and ~/.aws/config, or of
//             the files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name
//   Volcano   VOLC_ACCESS_KEY_ID and VOLC_SECRET_ACCESS_KEY_ID
//   Aliyun    ALI_ACCESS_KEY_ID and ALI_SECRET_ACCESS_KEY_ID;
//             OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET
//
// For all of them, then, ACCESS_KEY and SECRET_ACCESS_KEY. For S3, last, those of a role: see
// role_credentials.h; they expire. The region is AWS_REGION,
// AWS_DEFAULT_REGION or the profile's; the endpoint AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the
// profile's: for S3 alone.
//
// FailedPrecondition, naming the variables, where there are none or one is missing; the errors of
// FindRoleCredentials().
absl::StatusOr<S3Account> FindAccount(S3Provider provider, const Environment& environment,
                                      s3::HttpClient& http);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_BY_NAME_CREDENTIALS_H_
