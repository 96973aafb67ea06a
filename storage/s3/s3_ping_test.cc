// What is wrong with a store is said in a sentence when a storage is opened for writing.

#include <string>

#include "gtest/gtest.h"
#include "storage/s3/s3_storage.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera {
namespace {

using s3::S3Server;
using s3::S3ServerOptions;
using s3::Vendor;

struct PingCase {
  const char* name;
  S3ServerOptions server;
  void (*change)(s3::ClientOptions& options);
  absl::StatusCode code;
  const char* message;
};

class S3PingTest : public testing::TestWithParam<PingCase> {};

TEST_P(S3PingTest, SaysWhatIsWrong) {
  const PingCase& ping = GetParam();
  S3Server server(ping.server);
  S3StorageOptions options = {.client = server.ForClient(), .prefix = "run", .create_root = true};
  // A ping has less patience than one of these pauses, so it ends at once; other requests wait.
  options.client.min_backoff = options.client.max_backoff = absl::Minutes(2);
  options.client.timeout = absl::Hours(5);
  ping.change(options.client);
  const auto storage = OpenS3Storage(options);
  EXPECT_EQ(storage.status().code(), ping.code) << storage.status();
  EXPECT_NE(storage.status().ToString().find(ping.message), std::string::npos) << storage.status();
}

TEST(S3StorageWithoutPing, AStoreThatHasNeverAnsweredIsSoonGivenUp) {
  S3StorageOptions options = {.client = S3Server().ForClient()};  // which has stopped
  options.client.min_backoff = options.client.max_backoff = absl::Minutes(2);
  options.client.timeout = absl::Hours(5);
  const auto storage = OpenS3Storage(options);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->List("").status().code(), absl::StatusCode::kUnavailable);
}

void Unchanged(s3::ClientOptions& /*options*/) {}

INSTANTIATE_TEST_SUITE_P(
    Cases, S3PingTest,
    testing::Values(PingCase{"NoBucket",
                             {},
                             [](s3::ClientOptions& o) { o.bucket = "other"; },
                             absl::StatusCode::kFailedPrecondition,
                             "there is no bucket other"},
                    PingCase{"NoKey",
                             {},
                             [](s3::ClientOptions& o) { o.credentials.access_key_id = "NOKEY"; },
                             absl::StatusCode::kPermissionDenied,
                             "there is no access key NOKEY"},
                    PingCase{"WrongSecret",
                             {},
                             [](s3::ClientOptions& o) { o.credentials.secret_access_key = "x"; },
                             absl::StatusCode::kPermissionDenied,
                             "the secret key does not belong to"},
                    PingCase{"WrongRegion",
                             {},
                             [](s3::ClientOptions& o) { o.region = "us-east-1"; },
                             absl::StatusCode::kFailedPrecondition,
                             "is in the region eu-test-1"},
                    PingCase{"WrongClock",
                             {.clock_offset = absl::Minutes(-20)},
                             Unchanged,
                             absl::StatusCode::kPermissionDenied,
                             "this machine's clock is wrong: it is 20m"},
                    PingCase{"NotListable",
                             {.denied_method = "GET"},
                             Unchanged,
                             absl::StatusCode::kPermissionDenied,
                             "cannot list what is in s3://bucket/run"},
                    PingCase{"NotWritable",
                             {.denied_method = "PUT"},
                             Unchanged,
                             absl::StatusCode::kPermissionDenied,
                             "cannot write to s3://bucket/run"},
                    PingCase{"NotDeletable",
                             {.denied_method = "DELETE"},
                             Unchanged,
                             absl::StatusCode::kPermissionDenied,
                             "cannot delete from s3://bucket/run"},
                    PingCase{"NoConditions",
                             {.ignores_conditions = true},
                             Unchanged,
                             absl::StatusCode::kFailedPrecondition,
                             "although If-None-Match forbids it"},
                    PingCase{"NoConditionsOfVolcano",
                             {.vendor = Vendor::kVolcano, .ignores_conditions = true},
                             Unchanged,
                             absl::StatusCode::kFailedPrecondition,
                             "although If-None-Match or x-tos-forbid-overwrite forbids it"},
                    PingCase{"NoConditionsOfAliyun",
                             {.vendor = Vendor::kAliyun, .ignores_conditions = true},
                             Unchanged,
                             absl::StatusCode::kFailedPrecondition,
                             "although x-oss-forbid-overwrite forbids it"},
                    PingCase{"NoConditionsOfGoogle",
                             {.vendor = Vendor::kGoogle, .ignores_conditions = true},
                             Unchanged,
                             absl::StatusCode::kFailedPrecondition,
                             "although x-goog-if-generation-match forbids it"},
                    PingCase{"BucketInThePath",
                             {.vendor = Vendor::kAliyun},
                             [](s3::ClientOptions& o) { o.virtual_host = false; },
                             absl::StatusCode::kPermissionDenied,
                             "403 SecondLevelDomainForbidden"},
                    PingCase{"ConditionsThatOssDoesNotKnow",
                             {.vendor = Vendor::kAliyun},
                             [](s3::ClientOptions& o) {
                               o.dialect.create_only = s3::kAmazon.create_only;
                             },
                             absl::StatusCode::kUnimplemented,
                             "501 NotImplemented"},
                    PingCase{"SignedForAmazonAtGoogle",
                             {.vendor = Vendor::kGoogle},
                             [](s3::ClientOptions& o) { o.dialect = s3::kAmazon; },
                             absl::StatusCode::kUnavailable,
                             "400 InvalidArgument"},
                    PingCase{"NoServer",
                             {},
                             [](s3::ClientOptions& o) { o.endpoint = "http://127.0.0.1:1"; },
                             absl::StatusCode::kUnavailable,
                             "http://127.0.0.1:1"},
                    PingCase{"NoTls",
                             {},
                             [](s3::ClientOptions& o) {
                               o.endpoint.replace(0, 4, "https");
                               o.connect_timeout = absl::Milliseconds(50);
                             },
                             absl::StatusCode::kUnavailable,
                             "https://127.0.0.1"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera
