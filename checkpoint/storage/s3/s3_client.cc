#include "checkpoint/storage/s3/s3_client.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera::ckpt::s3 {
namespace {

constexpr char kWriterHeader[] = "x-amz-meta-tessera-writer";
constexpr char kChecksumHeader[] = "x-amz-checksum-crc32c";
constexpr size_t kMaxDeletedAtOnce = 1000;
constexpr int kMaxDamagedTransfers = 4;
constexpr absl::Duration kRenewalMargin = absl::Minutes(5);
// Requests that differ more from the store's clock are refused.
constexpr absl::Duration kMaxClockSkew = absl::Minutes(15);

uint64_t RandomNumber() {
  thread_local std::mt19937_64 random{std::random_device()()};
  return random();
}

// Unlike any other, in this process or elsewhere.
std::string NewWriter() {
  std::random_device device;
  return absl::StrCat(absl::Hex(device(), absl::kZeroPad8), absl::Hex(device(), absl::kZeroPad8),
                      absl::Hex(device(), absl::kZeroPad8), absl::Hex(device(), absl::kZeroPad8));
}

std::string Header(const HttpResponse& response, const std::string& name) {
  const auto found = response.headers.find(name);
  return found == response.headers.end() ? "" : found->second;
}

std::string ContentMd5(std::span<const std::byte> data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_md5(), nullptr);
  return absl::Base64Escape(std::string(digest.begin(), digest.begin() + size));
}

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text));
}

ErrorDocument ErrorOf(const HttpResponse& response) {
  ErrorDocument error = ParseError(response.body).value_or(ErrorDocument());
  if (error.region.empty()) error.region = Header(response, "x-amz-bucket-region");
  return error;
}

bool IsSuccess(const HttpResponse& response) {
  // Long operations begin their answer before they know how they end.
  return response.status / 100 == 2 && !ParseError(response.body).has_value();
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
      return code == "RequestTimeout" || code == "BadDigest" || code == "IncompleteBody" ||
             code == "XAmzContentChecksumMismatch" || code == "XAmzContentSHA256Mismatch";
    }
    default:
      return false;
  }
}

// How far this machine's clock is from the store's, where the answer tells.
std::optional<absl::Duration> ClockSkew(const HttpResponse& response) {
  absl::Time store;
  std::string ignored;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", Header(response, "date"), &store, &ignored)) {
    return std::nullopt;
  }
  return absl::Now() - store;
}

// Whether a request arrived too long after it was signed, because this process or the network stood
// still: signed again, it passes.
bool WasDelayed(const HttpResponse& response) {
  const std::optional<absl::Duration> skew = ClockSkew(response);
  return skew.has_value() && absl::AbsDuration(*skew) <= kMaxClockSkew &&
         ErrorOf(response).code == "RequestTimeTooSkewed";
}

// Whether other credentials may help.
bool IsRefused(const std::string& method, const HttpResponse& response) {
  if (WasDelayed(response)) return false;
  if (response.status == 401 || response.status == 403) return true;
  if (response.status != 400) return false;
  // An answer to HEAD has no body that says why.
  const std::string code = ErrorOf(response).code;
  return method == "HEAD" || code == "ExpiredToken" || code == "InvalidToken" ||
         code == "TokenRefreshRequired";
}

// Well before they expire; of short ones, after half of their time.
absl::Time RenewalOf(const Credentials& credentials) {
  const absl::Time now = absl::Now();
  if (credentials.expiration == absl::InfiniteFuture()) return credentials.expiration;
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
                      const std::string& method, const std::string& access_key_id) {
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
  if (absl::StrContains(error.code, "Quota") || error.code == "EntityTooLarge") {
    return absl::ResourceExhaustedError(summary);
  }
  if (IsRefused(method, response)) return DeniedStatus(response, error, access_key_id);
  switch (response.status) {
    case 404:
      return absl::NotFoundError(summary);
    case 412:
      return absl::AlreadyExistsError(summary);
    case 413:
    case 507:
      return absl::ResourceExhaustedError(summary);
    case 416:
      return absl::OutOfRangeError(summary);
    case 501:
      return absl::UnimplementedError(summary);
    default:
      return absl::UnavailableError(summary);
  }
}

std::string RangeHeader(uint64_t offset, uint64_t size) {
  return absl::StrCat("bytes=", offset, "-", offset + size - 1);
}

}  // namespace

std::string ChecksumHeader(std::span<const std::byte> data) {
  const uint32_t crc = Crc32c(data);
  const char bytes[] = {static_cast<char>(crc >> 24), static_cast<char>(crc >> 16),
                        static_cast<char>(crc >> 8), static_cast<char>(crc)};
  return absl::Base64Escape(std::string(bytes, sizeof(bytes)));
}

S3Client::S3Client(ClientOptions options)
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

std::string S3Client::PathOf(const std::string& key) const {
  const std::string object = absl::StrCat("/", UriEncode(key, true));
  return options_.virtual_host ? object : absl::StrCat("/", options_.bucket, object);
}

Credentials S3Client::CurrentCredentials() {
  const MutexLock lock(&mutex_);
  if (options_.read_credentials == nullptr) return credentials_;
  // While one thread reads them, the others go on with those that are there.
  while (reading_ && absl::Now() >= credentials_.expiration) changed_.Wait(&mutex_);
  if (!reading_ && absl::Now() >= renewal_) ReadCredentials();
  return credentials_;
}

absl::Status S3Client::RenewCredentials(const Credentials& refused) {
  const MutexLock lock(&mutex_);
  if (credentials_ != refused) return absl::OkStatus();
  if (!reading_) {
    ReadCredentials();
  } else {
    while (reading_) changed_.Wait(&mutex_);
  }
  return credentials_error_;
}

void S3Client::ReadCredentials() {
  reading_ = true;
  mutex_.unlock();
  absl::StatusOr<Credentials> read = options_.read_credentials();
  mutex_.lock();
  reading_ = false;
  credentials_error_ = read.status();
  if (read.ok()) credentials_ = *std::move(read);
  renewal_ = RenewalOf(credentials_);
  changed_.NotifyAll();
}

void S3Client::Abandon() {
  const MutexLock lock(&mutex_);
  abandoned_ = true;
  changed_.NotifyAll();
}

bool S3Client::Pause(absl::Duration pause) {
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
  const MutexLock lock(&mutex_);
  bool in_time = true;
  while (in_time && !abandoned_) in_time = changed_.WaitUntil(&mutex_, until);
  return !abandoned_;
}

absl::Status S3Client::SendOnce(const Request& request, const Credentials& credentials,
                                absl::Duration deadline, HttpResponse& response) {
  ++request_count_;
  const std::string date = AmzDate(absl::Now());
  SignedParts parts = {request.method, PathOf(request.key), request.query, request.headers, ""};
  const bool hashed = request.sign_body || request.body.empty();
  parts.payload_hash = hashed ? HexSha256(request.body) : std::string(kUnsignedPayload);
  parts.headers["host"] = host_;
  parts.headers["x-amz-date"] = date;
  parts.headers["x-amz-content-sha256"] = parts.payload_hash;
  if (!credentials.session_token.empty()) {
    parts.headers["x-amz-security-token"] = credentials.session_token;
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
  if (request.may_take_long) http.stall_timeout = http.timeout;
  http.headers.erase("host");  // libcurl's own
  http.headers["authorization"] = AuthorizationHeader(parts, credentials, options_.region, date);
  return http_->Perform(http, response);
}

absl::StatusOr<HttpResponse> S3Client::Send(Request request, const Restart& restart) {
  const absl::Duration start = SteadyNow(), deadline = start + options_.deadline;
  absl::Duration backoff = options_.min_backoff;
  std::string answer;  // the last one; the last attempt may have had no time for any
  bool renewed = false;
  for (int attempts = 1;; ++attempts) {
    HttpResponse response;
    const Credentials credentials = CurrentCredentials();
    absl::Status status = SendOnce(request, credentials, deadline, response);
    if (status.ok()) {
      if (IsSuccess(response)) return response;
      status = ToStatus(response, options_, request.method, credentials.access_key_id);
      if (IsRefused(request.method, response) && options_.read_credentials != nullptr && !renewed &&
          !abandoned_) {
        renewed = true;
        const absl::Status read = RenewCredentials(credentials);
        if (read.ok()) continue;
        return absl::Status(status.code(), absl::StrCat(status.message(),
                                                        "; the credentials cannot be read again: ",
                                                        read.message()));
      }
      if (!MayPass(response) && !WasDelayed(response)) return status;
      answer = std::string(status.message());
    } else if (!absl::IsUnavailable(status)) {
      return absl::Status(status.code(), absl::StrCat(options_.endpoint, ": ", status.message()));
    }
    const absl::Duration pause = backoff * (0.5 + 0.5 * (RandomNumber() >> 11) * 0x1p-53);
    if (SteadyNow() + pause >= deadline || !Pause(pause)) {
      return absl::UnavailableError(absl::StrCat(
          options_.endpoint, ": ", answer.empty() ? std::string(status.message()) : answer, " (",
          attempts, " attempts in ",
          absl::FormatDuration(absl::Trunc(SteadyNow() - start, absl::Milliseconds(1))), ")"));
    }
    backoff = std::min(backoff * 2, options_.max_backoff);
    if (restart != nullptr) TESSERA_RETURN_IF_ERROR(restart(response, request));
  }
}

absl::StatusOr<S3Client::ObjectInfo> S3Client::Head(const std::string& key) {
  TESSERA_ASSIGN_OR_RETURN(const HttpResponse response, Send({.method = "HEAD", .key = key}));
  ObjectInfo info = {.etag = Header(response, "etag"), .writer = Header(response, kWriterHeader)};
  if (!absl::SimpleAtoi(Header(response, "content-length"), &info.size_bytes)) {
    return absl::UnavailableError("the answer does not say how long the object is");
  }
  return info;
}

absl::Status S3Client::Get(const std::string& key, const std::string& etag, uint64_t offset_bytes,
                           std::span<std::byte> out) {
  if (out.empty()) return absl::OkStatus();
  std::string wrong_range;
  for (int attempt = 0; attempt < kMaxDamagedTransfers; ++attempt) {
    TESSERA_ASSIGN_OR_RETURN(wrong_range, GetOnce(key, etag, offset_bytes, out));
    if (wrong_range.empty()) return absl::OkStatus();
  }
  return absl::UnavailableError(wrong_range);
}

absl::StatusOr<std::string> S3Client::GetOnce(const std::string& key, const std::string& etag,
                                              uint64_t offset_bytes, std::span<std::byte> out) {
  uint64_t received = 0;  // by attempts that broke
  Request request = {.method = "GET", .key = key, .sink = out};
  request.headers["range"] = RangeHeader(offset_bytes, out.size());
  if (!etag.empty()) request.headers["if-match"] = etag;
  const Restart go_on = [&](const HttpResponse& broken, Request& next) {
    // The last byte is fetched again if need be: an empty range cannot be asked for.
    received += std::min<uint64_t>(broken.sink_bytes, out.size() - received - 1);
    next.sink = out.subspan(received);
    next.headers["range"] = RangeHeader(offset_bytes + received, next.sink.size());
    return absl::OkStatus();
  };
  const absl::StatusOr<HttpResponse> response = Send(request, go_on);
  if (absl::IsAlreadyExists(response.status())) {
    return absl::UnavailableError("the object was replaced while it was read");
  }
  if (absl::IsOutOfRange(response.status())) {
    return absl::DataLossError(response.status().message());
  }
  TESSERA_RETURN_IF_ERROR(response.status());
  const std::string range = Header(*response, "content-range");
  const std::string expected =
      absl::StrCat("bytes ", offset_bytes + received, "-", offset_bytes + out.size() - 1, "/");
  if (response->status != 206 || !range.starts_with(expected) ||
      received + response->sink_bytes != out.size()) {
    return std::string(absl::StrCat("asked for ", expected.substr(0, expected.size() - 1),
                                    ", the store sent ", response->status, " \"",
                                    absl::CHexEscape(range), "\" with ", response->sink_bytes,
                                    " bytes"));
  }
  return std::string();
}

absl::StatusOr<bool> S3Client::Holds(const std::string& key, const ObjectInfo& info,
                                     std::span<const std::byte> contents) {
  if (info.size_bytes != contents.size()) return false;
  std::vector<std::byte> there(contents.size());
  TESSERA_RETURN_IF_ERROR(Get(key, info.etag, 0, there));
  return std::ranges::equal(there, contents);
}

absl::StatusOr<S3Client::Contents> S3Client::GetContents(const std::string& key,
                                                         uint64_t max_bytes) {
  absl::StatusOr<HttpResponse> response =
      Send({.method = "GET", .key = key, .headers = {{"range", RangeHeader(0, max_bytes)}}});
  // An empty object has no such range.
  const bool is_empty = absl::IsOutOfRange(response.status());
  if (is_empty) response = Send({.method = "HEAD", .key = key});
  TESSERA_RETURN_IF_ERROR(response.status());
  return Contents{.bytes = is_empty ? "" : response->body.substr(0, max_bytes),
                  .etag = Header(*response, "etag")};
}

absl::StatusOr<std::string> S3Client::Write(const std::string& key, std::span<const std::byte> body,
                                            const std::optional<Condition>& condition,
                                            const BeforeRepeating& before_repeating) {
  const std::string writer = NewWriter(), checksum = ChecksumHeader(body);
  Request request = {.method = "PUT", .key = key, .body = body};
  request.headers = {{kWriterHeader, writer}, {kChecksumHeader, checksum}};
  if (condition.has_value()) request.headers.insert(*condition);
  Restart restart;
  if (before_repeating) {
    restart = [&](const HttpResponse&, Request&) { return before_repeating(); };
  }
  for (int again = 0; again < kMaxDamagedTransfers; ++again) {
    const absl::StatusOr<HttpResponse> response = Send(request, restart);
    if (response.ok()) {
      const std::string stored = Header(*response, kChecksumHeader);
      const std::string etag = Header(*response, "etag");
      if (stored.empty() || stored == checksum) return etag;
      // What is there is this call's, and damaged.
      request.headers.erase("if-none-match");
      if (condition.has_value() && !etag.empty()) request.headers["if-match"] = etag;
      continue;
    }
    const bool refused =
        absl::IsAlreadyExists(response.status()) ||
        (request.headers.contains("if-match") && absl::IsNotFound(response.status()));
    if (!refused || !condition.has_value()) return response.status();
    // It may be refused because an earlier answer was lost.
    const absl::StatusOr<ObjectInfo> there = Head(key);
    if (there.ok()) {
      bool own = there->writer == writer;
      if (there->writer.empty()) {
        TESSERA_ASSIGN_OR_RETURN(own, Holds(key, *there, body));
      }
      if (own) return there->etag;
      return absl::AlreadyExistsError("another object is there");
    }
    if (!absl::IsNotFound(there.status())) return there.status();
    if (request.headers.contains("if-match")) return absl::NotFoundError("the object is gone");
  }
  return absl::UnavailableError("the store keeps other bytes than were sent to it");
}

absl::Status S3Client::Put(const std::string& key, std::span<const std::byte> body) {
  return Write(key, body, std::nullopt, nullptr).status();
}

absl::StatusOr<std::string> S3Client::PutIf(const std::string& key, std::span<const std::byte> body,
                                            const std::string& etag,
                                            const BeforeRepeating& before_repeating) {
  return Write(key, body,
               etag.empty() ? Condition("if-none-match", "*") : Condition("if-match", etag),
               before_repeating);
}

absl::StatusOr<bool> S3Client::ObeysIfMatch(const std::string& key,
                                            std::span<const std::byte> contents) {
  Request request = {.method = "PUT", .key = key, .body = contents};
  request.headers = {{kChecksumHeader, ChecksumHeader(contents)}, {"if-match", "\"none\""}};
  const absl::Status replaced = Send(request).status();
  if (!replaced.ok() && !absl::IsAlreadyExists(replaced)) return replaced;
  return !replaced.ok();
}

absl::StatusOr<S3Client::Upload> S3Client::CreateUpload(const std::string& key) {
  Upload upload = {.key = key, .writer = NewWriter()};
  const Restart note = [&](const HttpResponse&, Request&) {
    upload.may_have_twins = true;
    return absl::OkStatus();
  };
  TESSERA_ASSIGN_OR_RETURN(
      const HttpResponse response,
      Send({.method = "POST",
            .key = key,
            .query = {{"uploads", ""}},
            .headers = {{kWriterHeader, upload.writer}, {"x-amz-checksum-algorithm", "CRC32C"}}},
           note));
  TESSERA_ASSIGN_OR_RETURN(upload.id, ParseUploadId(response.body));
  return upload;
}

absl::StatusOr<UploadedPart> S3Client::UploadPart(const Upload& upload, int number,
                                                  std::span<const std::byte> body) {
  UploadedPart part = {
      .number = number, .etag = "", .checksum = ChecksumHeader(body), .size_bytes = body.size()};
  for (int again = 0; again < kMaxDamagedTransfers; ++again) {
    TESSERA_ASSIGN_OR_RETURN(
        const HttpResponse response,
        Send({.method = "PUT",
              .key = upload.key,
              .query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload.id}},
              .headers = {{kChecksumHeader, part.checksum}},
              .body = body}));
    const std::string stored = Header(response, kChecksumHeader);
    part.etag = Header(response, "etag");
    if (stored.empty() || stored == part.checksum) return part;
  }
  return absl::UnavailableError("the store keeps other bytes than were sent to it");
}

absl::Status S3Client::CompleteUpload(const Upload& upload,
                                      const std::vector<UploadedPart>& parts) {
  const std::string document = CompleteUploadDocument(parts);
  const absl::StatusOr<HttpResponse> response = Send({.method = "POST",
                                                      .key = upload.key,
                                                      .query = {{"uploadId", upload.id}},
                                                      .body = AsBytes(document),
                                                      .sign_body = true,
                                                      .may_take_long = true});
  if (!absl::IsNotFound(response.status())) return response.status();
  // The upload may be gone because an earlier answer was lost.
  const absl::StatusOr<ObjectInfo> there = Head(upload.key);
  bool own = there.ok() && there->writer == upload.writer;
  if (there.ok() && there->writer.empty()) {
    TESSERA_ASSIGN_OR_RETURN(own, HoldsParts(upload.key, *there, parts));
  }
  if (own) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the upload was removed by another program; ", response.status().message()));
}

absl::StatusOr<bool> S3Client::HoldsParts(const std::string& key, const ObjectInfo& info,
                                          const std::vector<UploadedPart>& parts) {
  uint64_t size_bytes = 0;
  for (const UploadedPart& part : parts) size_bytes += part.size_bytes;
  if (info.size_bytes != size_bytes) return false;
  uint64_t offset_bytes = 0;
  for (const UploadedPart& part : parts) {
    std::vector<std::byte> there(part.size_bytes);
    TESSERA_RETURN_IF_ERROR(Get(key, info.etag, offset_bytes, there));
    if (ChecksumHeader(there) != part.checksum) return false;
    offset_bytes += part.size_bytes;
  }
  return true;
}

void S3Client::AbortTwins(const Upload& upload) {
  if (!upload.may_have_twins) return;
  const auto others = ListUploads(upload.key);
  if (!others.ok()) return;
  for (const UploadsPage::Upload& other : *others) {
    if (other.key != upload.key || other.upload_id == upload.id) continue;
    AbortUpload(other.key, other.upload_id).IgnoreError();
  }
}

absl::Status S3Client::AbortUpload(const std::string& key, const std::string& upload_id) {
  const absl::Status status =
      Send({.method = "DELETE", .key = key, .query = {{"uploadId", upload_id}}}).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<std::vector<UploadsPage::Upload>> S3Client::ListUploads(const std::string& prefix) {
  std::vector<UploadsPage::Upload> uploads;
  std::map<std::string, std::string> query = {
      {"uploads", ""}, {"prefix", prefix}, {"encoding-type", "url"}};
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const HttpResponse response, Send({.method = "GET", .query = query}));
    TESSERA_ASSIGN_OR_RETURN(UploadsPage page, ParseUploadsPage(response.body));
    std::ranges::move(page.uploads, std::back_inserter(uploads));
    if (page.next_key.empty()) return uploads;
    query["key-marker"] = page.next_key;
    query["upload-id-marker"] = page.next_upload_id;
  }
}

absl::StatusOr<ListPage> S3Client::List(const std::string& prefix, bool delimiter, int max_keys) {
  ListPage all;
  std::map<std::string, std::string> query = {
      {"list-type", "2"}, {"prefix", prefix}, {"encoding-type", "url"}};
  if (delimiter) query["delimiter"] = "/";
  if (max_keys > 0) query["max-keys"] = absl::StrCat(max_keys);
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const HttpResponse response, Send({.method = "GET", .query = query}));
    TESSERA_ASSIGN_OR_RETURN(ListPage page, ParseListPage(response.body));
    std::ranges::move(page.objects, std::back_inserter(all.objects));
    std::ranges::move(page.prefixes, std::back_inserter(all.prefixes));
    if (page.next_token.empty() || max_keys > 0) return all;
    query["continuation-token"] = page.next_token;
  }
}

absl::Status S3Client::Delete(const std::string& key, const std::string& etag) {
  Request request = {.method = "DELETE", .key = key};
  if (!etag.empty()) request.headers["if-match"] = etag;
  const absl::Status status = Send(request).status();
  if (absl::IsUnimplemented(status) && !etag.empty()) return Delete(key, "");
  return absl::IsNotFound(status) || absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

absl::Status S3Client::DeleteAll(const std::vector<std::string>& keys) {
  for (size_t begin = 0; begin < keys.size(); begin += kMaxDeletedAtOnce) {
    const size_t end = std::min(keys.size(), begin + kMaxDeletedAtOnce);
    const std::string document =
        DeleteDocument(std::vector<std::string>(keys.begin() + begin, keys.begin() + end));
    TESSERA_ASSIGN_OR_RETURN(const HttpResponse response,
                             Send({.method = "POST",
                                   .query = {{"delete", ""}},
                                   .headers = {{kChecksumHeader, ChecksumHeader(AsBytes(document))},
                                               {"content-md5", ContentMd5(AsBytes(document))}},
                                   .body = AsBytes(document),
                                   .sign_body = true}));
    const std::optional<ErrorDocument> error = ParseDeleteErrors(response.body);
    if (!error.has_value()) continue;
    const std::string reason =
        absl::StrCat("the store answers ", error->code, " for ", absl::CHexEscape(error->message));
    return error->code == "AccessDenied" ? absl::PermissionDeniedError(reason)
                                         : absl::UnavailableError(reason);
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::s3
