#ifndef TESSERA_STORAGE_S3_REQUEST_SENDER_H_
#define TESSERA_STORAGE_S3_REQUEST_SENDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "storage/s3/dialect.h"
#include "storage/s3/http.h"
#include "storage/s3/sigv4.h"

namespace tessera::s3 {

struct ClientOptions {
  std::string endpoint;  // "https://host" or "http://host:9000"; without a path
  std::string bucket;
  std::string region = "us-east-1";
  Credentials credentials;
  // Reads the credentials again, before they expire and if the store refuses them, after which the
  // request is repeated once. Called by one thread at a time. Null: credentials never change.
  std::function<absl::StatusOr<Credentials>()> read_credentials;
  // Whether URLs are bucket.host/key instead of host/bucket/key.
  bool virtual_host = false;
  Dialect dialect;

  // Time after which a request without an answer is no longer repeated.
  absl::Duration timeout = absl::Minutes(5);
  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration stall_timeout = absl::Seconds(30);  // without a byte in either direction
  // Limits the repetitions, and each wait for a byte, until the store has answered once, so
  // that a wrong address is told soon.
  absl::Duration first_answer_timeout = absl::Seconds(15);
  // Receives a sentence, once, if the first answer takes longer than `note_after`. Called by any
  // thread that sends a request. May be null.
  std::function<void(const std::string&)> note;
  absl::Duration note_after = absl::Seconds(3);
  // Pauses between repetitions: random, up to a limit that doubles from the first to the second.
  absl::Duration min_backoff = absl::Milliseconds(200);
  absl::Duration max_backoff = absl::Seconds(10);

  std::shared_ptr<HttpClient> http;  // sends the requests; null: MakeHttpClient()
};

// A request to a bucket, before it is signed.
struct Request {
  std::string method;
  std::string key;  // empty: the bucket itself
  std::map<std::string, std::string> query = {};
  std::map<std::string, std::string> headers = {};
  std::span<const std::byte> body = {};
  std::span<std::byte> sink = {};  // see HttpRequest
  int sink_status = 206;
  bool sign_body = false;
  bool may_take_long = false;  // before the first byte of the answer
};

// Signs requests to one bucket, sends them, and repeats requests whose failure may pass: lost and
// torn connections, time-outs, 408, 409, 429, 500, 502, 503, 504, and bodies that arrived damaged.
//
// Errors, whose messages quote the store's answer:
//   NotFound             404
//   AlreadyExists        412; 409 if nothing may be overwritten in TOS or OSS
//   OutOfRange           416
//   Unimplemented        501
//   FailedPrecondition   no such bucket, another region, unusable endpoint
//   PermissionDenied     keys, rights, a wrong clock
//   ResourceExhausted    quota, sizes
//   Unavailable          the rest, at the deadline with the last reason; earlier where the store
//                        has not answered yet (first_answer_timeout)
//
// Thread-safe.
class RequestSender {
 public:
  explicit RequestSender(ClientOptions options);

  const ClientOptions& options() const { return options_; }

  // Sends a request until the answer is a success or a failure that will not pass, or until the
  // deadline. A body with an <Error> in it is a failure, whatever its status. `restart` (may be
  // null) is called before each repetition with the previous answer, and adapts the request or ends
  // the call with an error.
  using Restart = std::function<absl::Status(const HttpResponse&, Request&)>;
  absl::StatusOr<HttpResponse> Send(Request request, Restart restart = nullptr);

  // One of several requests.
  struct Sending {
    Request request;
    Restart restart = nullptr;
    // Completes the request before it is sent first, while the requests before it are in flight.
    // May be null.
    std::function<void(Request&)> prepare = nullptr;
    absl::StatusOr<HttpResponse> response = absl::UnknownError("not sent");  // the result
  };
  // Calls Send() for several requests together, each over a connection of its own. Returns when the
  // last one has its answer.
  void SendAll(std::span<Sending> all);

  // Ends waits and repetitions, see Storage::Abandon().
  void Abandon();

  // Returns the number of requests sent so far, repetitions included.
  int64_t request_count() const { return request_count_; }

 private:
  struct Attempts;  // to send one request

  // Returns the signed request, for an attempt until SteadyNow() is `deadline`.
  HttpRequest Sign(const Request& request, const Credentials& credentials,
                   absl::Duration deadline) const;
  // Begins an attempt, unless `restart` ends the call.
  void Start(Attempts& attempts, HttpBatch& batch, size_t id);
  // Calls options_.note if it is time.
  void NoteWait(absl::Duration start);
  // Decides after an attempt whether it was the last one, or when the next one begins.
  void Judge(Attempts& attempts, absl::Status status);
  // Returns the credentials for the next attempt; reads them again if they are about to expire.
  Credentials CurrentCredentials();
  // Reads the credentials again, or waits for another thread that does, unless they already differ
  // from `refused`.
  absl::Status RenewCredentials(const Credentials& refused);
  void ReadCredentials() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits, but not longer than until Abandon() is called.
  void Pause(absl::Duration pause);
  std::string PathOf(const std::string& key) const;

  const ClientOptions options_;
  const std::shared_ptr<HttpClient> http_;
  std::string scheme_, host_;
  std::atomic<bool> abandoned_ = false;
  std::atomic<bool> answered_ = false;  // the store, any request
  std::atomic<bool> noted_ = false;
  Mutex mutex_;
  CondVar changed_;  // signals changes of what the mutex guards, and of abandoned_
  Credentials credentials_ ABSL_GUARDED_BY(mutex_);
  absl::Status credentials_error_ ABSL_GUARDED_BY(mutex_);  // of the last time they were read
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time renewal_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> request_count_ = 0;
};

// Returns the value of a header of an answer; "" if it is missing.
std::string Header(const HttpResponse& response, const std::string& name);

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_REQUEST_SENDER_H_
