#ifndef TESSERA_STORAGE_S3_HTTP_H_
#define TESSERA_STORAGE_S3_HTTP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera::s3 {

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
  absl::Duration timeout = absl::Minutes(5);         // of the whole request
  // Once this is true, the request ends after kAbandonedStall without a byte. May be null.
  const std::atomic<bool>* abandoned = nullptr;
  bool use_proxy = true;  // the one that the environment names
};

inline constexpr absl::Duration kAbandonedStall = absl::Seconds(2);

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  uint64_t sink_bytes = 0;  // received into the sink; also where the transfer failed later
};

// Requests of one thread that are on their way together. The thread moves the bytes of all of them
// while it is in Start() and Wait(); in between, as much as the system's buffers hold. Not
// thread-safe. The client must outlive it.
class HttpBatch {
 public:
  // Ends requests that are not finished; their memory is not used any more.
  virtual ~HttpBatch() = default;

  // Begins to send a request, and returns. Body, sink and response must stay until it is finished.
  virtual void Start(size_t id, HttpRequest request, HttpResponse& response) = 0;

  struct Finished {
    size_t id;
    absl::Status status;  // see HttpClient::Perform()
  };
  // Waits until some request is finished, each of which is returned once. Nullopt where none is
  // before the time has passed, and where none is on its way.
  virtual std::optional<Finished> Wait(absl::Duration timeout) = 0;
};

// Sends requests. Thread-safe.
class HttpClient {
 public:
  virtual ~HttpClient() = default;

  // Sends a request and waits for the whole answer, whatever its status. Errors, naming the reason:
  // Unavailable for failures that may pass (no connection, a reset, a body shorter than announced,
  // a time-out); FailedPrecondition for those that will not (certificates, unusable URLs).
  virtual absl::Status Perform(const HttpRequest& request, HttpResponse& response) = 0;

  // By default, Start() of a batch is Perform().
  virtual std::unique_ptr<HttpBatch> NewBatch();
};

// Over libcurl, with connections that are kept open and reused: each request has a connection of
// its own while it runs, which takes up to twice kHttpBufferBytes of memory. Bodies are sent from,
// and received into, the caller's memory, by way of these buffers alone.
std::unique_ptr<HttpClient> MakeHttpClient();

// Between a socket and the caller's memory, in each direction: within the second-level cache.
inline constexpr size_t kHttpBufferBytes = size_t{256} << 10;

// Where certificates of authorities are. Empty: nowhere.
struct CertificateAuthorities {
  std::string file;       // a bundle
  std::string directory;  // a file each, named by its hash
};

// What the environment names: AWS_CA_BUNDLE, else CURL_CA_BUNDLE, else SSL_CERT_FILE and
// SSL_CERT_DIR. Else the first place that exists of those where Linux systems have them, below
// `root`: the library that checks certificates knows that of the system it was built on.
CertificateAuthorities FindCertificateAuthorities(const std::string& root = "");

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_HTTP_H_
