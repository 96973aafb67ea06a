#include "storage/s3/testing/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "storage/s3/testing/certificate.h"

namespace tessera::s3 {
namespace {

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kMaxHeadBytes = 64 << 10;

void ParseHead(std::string_view head, HttpMessage& message) {
  const std::vector<std::string> lines = absl::StrSplit(std::string(head), "\r\n");
  const std::vector<std::string> first = absl::StrSplit(lines[0], ' ');
  if (first.size() != 3) return;
  message.method = first[0];
  ParseTarget(first[1], message);
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t colon = lines[i].find(':');
    if (colon == std::string::npos) continue;
    message.headers[absl::AsciiStrToLower(lines[i].substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(lines[i].substr(colon + 1)));
  }
}

}  // namespace

std::string DecodePercent(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      decoded += absl::HexStringToBytes(std::string(text.substr(i + 1, 2)));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

void ParseTarget(const std::string& target, HttpMessage& message) {
  const size_t question = std::min(target.find('?'), target.size());
  message.path = target.substr(0, question);
  if (question == target.size()) return;
  const std::vector<std::string> parameters = absl::StrSplit(target.substr(question + 1), '&');
  for (const std::string& parameter : parameters) {
    const size_t equals = std::min(parameter.find('='), parameter.size());
    const size_t value = std::min(equals + 1, parameter.size());
    message.query[DecodePercent(parameter.substr(0, equals))] =
        DecodePercent(parameter.substr(value));
  }
}

struct HttpServer::Stream {
  int fd;
  SSL* tls = nullptr;
  std::string buffer = "";

  ssize_t Receive(char* out, size_t size) const {
    return tls == nullptr ? ::recv(fd, out, size, 0) : SSL_read(tls, out, static_cast<int>(size));
  }
  bool Send(const char* data, size_t size) const {
    while (size > 0) {
      const ssize_t sent = tls == nullptr ? ::send(fd, data, size, MSG_NOSIGNAL)
                                          : SSL_write(tls, data, static_cast<int>(size));
      if (sent <= 0) return false;
      data += sent;
      size -= static_cast<size_t>(sent);
    }
    return true;
  }
  bool SendSlowly(const char* data, size_t size) const {
    const size_t piece = size / 50 + 1;
    for (size_t at = 0; at < size; at += piece) {
      if (!Send(data + at, std::min(piece, size - at))) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  // The next request; `buffer` keeps what came after it. False: the connection has ended.
  bool ReceiveRequest(HttpMessage& message);
};

bool HttpServer::Stream::ReceiveRequest(HttpMessage& message) {
  size_t end;
  while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
    if (buffer.size() > kMaxHeadBytes) return false;
    const size_t before = buffer.size();
    buffer.resize(before + kReadBytes);
    const ssize_t received = Receive(buffer.data() + before, kReadBytes);
    buffer.resize(before + std::max<ssize_t>(received, 0));
    if (received <= 0) return false;
  }
  ParseHead(std::string_view(buffer).substr(0, end), message);
  const size_t length = std::strtoull(message.headers["content-length"].c_str(), nullptr, 10);
  const size_t have = std::min(buffer.size() - end - 4, length);
  message.body = std::make_shared<std::string>();
  message.body->resize(length);
  std::copy_n(buffer.data() + end + 4, have, message.body->data());
  buffer.erase(0, end + 4 + have);
  for (size_t at = have; at < length;) {
    const ssize_t received = Receive(message.body->data() + at, length - at);
    if (received <= 0) return false;
    at += static_cast<size_t>(received);
  }
  return true;
}

HttpServer::HttpServer(Handler handler, const Certificate* certificate)
    : handler_(std::move(handler)) {
  if (certificate != nullptr) {
    tls_ = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(tls_, certificate->x509());
    SSL_CTX_use_PrivateKey(tls_, certificate->key());
    ::signal(SIGPIPE, SIG_IGN);  // clients go when they have seen the certificate
  }
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  PCHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  PCHECK(::listen(listener_, 128) == 0);
  socklen_t size = sizeof(address);
  PCHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

HttpServer::~HttpServer() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
    stopped_.NotifyAll();
    ::shutdown(listener_, SHUT_RDWR);
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }
  acceptor_.join();
  {
    const MutexLock lock(&mutex_);
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  ::close(listener_);
  SSL_CTX_free(tls_);
}

std::string HttpServer::url() const {
  return absl::StrCat(tls_ == nullptr ? "http" : "https", "://127.0.0.1:", port_);
}

std::vector<std::string> HttpServer::connections() const {
  const MutexLock lock(&mutex_);
  return connections_;
}

void HttpServer::Accept() {
  while (true) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const MutexLock lock(&mutex_);
    if (fd < 0 || stop_) {
      if (fd >= 0) ::close(fd);
      return;
    }
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    open_.push_back(fd);
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void HttpServer::WaitForStop() {
  const MutexLock lock(&mutex_);
  while (!stop_) stopped_.Wait(&mutex_);
}

bool HttpServer::Begin(Stream& stream) {
  char first = 0;
  std::string target;
  if (tls_ != nullptr && ::recv(stream.fd, &first, 1, MSG_PEEK) == 1 && first == 'C') {
    HttpMessage connect;  // "CONNECT host:port"
    if (!stream.ReceiveRequest(connect)) return false;
    target = connect.path;
    const std::string answer = "HTTP/1.1 200 Connected\r\n\r\n";
    if (!stream.Send(answer.data(), answer.size())) return false;
  }
  {
    const MutexLock lock(&mutex_);
    connections_.push_back(target);
  }
  if (tls_ == nullptr) return true;
  stream.tls = SSL_new(tls_);
  SSL_set_fd(stream.tls, stream.fd);
  return SSL_accept(stream.tls) == 1;
}

void HttpServer::Serve(int fd) {
  Stream stream = {fd};
  for (bool more = Begin(stream); more;) {
    HttpMessage message;
    if (!stream.ReceiveRequest(message)) break;
    const HttpReply reply = handler_(message);
    if (reply.stall) WaitForStop();
    more = !reply.drop && !reply.stall && Send(stream, message, reply);
  }
  SSL_free(stream.tls);
  const MutexLock lock(&mutex_);
  std::erase(open_, fd);
  // A reset rather than an orderly end, which could be taken for that of an answer.
  const linger reset = {1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  ::close(fd);
}

bool HttpServer::Send(Stream& stream, const HttpMessage& request, const HttpReply& reply) {
  size_t body_bytes = 0;
  for (const BodyPiece& piece : reply.body) body_bytes += piece.size;
  std::string head = absl::StrCat("HTTP/1.1 ", reply.status, " Answer\r\n");
  for (const auto& [name, value] : reply.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  if (reply.status != 204 && reply.headers.count("content-length") == 0) {
    absl::StrAppend(&head, "content-length: ", body_bytes, "\r\n");
  }
  absl::StrAppend(&head, "\r\n");
  if (!stream.Send(head.data(), head.size())) return false;
  if (request.method == "HEAD") return true;
  size_t left = reply.tear ? body_bytes / 2 : body_bytes;
  for (const BodyPiece& piece : reply.body) {
    const size_t size = std::min(piece.size, left);
    const char* const data = piece.bytes->data() + piece.offset;
    if (!(reply.slow ? stream.SendSlowly(data, size) : stream.Send(data, size))) return false;
    left -= size;
  }
  return !reply.tear;
}

}  // namespace tessera::s3
