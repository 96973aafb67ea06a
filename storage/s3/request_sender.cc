#include "storage/s3/request_sender.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/errno_status.h"
#include "base/no_memory.h"
#include "base/no_space.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "storage/s3/xml.h"

namespace tessera::s3 {
namespace {

constexpr absl::Duration kRenewalMargin = absl::Minutes(5);
constexpr absl::Duration kLongestWait = absl::Seconds(1);
// Requests that differ more from the store's clock are refused.
constexpr absl::Duration kMaxClockSkew = absl::Minutes(15);

ErrorDocument ErrorOf(const HttpResponse& response) {
  ErrorDocument error = ParseError(response.body).value_or(ErrorDocument());
  if (error.region.empty()) error.region = Header(response, "x-amz-bucket-region");
  return error;
}

bool IsSuccess(const HttpResponse& response) {
  // Long operations begin their answer before they know how they end.
  return response.status / 100 == 2 && !ParseError(response.body).has_value();
}

// Returns whether TOS or OSS says that the object to be created exists.
bool IsTaken(const Request& request, const HttpResponse& response) {
  return response.status == 409 && std::ranges::any_of(request.headers, [](const auto& header) {
           return header.first.ends_with("-forbid-overwrite");
         });
}

bool MayPass(const HttpResponse& response) {
  switch (response.status) {
    case 200:  // an error in the body
    case 408:
    case 409:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    case 400: {
      const std::string code = ErrorOf(response).code;
      return code == "RequestTimeout" || code == "BadDigest" || code == "InvalidDigest" ||
             code == "IncompleteBody" || code == "XAmzContentChecksumMismatch" ||
             code == "XAmzContentSHA256Mismatch";
    }
    default:
      return false;
  }
}

// Returns the difference between the store's clock and this machine's, if the response has a date.
std::optional<absl::Duration> ClockSkew(const HttpResponse& response) {
  absl::Time store;
  std::string ignored;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", Header(response, "date"), &store, &ignored)) {
    return std::nullopt;
  }
  return absl::Now() - store;
}

// Returns whether a request arrived too long after it was signed, because this process or the
// network stood still: signed again, it passes.
bool WasDelayed(const HttpResponse& response) {
  const std::optional<absl::Duration> skew = ClockSkew(response);
  return skew.has_value() && absl::AbsDuration(*skew) <= kMaxClockSkew &&
         ErrorOf(response).code == "RequestTimeTooSkewed";
}

// Returns whether other credentials may help.
bool IsRefused(const std::string& method, const HttpResponse& response) {
  if (WasDelayed(response)) return false;
  if (response.status == 401 || response.status == 403) return true;
  if (response.status != 400) return false;
  // An answer to HEAD has no body that says why.
  const std::string code = ErrorOf(response).code;
  return method == "HEAD" || code == "ExpiredToken" || code == "InvalidToken" ||
         code == "TokenRefreshRequired";
}

// Returns the time of renewal: well before they expire, or after half of a short lifetime.
absl::Time RenewalOf(const Credentials& credentials) {
  const absl::Time now = absl::Now();
  return std::max({credentials.expiration - kRenewalMargin,
                   now + (credentials.expiration - now) / 2, now + absl::Seconds(1)});
}

// "404 NoSuchKey (The specified key does not exist.)"
std::string Summary(const HttpResponse& response, const ErrorDocument& error) {
  std::string text = absl::StrCat("the store answers ", response.status);
  if (!error.code.empty()) absl::StrAppend(&text, " ", error.code);
  if (!error.message.empty()) {
    absl::StrAppend(&text, " (", absl::CHexEscape(error.message.substr(0, 300)), ")");
  }
  return text;
}

absl::Status DeniedStatus(const HttpResponse& response, const ErrorDocument& error,
                          const std::string& id) {
  const std::optional<absl::Duration> skew = ClockSkew(response);
  std::string reason = absl::StrCat("the access key ", id, " may not do this");
  if (error.code == "RequestTimeTooSkewed" ||
      (skew.has_value() && absl::AbsDuration(*skew) > kMaxClockSkew)) {
    reason = "this machine's clock is wrong";
    if (skew.has_value()) {
      absl::StrAppend(&reason, ": it is ",
                      absl::FormatDuration(absl::Trunc(absl::AbsDuration(*skew), absl::Seconds(1))),
                      *skew < absl::ZeroDuration() ? " behind" : " ahead of", " the store's");
    }
  } else if (error.code == "InvalidAccessKeyId") {
    reason = absl::StrCat("there is no access key ", id);
  } else if (error.code == "SignatureDoesNotMatch") {
    reason = absl::StrCat("the secret key does not belong to the access key ", id);
  } else if (error.code == "ExpiredToken") {
    reason = "the session token has expired";
  } else if (error.code == "InvalidToken") {
    reason = "the session token is not valid";
  }
  return absl::PermissionDeniedError(absl::StrCat(reason, "; ", Summary(response, error)));
}

absl::Status ToStatus(const HttpResponse& response, const ClientOptions& options,
                      const Request& request, const std::string& access_key_id) {
  const ErrorDocument error = ErrorOf(response);
  const std::string summary = Summary(response, error);
  if (error.code == "NoSuchBucket") {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no bucket ", options.bucket, " at ", options.endpoint));
  }
  const bool elsewhere = response.status == 301 || response.status == 307 ||
                         error.code == "AuthorizationHeaderMalformed";
  if (elsewhere && !error.region.empty() && error.region != options.region) {
    return absl::FailedPreconditionError(
        absl::StrCat("the bucket ", options.bucket, " is in the region ", error.region, ", not in ",
                     options.region, ": set AWS_REGION"));
  }
  if (absl::StrContains(error.code, "Quota")) return NoSpaceError(summary);
  if (error.code == "EntityTooLarge") return FileTooLargeError(summary);
  if (IsRefused(request.method, response)) return DeniedStatus(response, error, access_key_id);
  if (IsTaken(request, response)) return absl::AlreadyExistsError(summary);
  switch (response.status) {
    case 404:
      return absl::NotFoundError(summary);
    case 412:
      return absl::AlreadyExistsError(summary);
    case 413:
      return FileTooLargeError(summary);
    case 507:
      return NoSpaceError(summary);
    case 416:
      return absl::OutOfRangeError(summary);
    case 501:
      return absl::UnimplementedError(summary);
    default:
      return absl::UnavailableError(summary);
  }
}

}  // namespace

std::string Header(const HttpResponse& response, const std::string& name) {
  const auto found = response.headers.find(name);
  return found == response.headers.end() ? "" : found->second;
}

RequestSender::RequestSender(ClientOptions options)
    : options_(std::move(options)),
      http_(options_.http != nullptr ? options_.http : MakeHttpClient()),
      credentials_(options_.credentials),
      renewal_(RenewalOf(credentials_)) {
  const size_t colon = options_.endpoint.find("://");
  scheme_ = options_.endpoint.substr(0, colon);
  host_ = options_.endpoint.substr(colon + 3);
  // As libcurl sends it: without the scheme's own port.
  const std::string_view port = scheme_ == "https" ? ":443" : ":80";
  if (host_.ends_with(port)) host_.resize(host_.size() - port.size());
  if (options_.virtual_host) host_ = absl::StrCat(options_.bucket, ".", host_);
}

std::string RequestSender::PathOf(const std::string& key) const {
  const std::string object = absl::StrCat("/", UriEncode(key, true));
  return options_.virtual_host ? object : absl::StrCat("/", options_.bucket, object);
}

Credentials RequestSender::CurrentCredentials() {
  const MutexLock lock(&mutex_);
  if (options_.read_credentials == nullptr) return credentials_;
  // While one thread reads new ones, the others use the old ones.
  while (reading_ && absl::Now() >= credentials_.expiration) changed_.Wait(&mutex_);
  if (!reading_ && absl::Now() >= renewal_) ReadCredentials();
  return credentials_;
}

absl::Status RequestSender::RenewCredentials(const Credentials& refused) {
  const MutexLock lock(&mutex_);
  if (credentials_ != refused) return absl::OkStatus();
  if (!reading_) {
    ReadCredentials();
  } else {
    while (reading_) changed_.Wait(&mutex_);
  }
  return credentials_error_;
}

void RequestSender::ReadCredentials() {
  reading_ = true;
  mutex_.unlock();
  absl::StatusOr<Credentials> read =
      CatchExceptions("read credentials", [&] { return options_.read_credentials(); });
  mutex_.lock();
  reading_ = false;
  credentials_error_ = read.status();
  if (read.ok()) credentials_ = *std::move(read);
  renewal_ = RenewalOf(credentials_);
  changed_.NotifyAll();
}

void RequestSender::Abandon() {
  const MutexLock lock(&mutex_);
  abandoned_ = true;
  changed_.NotifyAll();
}

void RequestSender::Pause(absl::Duration pause) {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
  const MutexLock lock(&mutex_);
  bool in_time = true;
  while (in_time && !abandoned_) in_time = changed_.WaitUntil(&mutex_, until);
}

HttpRequest RequestSender::Sign(const Request& request, const Credentials& credentials,
                                absl::Duration deadline) const {
  const std::string date = AmzDate(absl::Now());
  SignedParts parts = {request.method, PathOf(request.key), request.query, request.headers, ""};
  const bool hashed = request.sign_body || request.body.empty();
  parts.payload_hash = hashed ? HexSha256(request.body) : std::string(kUnsignedPayload);
  parts.headers["host"] = host_;
  const std::string own(options_.dialect.headers);
  parts.headers[own + "date"] = date;
  parts.headers[own + "content-sha256"] = parts.payload_hash;
  if (!credentials.session_token.empty()) {
    parts.headers[own + "security-token"] = credentials.session_token;
  }
  HttpRequest http = {.method = request.method,
                      .url = absl::StrCat(scheme_, "://", host_, parts.path),
                      .headers = parts.headers,
                      .body = request.body,
                      .sink = request.sink,
                      .sink_status = request.sink_status,
                      .connect_timeout = options_.connect_timeout,
                      .stall_timeout = options_.stall_timeout,
                      .timeout = deadline - SteadyNow(),
                      .abandoned = &abandoned_};
  if (!request.query.empty()) absl::StrAppend(&http.url, "?", EncodeQuery(request.query));
  if (!answered_) http.stall_timeout = std::min(http.stall_timeout, options_.first_answer_timeout);
  if (request.may_take_long) http.stall_timeout = http.timeout;
  http.headers.erase("host");  // libcurl's own
  http.headers["authorization"] =
      AuthorizationHeader(parts, credentials, options_.region, date, options_.dialect);
  return http;
}

struct RequestSender::Attempts {
  Sending& sending;
  absl::Duration deadline;
  absl::Duration backoff;   // the limit of the next pause
  absl::Duration due = {};  // when the next one begins
  enum { kPausing, kOnItsWay, kOver } state = kPausing;
  int count = 0;
  bool renewed = false;     // the credentials, once
  bool repeats = false;     // the next one follows an answer that may pass
  Credentials credentials;  // of the last one
  HttpResponse response;    // of the last one
  // The last of each; the last attempt may have had no time for an answer.
  std::string answer, failure;

  void End(absl::StatusOr<HttpResponse> result) {
    sending.response = std::move(result);
    state = kOver;
  }
};

void RequestSender::Start(Attempts& attempts, HttpBatch& batch, size_t id) {
  Sending& sending = attempts.sending;
  if (attempts.count == 0 && sending.prepare != nullptr) sending.prepare(sending.request);
  if (std::exchange(attempts.repeats, false) && sending.restart != nullptr) {
    const absl::Status restarted = sending.restart(attempts.response, sending.request);
    if (!restarted.ok()) return attempts.End(restarted);
  }
  ++attempts.count;
  ++request_count_;
  attempts.state = Attempts::kOnItsWay;
  attempts.credentials = CurrentCredentials();
  batch.Start(id, Sign(sending.request, attempts.credentials, attempts.deadline),
              attempts.response);
}

void RequestSender::NoteWait(absl::Duration start) {
  if (options_.note == nullptr || answered_ || SteadyNow() - start < options_.note_after ||
      noted_.exchange(true)) {
    return;
  }
  options_.note(absl::StrCat("waiting for the first answer of ", options_.endpoint, ", for about ",
                             absl::FormatDuration(options_.first_answer_timeout)));
}

void RequestSender::Judge(Attempts& attempts, absl::Status status) {
  const Request& request = attempts.sending.request;
  const HttpResponse& response = attempts.response;
  if (response.status != 0) answered_ = true;
  if (status.ok()) {
    if (IsSuccess(response)) return attempts.End(std::move(attempts.response));
    status = ToStatus(response, options_, request, attempts.credentials.access_key_id);
    if (IsRefused(request.method, response) && options_.read_credentials != nullptr &&
        !attempts.renewed && !abandoned_) {
      attempts.renewed = true;
      const absl::Status read = RenewCredentials(attempts.credentials);
      if (read.ok()) {
        attempts.state = Attempts::kPausing;  // until now
        return;
      }
      return attempts.End(WithMessage(
          status, absl::StrCat(status.message(),
                               "; the credentials cannot be read again: ", read.message())));
    }
    if (IsTaken(request, response) || (!MayPass(response) && !WasDelayed(response))) {
      return attempts.End(status);
    }
    attempts.answer = std::string(status.message());
  } else if (!absl::IsUnavailable(status)) {
    return attempts.End(In(options_.endpoint, status));
  }
  const absl::Duration pause = attempts.backoff * (0.5 + 0.5 * (RandomBits() >> 11) * 0x1p-53);
  attempts.due = SteadyNow() + pause;
  attempts.failure = std::string(status.message());
  attempts.backoff = std::min(attempts.backoff * 2, options_.max_backoff);
  attempts.state = Attempts::kPausing;
  attempts.repeats = true;
}

void RequestSender::SendAll(std::span<Sending> all) {
  const absl::Duration start = SteadyNow();
  std::vector<Attempts> attempts;
  for (Sending& sending : all) {
    attempts.push_back({.sending = sending,
                        .deadline = start + options_.timeout,
                        .backoff = options_.min_backoff});
  }
  const std::unique_ptr<HttpBatch> batch = http_->NewBatch();
  while (true) {
    NoteWait(start);
    absl::Duration next = absl::InfiniteDuration();  // when an attempt begins
    bool on_their_way = false;
    for (size_t i = 0; i < attempts.size(); ++i) {
      Attempts& one = attempts[i];
      if (one.state == Attempts::kPausing && one.repeats &&
          (abandoned_ || one.due >= one.deadline ||
           (!answered_ && one.due >= start + options_.first_answer_timeout))) {
        one.End(absl::UnavailableError(absl::StrCat(
            options_.endpoint, ": ", one.answer.empty() ? one.failure : one.answer, " (",
            Counted(one.count, "attempt"), " in ",
            absl::FormatDuration(absl::Trunc(SteadyNow() - start, absl::Milliseconds(1))), ")")));
      }
      if (one.state == Attempts::kPausing && one.due <= SteadyNow()) Start(one, *batch, i);
      if (one.state == Attempts::kPausing) next = std::min(next, one.due);
      on_their_way |= one.state == Attempts::kOnItsWay;
    }
    const absl::Duration pause = next - SteadyNow();
    if (on_their_way) {
      // Looks at abandoned_ and the time now and then.
      const auto finished = batch->Wait(std::min(pause, kLongestWait));
      if (finished.has_value()) Judge(attempts[finished->id], finished->status);
    } else if (next < absl::InfiniteDuration()) {
      Pause(std::min(pause, kLongestWait));
    } else {
      return;
    }
  }
}

absl::StatusOr<HttpResponse> RequestSender::Send(Request request, Restart restart) {
  Sending one = {.request = std::move(request), .restart = std::move(restart)};
  SendAll({&one, 1});
  return std::move(one.response);
}

}  // namespace tessera::s3
