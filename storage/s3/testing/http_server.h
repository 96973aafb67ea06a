#ifndef TESSERA_STORAGE_S3_TESTING_HTTP_SERVER_H_
#define TESSERA_STORAGE_S3_TESTING_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

struct ssl_ctx_st;

namespace tessera::s3 {

// A received request.
struct HttpMessage {
  std::string method;
  std::string path;                            // as sent: percent-encoded
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case
  std::shared_ptr<std::string> body;
};

// Returns "a b" for "a%20b".
std::string DecodePercent(std::string_view text);

// Sets path and query of a request from its target: "/bucket/key?a=b%20c".
void ParseTarget(const std::string& target, HttpMessage& message);

// A part of a body, without a copy of the bytes.
struct BodyPiece {
  std::shared_ptr<const std::string> bytes;
  size_t offset = 0;
  size_t size = 0;
};

// An answer, and how it is sent.
struct HttpReply {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::vector<BodyPiece> body;

  bool drop = false;   // the connection is closed instead
  bool tear = false;   // it is closed after half of the body
  bool stall = false;  // nothing is sent until the server stops
  bool slow = false;   // in small pieces
};

class Certificate;  // certificate.h

// A small HTTP/1.1 server on a free port of 127.0.0.1: connections are kept, bodies have a length.
// Each connection has a thread, which calls the handler. With a certificate, it uses TLS and is
// also a proxy for clients that connect to some other host through it, which it pretends to be.
class HttpServer {
 public:
  using Handler = std::function<HttpReply(HttpMessage&)>;

  // The certificate may be null; it must outlive the server.
  explicit HttpServer(Handler handler, const Certificate* certificate = nullptr);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  int port() const { return port_; }
  // Returns "http://127.0.0.1:12345".
  std::string url() const;
  // Returns an entry for each accepted connection: its destination "bucket.host:443" if the client
  // used a proxy, or "".
  std::vector<std::string> connections() const;

 private:
  struct Stream;  // bytes from and to a client

  void Accept();
  void Serve(int fd);
  // Answers a client that takes the server for a proxy, and begins TLS. Returns false if nothing is
  // left to do.
  bool Begin(Stream& stream);
  bool Send(Stream& stream, const HttpMessage& request, const HttpReply& reply);
  void WaitForStop();

  const Handler handler_;
  ssl_ctx_st* tls_ = nullptr;  // OpenSSL's SSL_CTX
  int listener_ = -1;
  int port_ = 0;
  std::thread acceptor_;
  mutable Mutex mutex_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> connections_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_TESTING_HTTP_SERVER_H_
