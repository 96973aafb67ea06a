#include "storage/s3/s3_client.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "base/threads.h"
#include "gtest/gtest.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::s3 {
namespace {

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text));
}

std::span<std::byte> Bytes(std::string& text) {
  return std::as_writable_bytes(std::span<char>(text));
}

std::string Pattern(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 2654435761u >> 24);
  return text;
}

absl::StatusOr<UploadedPart> UploadPart(S3Client& client, const S3Client::Upload& upload,
                                        int number, std::span<const std::byte> bytes) {
  const S3Client::PartBody body = {.number = number, .bytes = bytes};
  TESSERA_ASSIGN_OR_RETURN(const auto parts, client.UploadParts(upload, {&body, 1}));
  return parts.front();
}

class S3ClientTest : public testing::Test {
 protected:
  void Fail(Fault fault) { server_.AddFault(std::move(fault)); }
  std::string ReadBack(const std::string& key) {
    const auto info = client_.Head(key);
    if (!info.ok()) return info.status().ToString();
    std::string out(info->size_bytes, '\0');
    const absl::Status read = client_.Get(key, info->etag, 0, Bytes(out));
    return read.ok() ? out : read.ToString();
  }

  // Whether so many requests that contain `text` arrive in time.
  bool Arrives(const std::string& text, int count = 1) {
    for (int i = 0; i < 1000; ++i) {
      const std::vector<std::string> requests = server_.requests();
      if (std::ranges::count_if(requests, [&](const std::string& request) {
            return request.find(text) != std::string::npos;
          }) >= count) {
        return true;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  S3Server server_;
  S3Client client_{server_.ForClient()};
};

TEST_F(S3ClientTest, PartsAreOnTheirWayTogether) {
  const size_t size = 5 << 20;
  const std::string contents = Pattern(2 * size);
  const S3Client::PartBody bodies[] = {{1, Bytes(contents).first(size)},
                                       {2, Bytes(contents).subspan(size)}};
  const auto upload = [&](const std::string& key, int requests) {
    ASSERT_OK_AND_ASSIGN(const auto begun, client_.CreateUpload(key));
    const int64_t before = client_.request_count();
    ASSERT_OK_AND_ASSIGN(const auto parts, client_.UploadParts(begun, bodies));
    EXPECT_EQ(client_.request_count() - before, requests);
    ASSERT_OK(client_.CompleteUpload(begun, parts));
    EXPECT_TRUE(server_.contents(key) == contents);
  };
  bool together = false, again = false;
  Fail({.query = "partNumber", .meanwhile = [&] { together = Arrives("a?partNumber", 2); }});
  upload("a", 2);
  EXPECT_TRUE(together) << "a part waits for the one before";
  // The other part is answered only once the refused one has arrived again.
  Fail({.status = 503, .code = "SlowDown", .query = "partNumber"});
  Fail({.query = "partNumber", .meanwhile = [&] { again = Arrives("b?partNumber", 3); }});
  upload("b", 3);
  EXPECT_TRUE(again) << "a part is not repeated before the others are there";
}

TEST_F(S3ClientTest, ALongReadIsOfRangesOnTheirWayTogether) {
  const std::string contents = Pattern(kMaxRanges * kMinRangeBytes + 12345);
  server_.PutObject("key", contents);
  std::string out(contents.size() - 7, '\0');
  const auto get = [&](int requests) {
    out.assign(out.size(), '\0');
    const int64_t before = client_.request_count();
    EXPECT_OK(client_.Get("key", "", 7, Bytes(out)));
    EXPECT_TRUE(contents.compare(7, contents.npos, out) == 0);
    EXPECT_EQ(client_.request_count() - before, requests);
  };
  bool together = false;
  Fail({.method = "GET", .meanwhile = [&] { together = Arrives("GET key", kMaxRanges); }});
  get(kMaxRanges);
  EXPECT_TRUE(together);
  // Each is continued where it broke, and asked for again where it was another one.
  Fail({.kind = FaultKind::kTear, .method = "GET", .skip = 1, .times = 2});
  get(kMaxRanges + 2);
  Fail({.kind = FaultKind::kShortenRange, .method = "GET", .skip = 2});
  get(kMaxRanges + 1);
  Fail({.status = 404, .code = "NoSuchKey", .method = "GET", .skip = 3});
  EXPECT_EQ(client_.Get("key", "", 7, Bytes(out)).code(), absl::StatusCode::kNotFound);
}

TEST_F(S3ClientTest, ABatchEndsWhatIsNotFinished) {
  server_.PutObject("key", "contents");
  Fail({.kind = FaultKind::kStall, .method = "GET"});
  const std::shared_ptr<HttpClient> http = MakeHttpClient();
  HttpResponse response;
  {
    const std::unique_ptr<HttpBatch> batch = http->NewBatch();
    EXPECT_FALSE(batch->Wait(absl::InfiniteDuration()).has_value()) << "none is on its way";
    batch->Start(7, {.method = "GET", .url = server_.endpoint() + "/bucket/key"}, response);
    EXPECT_FALSE(batch->Wait(absl::Milliseconds(50)).has_value()) << "none is finished";
  }
  EXPECT_OK(http->Perform({.method = "GET", .url = server_.endpoint() + "/bucket/key"}, response));
}

// Each failure that may pass, at each kind of request.
TEST_F(S3ClientTest, FailuresThatPassAreRepeated) {
  std::vector<Fault> faults = {
      {.kind = FaultKind::kRefuse, .status = 408, .code = ""},
      {.kind = FaultKind::kRefuse, .status = 429, .code = "TooManyRequests"},
      {.kind = FaultKind::kRefuse, .status = 500},
      {.kind = FaultKind::kRefuse, .status = 503, .code = "SlowDown"},
      {.kind = FaultKind::kRefuse, .status = 502, .code = ""},
      {.kind = FaultKind::kRefuse, .status = 504, .code = ""},
      {.kind = FaultKind::kRefuse, .status = 409, .code = "ConditionalRequestConflict"},
      {.kind = FaultKind::kRefuse, .status = 200, .code = "InternalError"},
      {.kind = FaultKind::kDrop},
      {.kind = FaultKind::kLoseAnswer},
      {.kind = FaultKind::kTear},
      {.kind = FaultKind::kSlow},
      {.kind = FaultKind::kDamageRequest}};
  for (const char* const code : {"RequestTimeout", "BadDigest", "InvalidDigest", "IncompleteBody",
                                 "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}) {
    faults.push_back({.kind = FaultKind::kRefuse, .status = 400, .code = code});
  }
  const std::string contents = Pattern(200'000);
  for (Fault fault : faults) {
    SCOPED_TRACE(testing::Message()
                 << static_cast<int>(fault.kind) << " " << fault.status << " " << fault.code);
    server_.ClearFaults();
    fault.times = 2;
    for (const char* method : {"PUT", "GET", "POST", "DELETE"}) {
      // Only what has a body can arrive damaged.
      if (fault.kind == FaultKind::kDamageRequest && method != std::string("PUT")) continue;
      fault.method = method;
      Fail(fault);
    }
    ASSERT_OK(client_.Put("key", Bytes(contents)));
    EXPECT_EQ(ReadBack("key"), contents);
    ASSERT_OK_AND_ASSIGN(auto upload, client_.CreateUpload("parts"));
    ASSERT_OK_AND_ASSIGN(const auto part, UploadPart(client_, upload, 1, Bytes(contents)));
    ASSERT_OK(client_.CompleteUpload(upload, {part}));
    EXPECT_EQ(ReadBack("parts"), contents);
    EXPECT_EQ(client_.List("", false)->objects.size(), 2);
    ASSERT_OK(client_.Delete("key", ""));
    ASSERT_OK(client_.Delete("parts", ""));
    EXPECT_TRUE(server_.keys().empty());
    EXPECT_GE(server_.fault_count(), 2);
  }
}

// Its signature is of a time at which this process stood still.
TEST_F(S3ClientTest, ARequestThatArrivesTooLateIsSignedAgain) {
  Fail({.status = 403, .code = "RequestTimeTooSkewed"});
  EXPECT_OK(client_.PutIf("late", Bytes("1"), ""));
  Fail({.status = 403, .code = "RequestTimeTooSkewed", .times = 1000});
  const absl::Status status = S3Client(server_.ForImpatientClient()).Put("late", Bytes("2"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(S3ClientTest, WhatDoesNotPassIsNotRepeated) {
  Fail({.kind = FaultKind::kRefuse, .status = 403, .code = "AccessDenied"});
  EXPECT_EQ(client_.List("", false).status().code(), absl::StatusCode::kPermissionDenied);
  Fail({.kind = FaultKind::kRefuse, .status = 400, .code = "EntityTooLarge"});
  EXPECT_EQ(client_.Put("a", {}).code(), absl::StatusCode::kResourceExhausted);
  Fail({.kind = FaultKind::kRefuse, .status = 501, .code = "NotImplemented"});
  EXPECT_EQ(client_.Delete("a", "").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(client_.request_count(), 3);
}

TEST_F(S3ClientTest, ThereIsADeadline) {
  Fail({.kind = FaultKind::kRefuse, .status = 503, .code = "SlowDown", .times = 1'000'000});
  ClientOptions options = server_.ForClient();
  options.timeout = absl::Milliseconds(50);
  absl::Status status;
  for (int64_t requests = 0; requests < 2; options.timeout *= 2) {  // until the machine sends two
    S3Client client(options);
    status = client.Put("a", {});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    requests = client.request_count();
  }
  for (const char* part : {"503 SlowDown", "attempts in ", "http://127.0.0.1"}) {
    EXPECT_NE(status.ToString().find(part), std::string::npos) << status;
  }
}

TEST_F(S3ClientTest, AStoreThatHasNeverAnsweredIsSoonGivenUpAndTheWaitIsTold) {
  ClientOptions options = server_.ForClient();
  options.first_answer_timeout = options.note_after = absl::ZeroDuration();
  options.timeout = absl::Hours(5);
  std::vector<std::string> notes;
  options.note = [&](const std::string& note) { notes.push_back(note); };
  S3Client client(options);
  Fail({.kind = FaultKind::kDrop});
  const absl::Status status = client.Put("a", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.ToString().find("(1 attempt in "), std::string::npos) << status;
  EXPECT_EQ(client.request_count(), 1);
  const std::vector<std::string> told = {
      absl::StrCat("waiting for the first answer of ", options.endpoint, ", for about 0")};
  EXPECT_EQ(notes, told);
  Fail({.status = 503, .code = "SlowDown"});
  EXPECT_OK(client.Put("a", {})) << "a refusal is an answer";
  Fail({.kind = FaultKind::kDrop, .times = 3});
  EXPECT_OK(client.Put("a", {})) << "it has answered before";
  EXPECT_EQ(notes, told);
}

TEST_F(S3ClientTest, AStalledAnswerIsAbandoned) {
  server_.PutObject("key", "contents");
  Fail({.kind = FaultKind::kStall, .method = "GET"});
  ClientOptions options = server_.ForClient();
  options.stall_timeout = absl::Seconds(1);
  std::string out(8, '\0');
  ASSERT_OK(S3Client(options).Get("key", "", 0, Bytes(out)));
  EXPECT_EQ(out, "contents");
  EXPECT_EQ(server_.fault_count(), 1);
}

TEST_F(S3ClientTest, AnAnswerWithOtherBytesIsAskedForAgainAFewTimes) {
  const std::string contents = Pattern(1000);
  server_.PutObject("key", contents);
  Fail({.kind = FaultKind::kShortenRange, .method = "GET", .times = 3});
  std::string out(contents.size(), '\0');
  ASSERT_OK(client_.Get("key", "", 0, Bytes(out)));
  EXPECT_EQ(out, contents);
  EXPECT_EQ(server_.fault_count(), 3);
  Fail({.kind = FaultKind::kShortenRange, .method = "GET", .times = 100});
  const absl::Status refused = client_.Get("key", "", 0, Bytes(out));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(refused.ToString().find("asked for bytes 0-999"), std::string::npos) << refused;
  EXPECT_EQ(server_.fault_count(), 3 + 4) << "bounded";
}

TEST_F(S3ClientTest, AConditionalPutRecognisesItsOwnObject) {
  Fail({.kind = FaultKind::kLoseAnswer, .method = "PUT"});
  EXPECT_OK(client_.PutIf("key", Bytes("mine"), ""));
  EXPECT_EQ(server_.fault_count(), 1);
  // The answer is lost and, before the request is repeated, another program's object is there.
  Fail({.kind = FaultKind::kDrop, .method = "PUT", .key_part = "other"});
  server_.PutObject("other", "theirs");
  EXPECT_EQ(client_.PutIf("other", Bytes("mine"), "").status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(server_.contents("other"), "theirs");
}

TEST_F(S3ClientTest, ADeletionThatArrivesLateSparesAnotherObject) {
  ASSERT_OK(client_.Put("a", Bytes("1")));
  const std::string etag = client_.Head("a")->etag;
  Fail({.method = "DELETE", .meanwhile = [&] {
          ASSERT_OK(client_.Delete("a", etag));
          ASSERT_OK(client_.Put("a", Bytes("2")));
        }});
  EXPECT_OK(client_.Delete("a", etag));
  EXPECT_EQ(server_.contents("a"), "2");
  // A store that refuses to look at the condition.
  Fail({.status = 501, .code = "NotImplemented", .method = "DELETE"});
  EXPECT_OK(client_.Delete("a", client_.Head("a")->etag));
  EXPECT_EQ(client_.Head("a").status().code(), absl::StatusCode::kNotFound);
}

// What a call stores damaged, it replaces, but not what another program has put there since.
TEST_F(S3ClientTest, ADamagedObjectIsNotRepairedOverAnotherOne) {
  Fail({.kind = FaultKind::kDamageStored, .method = "PUT"});
  Fail({.method = "PUT", .skip = 0, .meanwhile = [&] { server_.PutObject("key", "theirs"); }});
  EXPECT_EQ(client_.PutIf("key", Bytes("mine"), "").status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(server_.contents("key"), "theirs");
}

TEST_F(S3ClientTest, AnObjectIsReplacedOnlyWhereItHasTheEtag) {
  ASSERT_OK_AND_ASSIGN(const auto first, client_.PutIf("key", Bytes("1"), ""));
  EXPECT_TRUE(*client_.ObeysIfMatch("key", Bytes("1")));
  Fail({.kind = FaultKind::kLoseAnswer, .method = "PUT"});
  ASSERT_OK_AND_ASSIGN(const auto second, client_.PutIf("key", Bytes("2"), first));
  EXPECT_EQ(second, client_.Head("key")->etag);
  EXPECT_EQ(server_.fault_count(), 1);
  EXPECT_EQ(client_.PutIf("key", Bytes("3"), first).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(client_.PutIf("none", Bytes("3"), second).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_.GetContents("key", 100)->bytes, "2");
  server_.AddFault({.status = 403, .code = "AccessDenied"});
  EXPECT_TRUE(absl::IsPermissionDenied(client_.PutIf("key", Bytes("4"), second).status()));
  EXPECT_EQ(*client_.PutIf("key", Bytes("4"), second), client_.Head("key")->etag);
}

TEST_F(S3ClientTest, OfALongerObjectTheBeginningIsRead) {
  server_.PutObject("key", "a longer one");
  EXPECT_EQ(client_.GetContents("key", 3)->bytes, "a l");
  server_.AddFault({.kind = FaultKind::kShortenRange});
  EXPECT_TRUE(absl::IsUnavailable(client_.GetContents("key", 3).status()));
  server_.PutObject("key", "");
  EXPECT_EQ(client_.GetContents("key", 3)->bytes, "");
  EXPECT_EQ(client_.GetContents("key", 3)->etag, client_.Head("key")->etag);
}

// What a store answers where credentials that were good are so no more.
TEST_F(S3ClientTest, RefusedCredentialsAreReadAgainAndTheRequestRepeatedOnce) {
  int reads = 0;
  ClientOptions options = server_.ForClient();
  options.credentials.session_token = "old";
  Credentials current = options.credentials;
  options.read_credentials = [&]() -> absl::StatusOr<Credentials> {
    ++reads;
    return current;
  };
  server_.SetCredentials(current);
  S3Client client(options);
  ASSERT_OK(client.Put("a", Bytes("1")));
  EXPECT_EQ(reads, 0);
  current.session_token = "new";
  server_.SetCredentials(current);
  // 400 ExpiredToken; of HEAD without a word about it.
  EXPECT_EQ(client.Head("a")->size_bytes, 1);
  EXPECT_EQ(reads, 1);
  current = {.access_key_id = "OTHER", .secret_access_key = "secret", .session_token = ""};
  server_.SetCredentials(current);
  EXPECT_OK(client.PutIf("b", Bytes("2"), ""));
  EXPECT_EQ(reads, 2);
  for (const auto& [status, code] :
       {std::pair(400, "InvalidToken"), std::pair(403, "InvalidAccessKeyId"),
        std::pair(403, "SignatureDoesNotMatch"), std::pair(403, "AccessDenied")}) {
    Fail({.kind = FaultKind::kRefuse, .status = status, .code = code});
    EXPECT_OK(client.Put("c", Bytes("3"))) << code;
  }
  EXPECT_EQ(reads, 6);
  // Once.
  server_.SetCredentials({.access_key_id = "GONE", .secret_access_key = "x", .session_token = ""});
  const int64_t before = client.request_count();
  EXPECT_EQ(client.Delete("c", "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(client.request_count(), before + 2);
}

TEST_F(S3ClientTest, CredentialsThatCannotBeReadAgainAreAnError) {
  ClientOptions options = server_.ForClient();
  options.credentials.session_token = "old";
  options.read_credentials = [] { return absl::UnavailableError("no role here"); };
  S3Client client(options);
  const absl::Status status = client.Delete("a", "");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  for (const char* part : {"the session token has expired", "no role here"}) {
    EXPECT_NE(status.ToString().find(part), std::string::npos) << status;
  }
}

TEST_F(S3ClientTest, CredentialsAreRenewedBeforeTheyExpireByOneThread) {
  std::atomic<int> reads = 0;
  ClientOptions options = server_.ForClient();
  options.credentials.session_token = "0";
  options.credentials.expiration = absl::Now() + absl::Seconds(1);
  options.read_credentials = [&]() -> absl::StatusOr<Credentials> {
    Credentials next = server_.ForClient().credentials;
    next.session_token = std::to_string(++reads);
    next.expiration = absl::Now() + absl::Hours(1);
    server_.SetCredentials(next);
    return next;
  };
  server_.SetCredentials(options.credentials);
  S3Client client(options);
  ASSERT_OK(client.Delete("a", ""));
  const int early_reads = reads;
  if (absl::Now() < options.credentials.expiration) EXPECT_EQ(early_reads, 0);
  absl::SleepFor(absl::Seconds(1.1));
  EXPECT_EQ(RunTasks(8, 8, [&](int, size_t) { return client.Delete("a", ""); }), absl::OkStatus());
  EXPECT_EQ(reads, 1);
  for (const std::string& request : server_.requests()) EXPECT_EQ(request, "DELETE a");
  EXPECT_EQ(server_.requests().size(), 9) << "none was refused";
}

// For hours otherwise.
TEST_F(S3ClientTest, WhatIsAbandonedWaitsForNothing) {
  Fail({.kind = FaultKind::kRefuse, .status = 503, .code = "SlowDown", .times = 1'000'000});
  ClientOptions options = server_.ForClient();
  options.min_backoff = options.max_backoff = absl::Hours(4);
  options.timeout = options.stall_timeout = absl::Hours(5);
  S3Client refused(options), stalled(options);
  std::thread waits([&] { EXPECT_TRUE(absl::IsUnavailable(refused.Delete("a", ""))); });
  while (server_.fault_count() == 0) absl::SleepFor(absl::Milliseconds(1));
  refused.Abandon();
  waits.join();
  EXPECT_EQ(refused.request_count(), 1);
  EXPECT_TRUE(absl::IsUnavailable(refused.Delete("a", ""))) << "tried once";
  EXPECT_EQ(refused.request_count(), 2);
  server_.ClearFaults();
  Fail({.kind = FaultKind::kStall});
  std::thread hangs([&] { EXPECT_TRUE(absl::IsUnavailable(stalled.Delete("a", ""))); });
  while (server_.fault_count() == 0) absl::SleepFor(absl::Milliseconds(1));
  stalled.Abandon();
  hangs.join();
  EXPECT_OK(stalled.PutIf("b", Bytes("2"), "")) << "the store answers";
}

TEST_F(S3ClientTest, ACompletedUploadIsRecognised) {
  ASSERT_OK_AND_ASSIGN(const auto upload, client_.CreateUpload("key"));
  ASSERT_OK_AND_ASSIGN(const auto part, UploadPart(client_, upload, 1, Bytes("contents")));
  Fail({.kind = FaultKind::kLoseAnswer, .method = "POST"});
  EXPECT_OK(client_.CompleteUpload(upload, {part}));
  EXPECT_EQ(server_.contents("key"), "contents");
  EXPECT_EQ(server_.fault_count(), 1);
  // One that another program has removed is not.
  const auto removed = client_.CreateUpload("key");
  ASSERT_OK(client_.AbortUpload("key", removed->id));
  EXPECT_EQ(client_.CompleteUpload(*removed, {part}).code(), absl::StatusCode::kUnavailable);
}

TEST(S3ClientMetadataTest, ACompletedUploadIsRecognisedByItsPartsInAStoreWithoutMetadata) {
  S3Server server({.min_part_bytes = 1, .keeps_metadata = false});
  S3Client client(server.ForClient());
  ASSERT_OK_AND_ASSIGN(const auto upload, client.CreateUpload("key"));
  const auto first = UploadPart(client, upload, 1, Bytes("con"));
  const auto last = UploadPart(client, upload, 2, Bytes("tents"));
  ASSERT_TRUE(first.ok() && last.ok());
  server.AddFault({.kind = FaultKind::kLoseAnswer, .method = "POST"});
  EXPECT_OK(client.CompleteUpload(upload, {*first, *last}));
  EXPECT_EQ(server.fault_count(), 1);
  for (const char* others : {"content5", "contents and more"}) {
    server.PutObject("key", others);
    EXPECT_EQ(client.CompleteUpload(upload, {*first, *last}).code(),
              absl::StatusCode::kUnavailable);
  }
}

TEST_F(S3ClientTest, AnUploadThatWasCreatedTwiceLeavesNothing) {
  Fail({.kind = FaultKind::kLoseAnswer, .method = "POST"});
  ASSERT_OK_AND_ASSIGN(const auto upload, client_.CreateUpload("key"));
  const auto other = client_.CreateUpload("key/below");
  EXPECT_EQ(server_.upload_count(), 3);
  client_.AbortTwins(upload);
  client_.AbortTwins(*other);
  EXPECT_EQ(server_.upload_count(), 2);
  ASSERT_OK(client_.AbortUpload("key", upload.id));
  EXPECT_EQ(server_.upload_count(), 1);
}

TEST_F(S3ClientTest, BytesThatAreStoredDamagedAreSentAgain) {
  Fail({.kind = FaultKind::kDamageStored, .method = "PUT"});
  ASSERT_OK(client_.PutIf("key", Bytes("contents"), ""));
  EXPECT_EQ(server_.contents("key"), "contents");
  const auto upload = client_.CreateUpload("parts");
  Fail({.kind = FaultKind::kDamageStored, .method = "PUT"});
  ASSERT_OK_AND_ASSIGN(const auto part, UploadPart(client_, *upload, 1, Bytes("part")));
  ASSERT_OK(client_.CompleteUpload(*upload, {part}));
  EXPECT_EQ(server_.contents("parts"), "part");
  server_.AddFault({.kind = FaultKind::kDamageStored, .method = "PUT", .times = 4});
  EXPECT_TRUE(absl::IsUnavailable(client_.Put("other", Bytes("contents"))));
}

TEST_F(S3ClientTest, AReplacedObjectIsNotMixedWithTheOldOne) {
  server_.PutObject("key", "old");
  const auto info = client_.Head("key");
  server_.PutObject("key", "new");
  std::string out(3, '\0');
  const absl::Status status = client_.Get("key", info->etag, 0, Bytes(out));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.ToString().find("replaced"), std::string::npos);
}

TEST_F(S3ClientTest, ReadsPastTheEndAreErrors) {
  server_.PutObject("key", "12345");
  std::string out(3, '\0');
  EXPECT_EQ(client_.Get("key", "", 5, Bytes(out)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(client_.Get("key", "", 4, Bytes(out)).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tessera::s3
