#include "checkpoint/simulation/network.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checkpoint/simulation/faults.h"
#include "checkpoint/simulation/scheduler.h"

namespace tessera::simulation {
namespace {

using ckpt::s3::HttpMessage;
using ckpt::s3::HttpReply;
using ckpt::s3::HttpRequest;
using ckpt::s3::HttpResponse;

std::string Decode(std::string_view text) {
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

// "http://store/bucket/key?a=b"
HttpMessage ToMessage(const HttpRequest& request) {
  HttpMessage message = {.method = request.method};
  const size_t path = request.url.find('/', request.url.find("://") + 3);
  const size_t query = std::min(request.url.find('?'), request.url.size());
  message.path = request.url.substr(path, query - path);
  message.headers["host"] =
      request.url.substr(request.url.find("://") + 3, path - request.url.find("://") - 3);
  for (const auto& [name, value] : request.headers) {
    message.headers[absl::AsciiStrToLower(name)] = value;
  }
  if (query < request.url.size()) {
    const std::vector<std::string> pairs = absl::StrSplit(request.url.substr(query + 1), '&');
    for (const std::string& pair : pairs) {
      const size_t equals = std::min(pair.find('='), pair.size());
      message.query[Decode(pair.substr(0, equals))] =
          equals < pair.size() ? Decode(pair.substr(equals + 1)) : "";
    }
  }
  message.body = std::make_shared<std::string>(reinterpret_cast<const char*>(request.body.data()),
                                               request.body.size());
  return message;
}

void Receive(const HttpReply& reply, const HttpRequest& request, HttpResponse& response) {
  response.status = reply.status;
  for (const auto& [name, value] : reply.headers) {
    response.headers[absl::AsciiStrToLower(name)] = value;
  }
  const bool fills_sink = reply.status == request.sink_status && !request.sink.empty();
  for (const ckpt::s3::BodyPiece& piece : reply.body) {
    const char* const bytes = piece.bytes->data() + piece.offset;
    if (!fills_sink) {
      response.body.append(bytes, piece.size);
      continue;
    }
    std::memcpy(request.sink.data() + response.sink_bytes, bytes, piece.size);
    response.sink_bytes += piece.size;
  }
}

HttpReply Refusal(int status, std::string_view code) {
  HttpReply reply = {.status = status};
  auto text = std::make_shared<std::string>(
      absl::StrCat("<Error><Code>", std::string(code), "</Code></Error>"));
  const size_t size = text->size();
  reply.body = {{std::move(text), 0, size}};
  return reply;
}

HttpReply Answer(ckpt::s3::S3Server& store, HttpMessage message) {
  const Uninterrupted uninterrupted;
  return store.Handle(message);
}

class SimulatedClient final : public ckpt::s3::HttpClient {
 public:
  explicit SimulatedClient(ckpt::s3::S3Server& store) : store_(store) {}

  absl::Status Perform(const HttpRequest& request, HttpResponse& response) override {
    response = HttpResponse();
    HttpMessage message = ToMessage(request);
    const FaultSet possible = Only(FaultKind::kError) | Only(FaultKind::kLostReply) |
                              Only(FaultKind::kTwice) | Only(FaultKind::kLate) |
                              Only(FaultKind::kDenied);
    const std::string what =
        absl::StrCat(message.method, " ", message.path,
                     message.query.empty() ? "" : absl::StrCat("?", message.query.begin()->first));
    const FaultKind fault = Faults::Get().Next(what, possible);
    switch (fault) {
      case FaultKind::kError:
        if (Hash(message.path.size(), Scheduler::Get().Draw()) % 2 == 0) {
          return absl::UnavailableError("connection refused");
        }
        Receive(Refusal(503, "SlowDown"), request, response);
        return absl::OkStatus();
      case FaultKind::kDenied:
        Receive(Refusal(403, "AccessDenied"), request, response);
        return absl::OkStatus();
      case FaultKind::kLate:
        return SendLate(std::move(message), request);
      case FaultKind::kTwice:
        Handle(message);
        break;
      default:
        break;
    }
    const HttpReply reply = Handle(message);
    Faults::Get().After(fault);
    Scheduler::Get().Sleep(static_cast<int64_t>(Scheduler::Get().Draw() % 20) * kMillisecond);
    if (fault == FaultKind::kLostReply) return absl::UnavailableError("connection reset");
    Receive(reply, request, response);
    if (Scheduler::Get().current().process != kWorld) {
      Journal::Get().Note(absl::StrCat(what, " = ", reply.status));
    }
    return absl::OkStatus();
  }

 private:
  HttpReply Handle(const HttpMessage& message) { return Answer(store_, message); }

  // It arrives once the client no longer waits.
  absl::Status SendLate(HttpMessage message, const HttpRequest& request) {
    Scheduler& scheduler = Scheduler::Get();
    const int64_t delay = static_cast<int64_t>(scheduler.Draw() % 600) * kSecond + kSecond;
    scheduler.Start(kWorld, [&store = store_, delay, message = std::move(message)] {
      Scheduler::Get().Sleep(delay);
      Journal::Get().Note(absl::StrCat("arrives late: ", message.method, " ", message.path));
      Answer(store, message);
    });
    if (scheduler.Draw() % 2 == 0) Faults::Get().Die();
    const int64_t limit =
        absl::ToInt64Nanoseconds(std::min(request.timeout, request.stall_timeout));
    scheduler.Sleep(std::max<int64_t>(limit, 0));
    return absl::UnavailableError("timed out");
  }

  ckpt::s3::S3Server& store_;
};

}  // namespace

std::shared_ptr<ckpt::s3::HttpClient> MakeSimulatedClient(ckpt::s3::S3Server& store) {
  return std::make_shared<SimulatedClient>(store);
}

}  // namespace tessera::simulation
