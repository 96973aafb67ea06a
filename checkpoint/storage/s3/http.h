#ifndef TESSERA_CHECKPOINT_STORAGE_S3_HTTP_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_HTTP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace tessera::ckpt::s3 {

struct HttpRequest {
  std::string method;  // GET, HEAD, PUT, POST or DELETE
  std::string url;     // percent-encoded
  std::map<std::string, std::string> headers;
  std::span<const std::byte> body;

  // Where the body of an answer with `sink_status` goes; a longer one is an error. Other bodies,
  // and all of them where this is empty, become HttpResponse::body.
  std::span<std::byte> sink;
  int sink_status = 206;

  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration stall_timeout = absl::Seconds(30);  // without a byte in either direction
  absl::Duration timeout = absl::Minutes(5);         // of everything
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  uint64_t sink_bytes = 0;  // received into the sink; also where the transfer failed later
};

// Sends requests over connections that are kept open and reused. Thread-safe: each call has a
// connection of its own while it runs.
class HttpClient {
 public:
  HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Sends a request and waits for the whole answer, whatever its status. Errors, naming the reason:
  // Unavailable for failures that may pass (no connection, a reset, a body shorter than announced,
  // a time-out); FailedPrecondition for those that will not (certificates, unusable URLs).
  absl::Status Perform(const HttpRequest& request, HttpResponse& response);

 private:
  void* TakeHandle();
  void ReturnHandle(void* handle);

  Mutex mutex_;
  std::vector<void*> idle_ ABSL_GUARDED_BY(mutex_);  // CURL*
};

}  // namespace tessera::ckpt::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_HTTP_H_
