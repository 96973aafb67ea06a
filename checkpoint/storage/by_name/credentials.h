#ifndef TESSERA_CHECKPOINT_STORAGE_BY_NAME_CREDENTIALS_H_
#define TESSERA_CHECKPOINT_STORAGE_BY_NAME_CREDENTIALS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/by_name/storage_name.h"
#include "checkpoint/storage/s3/sigv4.h"

namespace tessera::ckpt {

// The value of an environment variable; nullopt: not set, or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// That of this process.
std::optional<std::string> ProcessEnvironment(const std::string& name);

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
// For all of them, last, ACCESS_KEY and SECRET_ACCESS_KEY. The region is AWS_REGION,
// AWS_DEFAULT_REGION or the profile's; the endpoint AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the
// profile's: for S3 alone.
//
// FailedPrecondition, naming the variables, where there are none or one is missing.
absl::StatusOr<S3Account> FindAccount(S3Provider provider, const Environment& environment);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_STORAGE_BY_NAME_CREDENTIALS_H_
