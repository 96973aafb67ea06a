// Answers of stores: many pages of them, those of stores that keep no metadata or obey no
// condition, and those of servers that are not S3.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/s3_client.h"
#include "storage/s3/testing/http_server.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::s3 {
namespace {

const auto kMine = std::as_bytes(std::span<const char>("mine", 4));
const auto kMore = std::as_bytes(std::span<const char>("more", 4));

TEST(S3ClientAnswersTest, AConditionalPutRecognisesItsContentsInAStoreWithoutMetadata) {
  S3Server server({.keeps_metadata = false});
  S3Client client(server.ForClient());
  server.AddFault({.kind = FaultKind::kLoseAnswer, .method = "PUT"});
  EXPECT_OK(client.PutIf("key", kMine, ""));
  EXPECT_EQ(server.fault_count(), 1);
  EXPECT_EQ(client.PutIf("key", kMore, "").status().code(), absl::StatusCode::kAlreadyExists);
  server.AddFault({.status = 403, .code = "AccessDenied", .method = "GET"});
  EXPECT_TRUE(absl::IsPermissionDenied(client.PutIf("key", kMine, "").status()));
  EXPECT_TRUE(*client.ObeysIfMatch("key", kMine));
  EXPECT_EQ(server.contents("key"), "mine");
  S3Server careless({.ignores_conditions = true, .ignores_matches = true});
  careless.PutObject("key", "mine");
  EXPECT_FALSE(*S3Client(careless.ForClient()).ObeysIfMatch("key", kMine));
  S3Server without({.vendor = Vendor::kAliyun});
  EXPECT_FALSE(*S3Client(without.ForClient()).ObeysIfMatch("key", kMine));
}

TEST(S3ClientAnswersTest, ABucketElsewhereOfNoRegionIsNotNamedByIt) {
  S3Server server;
  server.AddFault({.status = 301, .code = "PermanentRedirect"});
  EXPECT_TRUE(absl::IsUnavailable(S3Client(server.ForClient()).Put("key", kMine)));
}

TEST(S3ClientAnswersTest, AChecksumIsSentFromItsHighestByteOn) {
  EXPECT_EQ(ChecksumHeader(0x12345678), "EjRWeA==");
}

// Answers every request at once, and remembers it.
class Remembering final : public HttpClient {
 public:
  absl::Status Perform(const HttpRequest& request, HttpResponse& response) override {
    requests.push_back(request);
    response.status = 200;
    response.body = "<CompleteMultipartUploadResult/>";
    return absl::OkStatus();
  }
  std::unique_ptr<HttpBatch> NewBatch() override { return std::make_unique<Batch>(*this); }

  std::vector<HttpRequest> requests;

 private:
  class Batch final : public HttpBatch {
   public:
    explicit Batch(Remembering& client) : client_(client) {}
    void Start(size_t id, HttpRequest request, HttpResponse& response) override {
      finished_ = {id, client_.Perform(request, response)};
    }
    std::optional<Finished> Wait(absl::Duration /*timeout*/) override { return finished_; }

   private:
    Remembering& client_;
    std::optional<Finished> finished_;
  };
};

TEST(S3ClientAnswersTest, TheAnswerAboutACompleteUploadMayTakeAllTheTime) {
  const auto http = std::make_shared<Remembering>();
  S3Client client({.endpoint = "http://store",
                   .bucket = "b",
                   .timeout = absl::Minutes(2),
                   .stall_timeout = absl::Seconds(3),
                   .http = http});
  ASSERT_OK(client.CompleteUpload({.key = "key", .id = "1", .writer = "w"}, {}));
  ASSERT_OK(client.Put("key", kMine));
  EXPECT_GT(http->requests.at(0).stall_timeout, absl::Minutes(1));
  EXPECT_EQ(http->requests.at(1).stall_timeout, absl::Seconds(3));
}

TEST(S3ClientPagesTest, ListsHaveManyPages) {
  S3Server server({.max_keys = 3});
  S3Client client(server.ForClient());
  for (int i = 0; i < 20; ++i) {
    server.PutObject("a/" + std::to_string(i / 2) + "/" + std::to_string(i), "x");
    ASSERT_OK(client.CreateUpload("b/" + std::to_string(i)));
  }
  EXPECT_EQ(client.List("a/", false)->objects.size(), 20);
  EXPECT_EQ(client.List("a/", true)->prefixes.size(), 10);
  EXPECT_EQ(client.List("a/", false, 1)->objects.size(), 1);
  EXPECT_EQ(client.ListUploads("b/")->size(), 20);
  EXPECT_EQ(client.ListUploads("b/1")->size(), 11);
}

TEST(S3ClientPagesTest, ManyObjectsAreDeletedInBatches) {
  S3Server server;
  S3Client client(server.ForClient());
  std::vector<std::string> keys;
  for (int i = 0; i < 2001; ++i) {
    keys.push_back("k/" + std::to_string(i) + "<&>");
    server.PutObject(keys.back(), "");
  }
  ASSERT_OK(client.DeleteAll(keys));
  EXPECT_TRUE(server.keys().empty());
  EXPECT_EQ(client.request_count(), 3);
}

// The server is not S3, or what stands before it.
TEST(S3ClientAnswersTest, AnyAnswerIsAnErrorAndNothingWorse) {
  for (const std::string body :
       {"", "<html>", "<ListBucketResult", "<ListBucketResult><Contents><Size>x</Size></Contents>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"}) {
    HttpServer server([&](HttpMessage&) {
      auto text = std::make_shared<std::string>(body);
      return HttpReply{.headers = {}, .body = {{text, 0, text->size()}}};
    });
    S3Client client({.endpoint = server.url(), .bucket = "b"});
    EXPECT_EQ(client.List("", false).status().code(), absl::StatusCode::kUnavailable) << body;
    EXPECT_FALSE(client.CreateUpload("a").ok()) << body;
    EXPECT_FALSE(client.ListUploads("a").ok()) << body;
    EXPECT_FALSE(client.CompleteUpload({.key = "a"}, {{.number = 1, .size_bytes = 1 << 20}}).ok())
        << body;
    std::string out(4, '\0');
    EXPECT_FALSE(client.Get("a", "", 0, std::as_writable_bytes(std::span(out))).ok()) << body;
  }
}

// The store neither confirms the upload nor has it any more.
TEST(S3ClientAnswersTest, AnUploadThatIsNotConfirmedIsAnErrorThatSaysWhatIsThere) {
  HttpReply head;
  HttpServer server(
      [&](HttpMessage& request) { return request.method == "HEAD" ? head : HttpReply(); });
  S3Client client({.endpoint = server.url(), .bucket = "b"});
  const auto complete = [&](const HttpReply& about_object) {
    head = about_object;
    return client.CompleteUpload({.key = "key", .id = "1", .writer = "mine"}, {});
  };
  EXPECT_OK(complete({.headers = {{"x-amz-meta-tessera-writer", "mine"}}}));
  const std::vector<std::pair<HttpReply, const char*>> cases = {
      {{.headers = {{"x-amz-meta-tessera-writer", "other"}}}, "; another object is there"},
      {{.status = 404}, "; the store answers 404"},
      {{.status = 403}, "; the store answers 403"},
  };
  for (const auto& [about_object, words] : cases) {
    const absl::Status status = complete(about_object);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(words));
  }
}

// The first answer is another range than was asked for, and is torn.
TEST(S3ClientAnswersTest, BytesOfAnotherRangeAreNotTakenForThoseThatWereAskedFor) {
  const auto object = std::make_shared<const std::string>("abcdefghij");
  std::vector<std::string> asked;
  HttpServer server([&](HttpMessage& request) {
    asked.push_back(request.headers["range"]);
    const bool is_first = asked.size() == 1;
    const size_t begin = is_first || asked.back() == "bytes=0-7" ? 0 : 4, shift = is_first ? 2 : 0;
    HttpReply reply = {.status = 206, .body = {{object, begin + shift, 8 - begin}}};
    reply.headers["content-range"] = absl::StrCat("bytes ", begin + shift, "-", 7 + shift, "/10");
    reply.tear = is_first;
    return reply;
  });
  S3Client client({.endpoint = server.url(), .bucket = "b", .min_backoff = absl::Milliseconds(1)});
  std::string out(8, '\0');
  ASSERT_OK(client.Get("a", "", 0, std::as_writable_bytes(std::span(out))));
  EXPECT_EQ(out, "abcdefgh");
  EXPECT_EQ(asked.size(), 2);
  asked.clear();
  EXPECT_TRUE(absl::IsUnavailable(client.GetContents("a", 4).status())) << "of another range";
}

}  // namespace
}  // namespace tessera::s3
