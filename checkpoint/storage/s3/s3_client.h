#ifndef TESSERA_CHECKPOINT_STORAGE_S3_S3_CLIENT_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_S3_CLIENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "checkpoint/storage/s3/http.h"
#include "checkpoint/storage/s3/sigv4.h"
#include "checkpoint/storage/s3/xml.h"

namespace tessera::ckpt::s3 {

struct ClientOptions {
  std::string endpoint;  // "https://host" or "http://host:9000"; without a path
  std::string bucket;
  std::string region = "us-east-1";
  Credentials credentials;
  // Reads them again: before they expire, and where the store refuses them, after which the request
  // is repeated once. Called by one thread at a time. Null: they are what they are.
  std::function<absl::StatusOr<Credentials>()> read_credentials;
  // bucket.host/key instead of host/bucket/key.
  bool virtual_host = false;

  // A request is repeated until it is answered or this has passed.
  absl::Duration deadline = absl::Minutes(5);
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration stall_timeout = absl::Seconds(30);  // without a byte in either direction
  // Pauses between repetitions: random, up to a limit that doubles from the first to the second.
  absl::Duration min_backoff = absl::Milliseconds(200);
  absl::Duration max_backoff = absl::Seconds(10);

  std::shared_ptr<HttpClient> http;  // sends the requests; null: MakeHttpClient()
};

// Objects and uploads of one bucket.
//
// Requests that fail in a way that may pass are repeated: lost and torn connections, time-outs,
// 408, 409, 429, 500, 502, 503, 504, and bodies that arrived damaged. A repetition of a request
// that had succeeded without its answer arriving has the same effect: see PutIf() and
// CompleteUpload(). See ClientOptions::read_credentials for what becomes of a token that expires.
//
// Errors: NotFound (no such key or upload), AlreadyExists (PutIf() that must not replace),
// FailedPrecondition (no such bucket, another region, unusable endpoint), PermissionDenied (keys,
// rights, a wrong clock), ResourceExhausted (quota, sizes), Unavailable (the rest, at the deadline
// with the last reason). Messages say what the store answered; the caller adds operation and name.
//
// Thread-safe.
class S3Client {
 public:
  explicit S3Client(ClientOptions options);

  const ClientOptions& options() const { return options_; }

  struct ObjectInfo {
    uint64_t size_bytes = 0;
    std::string etag;
    std::string writer;  // see PutIf()
  };
  absl::StatusOr<ObjectInfo> Head(const std::string& key);

  // Fills `out` with bytes of the object that has this etag; Unavailable where it has another one
  // by now, DataLoss where it is too short. A transfer that breaks is continued where it broke; an
  // answer with other bytes than those that were asked for is asked for again a few times.
  absl::Status Get(const std::string& key, const std::string& etag, uint64_t offset_bytes,
                   std::span<std::byte> out);

  // A small object with its etag, by one request; of a longer one, the first `max_bytes`.
  struct Contents {
    std::string bytes;
    std::string etag;
  };
  absl::StatusOr<Contents> GetContents(const std::string& key, uint64_t max_bytes);

  // Creates or replaces an object.
  absl::Status Put(const std::string& key, std::span<const std::byte> body);
  // Replaces the object that has this etag, or creates one where `etag` is empty; returns the new
  // etag. AlreadyExists where another object is there, NotFound where the one to be replaced is
  // gone, unless this very call wrote what is there: objects carry a random number of the call that
  // wrote them. In a store that does not return this number, an object with the same contents
  // counts as written by it. `before_repeating`: see Storage::Publish().
  using BeforeRepeating = std::function<absl::Status()>;
  absl::StatusOr<std::string> PutIf(const std::string& key, std::span<const std::byte> body,
                                    const std::string& etag,
                                    const BeforeRepeating& before_repeating = nullptr);
  // Whether the store obeys an etag of PutIf(). Tries it with the contents that the object has, so
  // that a store which does not loses nothing.
  absl::StatusOr<bool> ObeysIfMatch(const std::string& key, std::span<const std::byte> contents);

  // Whether the object, of which Head() has just returned `info`, has these contents.
  absl::StatusOr<bool> Holds(const std::string& key, const ObjectInfo& info,
                             std::span<const std::byte> contents);

  // A multipart upload. Its object exists once it is completed, with parts in order of number.
  struct Upload {
    std::string key;
    std::string id;
    std::string writer;
    bool may_have_twins =
        false;  // the request was repeated: an earlier one may have succeeded, too
  };
  absl::StatusOr<Upload> CreateUpload(const std::string& key);
  absl::StatusOr<UploadedPart> UploadPart(const Upload& upload, int number,
                                          std::span<const std::byte> body);
  absl::Status CompleteUpload(const Upload& upload, const std::vector<UploadedPart>& parts);
  // Aborts other uploads of the same key where there may be twins. Best effort.
  void AbortTwins(const Upload& upload);
  absl::Status AbortUpload(const std::string& key, const std::string& upload_id);
  absl::StatusOr<std::vector<UploadsPage::Upload>> ListUploads(const std::string& prefix);

  // All keys that begin with `prefix`; with `delimiter`, those with a further '/' are replaced by
  // their part up to it. At most about `max_keys` where that is not 0.
  absl::StatusOr<ListPage> List(const std::string& prefix, bool delimiter, int max_keys = 0);

  // Deletes the object that has this etag, or any if it is empty. OK if it is gone, or another one
  // is in its place: a repetition that arrives late spares what was put there meanwhile. Stores
  // that know no conditional deletion delete any.
  absl::Status Delete(const std::string& key, const std::string& etag);
  absl::Status DeleteAll(const std::vector<std::string>& keys);

  // See Storage::Abandon().
  void Abandon();

  // Calls so far, those repeated included.
  int64_t request_count() const { return request_count_; }

 private:
  struct Request {
    std::string method;
    std::string key;  // empty: the bucket itself
    std::map<std::string, std::string> query = {};
    std::map<std::string, std::string> headers = {};
    std::span<const std::byte> body = {};
    std::span<std::byte> sink = {};
    int sink_status = 206;
    bool sign_body = false;
    bool may_take_long = false;  // before the first byte of the answer
  };

  // Sends until the answer is neither a success nor a failure that may pass, or the deadline is
  // over. A body with an <Error> in it is a failure whatever its status. `restart`, if it is there,
  // is called before each repetition with the previous answer and adapts the request, or ends the
  // call with an error.
  using Restart = std::function<absl::Status(const HttpResponse&, Request&)>;
  absl::StatusOr<HttpResponse> Send(Request request, const Restart& restart = nullptr);
  // Returns a sentence about an answer with another range; empty where it is the right one.
  absl::StatusOr<std::string> GetOnce(const std::string& key, const std::string& etag,
                                      uint64_t offset_bytes, std::span<std::byte> out);
  // Whether the object, of which Head() has just returned `info`, consists of these parts.
  absl::StatusOr<bool> HoldsParts(const std::string& key, const ObjectInfo& info,
                                  const std::vector<UploadedPart>& parts);
  // See PutIf(); the condition is a header and its value.
  using Condition = std::pair<std::string, std::string>;
  absl::StatusOr<std::string> Write(const std::string& key, std::span<const std::byte> body,
                                    const std::optional<Condition>& condition,
                                    const BeforeRepeating& before_repeating);
  // One attempt, until SteadyNow() is `deadline`.
  absl::Status SendOnce(const Request& request, const Credentials& credentials,
                        absl::Duration deadline, HttpResponse& response);
  // For the next attempt; read again where they are about to expire.
  Credentials CurrentCredentials();
  // Reads them again, or waits for another thread that does, unless they are other ones than
  // `refused` by now.
  absl::Status RenewCredentials(const Credentials& refused);
  void ReadCredentials() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: Abandon() was called.
  bool Pause(absl::Duration pause);
  std::string PathOf(const std::string& key) const;

  const ClientOptions options_;
  const std::shared_ptr<HttpClient> http_;
  std::string scheme_, host_;
  std::atomic<bool> abandoned_ = false;
  Mutex mutex_;
  CondVar changed_;  // what the mutex guards, or abandoned_
  Credentials credentials_ ABSL_GUARDED_BY(mutex_);
  absl::Status credentials_error_ ABSL_GUARDED_BY(mutex_);  // of the last time they were read
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time renewal_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> request_count_ = 0;
};

// The value of x-amz-checksum-crc32c.
std::string ChecksumHeader(std::span<const std::byte> data);

}  // namespace tessera::ckpt::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_S3_CLIENT_H_
