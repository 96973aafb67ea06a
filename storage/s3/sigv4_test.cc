#include "storage/s3/sigv4.h"

#include "gtest/gtest.h"

namespace tessera::s3 {
namespace {

// The examples of "Authenticating Requests: Using the Authorization Header" in Amazon's S3 API
// reference.
const Credentials kExample = {.access_key_id = "AKIAIOSFODNN7EXAMPLE",
                              .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                              .session_token = ""};
constexpr char kDate[] = "20130524T000000Z";
constexpr char kEmptyHash[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string SignExample(SignedParts parts) {
  parts.headers["host"] = "examplebucket.s3.amazonaws.com";
  parts.headers["x-amz-date"] = kDate;
  if (parts.payload_hash.empty()) parts.payload_hash = kEmptyHash;
  parts.headers["x-amz-content-sha256"] = parts.payload_hash;
  return Sign(parts, kExample, "us-east-1", kDate);
}

TEST(SigV4Test, GetOfARange) {
  EXPECT_EQ(SignExample({.method = "GET",
                         .path = "/test.txt",
                         .query = {},
                         .headers = {{"range", "bytes=0-9"}},
                         .payload_hash = ""}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(SigV4Test, PutWithASignedPayload) {
  EXPECT_EQ(SignExample({.method = "PUT",
                         .path = "/" + UriEncode("test$file.text", true),
                         .query = {},
                         .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                     {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                         .payload_hash = HexSha256("Welcome to Amazon S3.")}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(SigV4Test, AParameterWithoutValue) {
  EXPECT_EQ(SignExample({.method = "GET",
                         .path = "/",
                         .query = {{"lifecycle", ""}},
                         .headers = {},
                         .payload_hash = ""}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(SigV4Test, ParametersAreSorted) {
  EXPECT_EQ(SignExample({.method = "GET",
                         .path = "/",
                         .query = {{"prefix", "J"}, {"max-keys", "2"}},
                         .headers = {},
                         .payload_hash = ""}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(SigV4Test, TheHeaderNamesWhatIsSigned) {
  const SignedParts parts = {.method = "GET",
                             .path = "/test.txt",
                             .query = {},
                             .headers = {{"host", "examplebucket.s3.amazonaws.com"},
                                         {"range", "bytes=0-9"},
                                         {"x-amz-content-sha256", kEmptyHash},
                                         {"x-amz-date", kDate}},
                             .payload_hash = kEmptyHash};
  EXPECT_EQ(AuthorizationHeader(parts, kExample, "us-east-1", kDate),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature="
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(SigV4Test, NamesAreEncodedAsBytes) {
  EXPECT_EQ(UriEncode("a b/\xc3\xa9+~", true), "a%20b/%C3%A9%2B~");
  EXPECT_EQ(UriEncode("a/b=", false), "a%2Fb%3D");
  EXPECT_EQ(EncodeQuery({{"up/loads", ""}, {"prefix", "a/b"}}), "prefix=a%2Fb&up%2Floads=");
}

TEST(SigV4Test, DatesAreInUtc) { EXPECT_EQ(AmzDate(absl::FromUnixSeconds(1369353600)), kDate); }

}  // namespace
}  // namespace tessera::s3
