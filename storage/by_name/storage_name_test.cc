#include "storage/by_name/storage_name.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

// "path" for directories; "provider bucket|endpoint|prefix" for others; the error's code.
std::string Parse(const std::string& name) {
  const auto parsed = ParseStorageName(name);
  if (!parsed.ok()) return absl::StatusCodeToString(parsed.status().code());
  if (const auto* local = std::get_if<LocalName>(&*parsed)) return local->path;
  const auto& s3 = std::get<S3Name>(*parsed);
  const char* const providers[] = {"s3", "volcano", "aliyun", "google"};
  return std::string(providers[static_cast<int>(s3.provider)]) + " " + s3.bucket + "|" +
         s3.endpoint + "|" + s3.prefix;
}

TEST(StorageNameTest, Directories) {
  EXPECT_EQ(Parse("/runs/a"), "/runs/a");
  EXPECT_EQ(Parse("runs/a:b"), "runs/a:b");
  EXPECT_EQ(Parse("runs"), "runs");
  EXPECT_EQ(Parse("://a"), "://a");
  EXPECT_EQ(Parse("local:/runs/a"), "/runs/a");
  EXPECT_EQ(Parse("my runs://a"), "my runs://a");  // no scheme has a space
  EXPECT_EQ(Parse("local:s3://not/a/bucket"), "s3://not/a/bucket");
}

TEST(StorageNameTest, Buckets) {
  EXPECT_EQ(Parse("s3://bucket/a/b"), "s3 bucket||a/b");
  EXPECT_EQ(Parse("s3://bucket"), "s3 bucket||");
  EXPECT_EQ(Parse("s3://bucket/a/"), "s3 bucket||a");
  EXPECT_EQ(Parse("s3://a.bucket/a"), "s3 a.bucket||a");
  EXPECT_EQ(Parse("boto3:s3://bucket.10.1.2.3/a/b"), "s3 bucket|10.1.2.3|a/b");
  EXPECT_EQ(Parse("boto3:s3://bucket.s3.example.org:9000/a"), "s3 bucket|s3.example.org:9000|a");
  EXPECT_EQ(Parse("boto3:s3://bucket/a"), "s3 bucket||a");
  EXPECT_EQ(Parse("volc:vc://bucket.tos-cn-beijing.volces.com/a"),
            "volcano bucket|tos-cn-beijing.volces.com|a");
  EXPECT_EQ(Parse("oss2:ali://bucket.oss-cn-hangzhou.aliyuncs.com/a"),
            "aliyun bucket|oss-cn-hangzhou.aliyuncs.com|a");
  EXPECT_EQ(Parse("gs://a.bucket/a/b/"), "google a.bucket||a/b");
  EXPECT_EQ(Parse("ali://bucket.oss-cn-hangzhou.aliyuncs.com"),
            "aliyun bucket|oss-cn-hangzhou.aliyuncs.com|");
}

TEST(StorageNameTest, OtherNamesAreRefusedWithTheFormsThatExist) {
  for (const char* name :
       {"", "local:", "az://bucket/a", "boto3:bucket/a", "boto3:gs://b/a", "volc:vc://bucket/a",
        "vc://bucket/a", "oss2:ali://bucket", "ali://bucket", "s3://", "s3:///a",
        "s3://user@host/a", "boto3:s3://.endpoint/a"}) {
    EXPECT_EQ(Parse(name), "INVALID_ARGUMENT") << name;
  }
  EXPECT_NE(ParseStorageName("az://b").status().ToString().find("s3://bucket/prefix"),
            std::string::npos);
}

TEST(StorageNameTest, EndpointsGetAScheme) {
  EXPECT_EQ(*NormalizeEndpoint("s3.example.org"), "https://s3.example.org");
  EXPECT_EQ(*NormalizeEndpoint("https://s3.example.org:9000/"), "https://s3.example.org:9000");
  EXPECT_EQ(*NormalizeEndpoint("http://s3.example.org"), "http://s3.example.org");
  EXPECT_EQ(*NormalizeEndpoint("10.1.2.3:9000"), "http://10.1.2.3:9000");
  EXPECT_EQ(*NormalizeEndpoint("localhost:9000"), "http://localhost:9000");
  for (const char* endpoint : {"", "ftp://host", "http://", "host/path", "http://a b"}) {
    EXPECT_EQ(NormalizeEndpoint(endpoint).status().code(), absl::StatusCode::kInvalidArgument)
        << endpoint;
  }
}

TEST(StorageNameTest, ProvidersHaveAddressesAndRegions) {
  EXPECT_EQ(S3AddressOf(S3Provider::kVolcano, "https://tos-cn-beijing.volces.com"),
            "https://tos-s3-cn-beijing.volces.com");
  EXPECT_EQ(S3AddressOf(S3Provider::kVolcano, "https://tos-s3-cn-beijing.volces.com"),
            "https://tos-s3-cn-beijing.volces.com");
  EXPECT_EQ(S3AddressOf(S3Provider::kS3, "https://tos-x"), "https://tos-x");
  EXPECT_EQ(RegionOfEndpoint(S3Provider::kVolcano, "tos-cn-beijing.volces.com"), "cn-beijing");
  EXPECT_EQ(RegionOfEndpoint(S3Provider::kAliyun, "oss-cn-hangzhou-internal.aliyuncs.com"),
            "cn-hangzhou");
  EXPECT_EQ(RegionOfEndpoint(S3Provider::kAliyun, "s3.oss-cn-hangzhou.aliyuncs.com"),
            "cn-hangzhou");
  EXPECT_EQ(RegionOfEndpoint(S3Provider::kS3, "10.1.2.3"), "");
}

TEST(StorageNameTest, EndpointsHaveADialect) {
  const auto own = [](S3Provider provider, const char* endpoint) {
    const s3::Dialect dialect = DialectOf(provider, endpoint);
    return std::string(dialect.create_only.back().name.empty() ? dialect.create_only[0].name
                                                               : dialect.create_only.back().name);
  };
  EXPECT_EQ(own(S3Provider::kS3, "https://s3.eu-west-1.amazonaws.com"), "if-none-match");
  EXPECT_EQ(own(S3Provider::kS3, "http://127.0.0.1:9000"), "if-none-match");
  EXPECT_EQ(own(S3Provider::kVolcano, "https://tos.example.org"), "x-tos-forbid-overwrite");
  EXPECT_EQ(own(S3Provider::kS3, "https://oss-cn-hangzhou.aliyuncs.com"), "x-oss-forbid-overwrite");
  EXPECT_EQ(own(S3Provider::kS3, "https://storage.googleapis.com:443"),
            "x-goog-if-generation-match");
}

TEST(StorageNameTest, BucketsAreInTheHostWhereTheStoreWantsIt) {
  EXPECT_TRUE(UsesVirtualHosts(S3Provider::kS3, "https://s3.eu-west-1.amazonaws.com", "bucket"));
  EXPECT_TRUE(UsesVirtualHosts(S3Provider::kAliyun, "https://oss.example.org", "bucket"));
  EXPECT_FALSE(UsesVirtualHosts(S3Provider::kS3, "https://s3.eu-west-1.amazonaws.com", "a.bucket"));
  EXPECT_FALSE(UsesVirtualHosts(S3Provider::kS3, "https://minio.example.org", "bucket"));
  EXPECT_FALSE(UsesVirtualHosts(S3Provider::kVolcano, "http://127.0.0.1:9000", "bucket"));
}

}  // namespace
}  // namespace tessera
