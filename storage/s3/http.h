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

  // Memory for the body of an answer with `sink_status`; a longer one is an error. Other bodies,
  // and all bodies if the sink is empty, become HttpResponse::body.
  std::span<std::byte> sink;
  int sink_status = 206;

  absl::Duration connect_timeout = absl::Seconds(10);
  absl::Duration stall_timeout = absl::Seconds(30);  // without a byte in either direction
  absl::Duration timeout = absl::Minutes(5);         // of the whole request
  // Once true, the request ends after kAbandonedStall without a byte. May be null.
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

// A batch of requests of one thread that are in flight together. Their bytes are moved while the
// thread is in Start() and Wait(), and otherwise only as far as the system's buffers reach. Not
// thread-safe. The client must outlive the batch.
class HttpBatch {
 public:
  // Ends requests that are not finished; their memory is no longer used.
  virtual ~HttpBatch() = default;

  // Begins to send a request, and returns. Body, sink and response must stay valid until it is
  // finished.
  virtual void Start(size_t id, HttpRequest request, HttpResponse& response) = 0;

  struct Finished {
    size_t id;
    absl::Status status;  // see HttpClient::Perform()
  };
  // Waits until some request is finished, and returns each request once. Nullopt after `timeout`,
  // and if no request is in flight.
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

  virtual std::unique_ptr<HttpBatch> NewBatch() = 0;
};

// Makes a client over libcurl, with connections that are kept open and reused. Each request has a
// connection of its own while it runs, which takes up to twice kHttpBufferBytes of memory. Bodies
// are sent from, and received into, the caller's memory, through these buffers alone.
std::unique_ptr<HttpClient> MakeHttpClient();

// Size of the buffer between a socket and the caller's memory, in each direction: within the
// second-level cache.
inline constexpr size_t kHttpBufferBytes = size_t{256} << 10;

// The places of certificates of authorities. Empty: none.
struct CertificateAuthorities {
  std::string file;       // a bundle
  std::string directory;  // a file each, named by its hash
};

// Returns the places that the environment names: AWS_CA_BUNDLE, else CURL_CA_BUNDLE, else
// SSL_CERT_FILE and SSL_CERT_DIR. Otherwise returns the first existing of the usual places of Linux
// systems, below `root`, since the library that checks certificates knows only the place of the
// system on which it was built.
CertificateAuthorities FindCertificateAuthorities(const std::string& root = "");

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_HTTP_H_
