#include "storage/s3/http.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/program.h"
#include "base/steady_time.h"
#include "third_party/curl/curl.h"

namespace tessera::s3 {
namespace {

using CurlLong = long;  // NOLINT(google-runtime-int): what libcurl takes and gives

// Bodies that do not go to a sink: listings, errors and copies of them.
constexpr size_t kMaxBodyBytes = size_t{64} << 20;
constexpr auto kBufferBytes = static_cast<CurlLong>(kHttpBufferBytes);
// CheckAbandoned() is called at least as often.
constexpr absl::Duration kLongestPoll = absl::Seconds(1);

// Where Linux systems have the certificates of authorities.
constexpr const char* kFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, RHEL, Amazon
    "/etc/pki/tls/certs/ca-bundle.crt",                   // the same, older
    "/etc/ssl/ca-bundle.pem",                             // SUSE
    "/var/lib/ca-certificates/ca-bundle.pem",             // SUSE
    "/etc/ssl/cert.pem",                                  // Alpine without its package, musl, BSD
    "/etc/pki/tls/cacert.pem",
};
constexpr const char* kDirectories[] = {"/etc/ssl/certs", "/etc/pki/tls/certs"};

// The state of one transfer, for libcurl's callbacks.
struct Transfer {
  CURL* handle;
  size_t id;
  HttpRequest request;
  HttpResponse& response;
  size_t sent_bytes = 0;
  curl_slist* headers = nullptr;
  char reason[CURL_ERROR_SIZE] = "";

  // As seen by CheckAbandoned().
  curl_off_t moved_bytes = -1;
  std::chrono::steady_clock::time_point moved_at = {};
};

size_t SendBody(char* out, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const size_t left = transfer.request.body.size() - transfer.sent_bytes;
  const size_t bytes = std::min(left, size * count);
  if (bytes > 0) std::memcpy(out, transfer.request.body.data() + transfer.sent_bytes, bytes);
  transfer.sent_bytes += bytes;
  return bytes;
}

// libcurl sends a body again where a kept connection turns out to be closed.
int SeekBody(void* user, curl_off_t offset, int origin) {
  auto& transfer = *static_cast<Transfer*>(user);
  if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
  transfer.sent_bytes = std::min<size_t>(offset, transfer.request.body.size());
  return CURL_SEEKFUNC_OK;
}

size_t ReceiveBody(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const size_t bytes = size * count;
  CurlLong status = 0;
  curl::easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &status);
  HttpResponse& response = transfer.response;
  if (status == transfer.request.sink_status && !transfer.request.sink.empty()) {
    if (bytes > transfer.request.sink.size() - response.sink_bytes) return 0;
    std::memcpy(transfer.request.sink.data() + response.sink_bytes, data, bytes);
    response.sink_bytes += bytes;
    return bytes;
  }
  if (bytes > kMaxBodyBytes - response.body.size()) return 0;
  response.body.append(data, bytes);
  return bytes;
}

size_t ReceiveHeader(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) {  // drops the headers of a 100 Continue
    transfer.response.headers.clear();
    return line.size();
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return line.size();
  const std::string name = absl::AsciiStrToLower(std::string(line.substr(0, colon)));
  const std::string value(absl::StripAsciiWhitespace(std::string(line.substr(colon + 1))));
  const auto [there, is_new] = transfer.response.headers.emplace(name, value);
  if (!is_new) absl::StrAppend(&there->second, ",", value);
  return line.size();
}

// libcurl calls this at least once a second. Returns 0, or another number to end the transfer.
int CheckAbandoned(void* user, curl_off_t /*total*/, curl_off_t received, curl_off_t /*total*/,
                   curl_off_t sent) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::atomic<bool>* const abandoned = transfer.request.abandoned;
  if (abandoned == nullptr || !*abandoned) return 0;
  const auto now = std::chrono::steady_clock::now();
  if (received + sent != transfer.moved_bytes) {
    transfer.moved_bytes = received + sent;
    transfer.moved_at = now;
  }
  return now - transfer.moved_at > absl::ToChronoMilliseconds(kAbandonedStall) ? 1 : 0;
}

bool IsTransient(CURLcode code) {
  switch (code) {
    case CURLE_FAILED_INIT:  // the library is missing
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_WRITE_ERROR:  // an answer that is too long
      return false;
    default:
      return true;
  }
}

// Returns whether TLS failed because a certificate names an authority, but is signed with another
// key. libcurl does not distinguish this from transient failures.
bool IsWronglySigned(const std::string& reason) {
  return reason.find("asn1 encoding routines") != reason.npos ||
         reason.find("rsa routines") != reason.npos;
}

// Returns a sentence about a certificate that libcurl has refused for `reason`.
std::string CertificateSentence(const std::string& url, const std::string& reason) {
  constexpr char kHint[] = "; AWS_CA_BUNDLE names the file of the authorities to trust";
  const std::string host = url.substr(url.find("://") + 3);
  const auto says = [&](const char* part) { return reason.find(part) != reason.npos; };
  const char *what = " comes from no authority that is trusted here", *hint = kHint;
  if (says("host name")) what = " is for another name", hint = "";
  if (says("expired")) what = " has expired", hint = "";
  if (says("not yet valid")) what = " is not valid yet by this machine's clock", hint = "";
  return absl::StrCat("the certificate of ", host.substr(0, host.find('/')), what, " (", reason,
                      ")", hint);
}

void SetMethod(CURL* handle, Transfer& transfer) {
  const HttpRequest& request = transfer.request;
  if (request.method == "HEAD") {
    curl::easy_setopt(handle, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT") {
    curl::easy_setopt(handle, CURLOPT_UPLOAD, 1L);
    curl::easy_setopt(handle, CURLOPT_INFILESIZE_LARGE,
                      static_cast<curl_off_t>(request.body.size()));
  } else if (request.method == "POST") {
    curl::easy_setopt(handle, CURLOPT_POST, 1L);
    curl::easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE,
                      static_cast<curl_off_t>(request.body.size()));
  } else if (request.method != "GET") {
    curl::easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

void SetCallbacks(CURL* handle, Transfer& transfer) {
  curl::easy_setopt(handle, CURLOPT_READFUNCTION, SendBody);
  curl::easy_setopt(handle, CURLOPT_READDATA, &transfer);
  curl::easy_setopt(handle, CURLOPT_SEEKFUNCTION, SeekBody);
  curl::easy_setopt(handle, CURLOPT_SEEKDATA, &transfer);
  curl::easy_setopt(handle, CURLOPT_WRITEFUNCTION, ReceiveBody);
  curl::easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  curl::easy_setopt(handle, CURLOPT_HEADERFUNCTION, ReceiveHeader);
  curl::easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl::easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, CheckAbandoned);
  curl::easy_setopt(handle, CURLOPT_XFERINFODATA, &transfer);
  curl::easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
}

void SetLimits(CURL* handle, const HttpRequest& request) {
  const auto milliseconds = [](absl::Duration duration) {
    return static_cast<CurlLong>(std::max<int64_t>(absl::ToInt64Milliseconds(duration), 1));
  };
  curl::easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl::easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(request.connect_timeout));
  curl::easy_setopt(handle, CURLOPT_TIMEOUT_MS, milliseconds(request.timeout));
  curl::easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl::easy_setopt(
      handle, CURLOPT_LOW_SPEED_TIME,
      std::max(static_cast<CurlLong>(absl::ToInt64Seconds(request.stall_timeout)), 1L));
  curl::easy_setopt(handle, CURLOPT_TCP_KEEPALIVE, 1L);
  curl::easy_setopt(handle, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl::easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
}

curl_slist* HeaderList(const HttpRequest& request) {
  curl_slist* list = nullptr;
  for (const auto& [name, value] : request.headers) {
    // libcurl does not send a header that ends in a colon.
    const std::string line =
        value.empty() ? absl::StrCat(name, ";") : absl::StrCat(name, ": ", value);
    list = curl::slist_append(list, line.c_str());
  }
  // Prevents headers that libcurl adds: one pauses before each body, the other was not signed.
  list = curl::slist_append(list, "Expect:");
  if (!request.headers.contains("content-type")) list = curl::slist_append(list, "Content-Type:");
  return list;
}

// Returns the outcome of a transfer.
absl::Status OutcomeOf(const Transfer& transfer, CURLcode code) {
  if (code == CURLE_OK) return absl::OkStatus();
  std::string message = transfer.reason[0] != '\0' ? transfer.reason : curl::easy_strerror(code);
  if (code == CURLE_SSL_CONNECT_ERROR && IsWronglySigned(message)) {
    code = CURLE_PEER_FAILED_VERIFICATION;
  }
  if (code == CURLE_PEER_FAILED_VERIFICATION) {
    message = CertificateSentence(transfer.request.url, message);
  }
  if (code == CURLE_SSL_CACERT_BADFILE) {
    absl::StrAppend(&message, "; AWS_CA_BUNDLE names the file of the authorities to trust");
  }
  return IsTransient(code) ? absl::UnavailableError(message)
                           : absl::FailedPreconditionError(message);
}

class CurlClient final : public HttpClient {
 public:
  CurlClient();
  CurlClient(const CurlClient&) = delete;
  CurlClient& operator=(const CurlClient&) = delete;
  ~CurlClient() override;

  absl::Status Perform(const HttpRequest& request, HttpResponse& response) override;
  std::unique_ptr<HttpBatch> NewBatch() override;

 private:
  class Batch;
  // The state of a batch, which is kept for the next one.
  struct Handles {
    CURLM* multi = nullptr;  // with its connections
    std::vector<CURL*> idle = {};
  };

  const CertificateAuthorities authorities_ = FindCertificateAuthorities();
  Mutex mutex_;
  std::vector<Handles> idle_ ABSL_GUARDED_BY(mutex_);
};

CurlClient::CurlClient() {
  static std::once_flag initialized;
  std::call_once(initialized, [] { curl::global_init(CURL_GLOBAL_DEFAULT); });
}

CurlClient::~CurlClient() {
  for (const Handles& handles : idle_) {
    for (CURL* handle : handles.idle) curl::easy_cleanup(handle);
    curl::multi_cleanup(handles.multi);
  }
}

class CurlClient::Batch final : public HttpBatch {
 public:
  explicit Batch(CurlClient& client) : client_(client) {
    {
      const MutexLock lock(&client_.mutex_);
      if (!client_.idle_.empty()) {
        handles_ = std::move(client_.idle_.back());
        client_.idle_.pop_back();
        return;
      }
    }
    handles_.multi = curl::multi_init();
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  ~Batch() override {
    while (!transfers_.empty()) Remove(transfers_.begin());
    if (handles_.multi == nullptr) return;
    const MutexLock lock(&client_.mutex_);
    client_.idle_.push_back(std::move(handles_));
  }

  void Start(size_t id, HttpRequest request, HttpResponse& response) override {
    response = HttpResponse();
    CURL* const handle = TakeHandle();
    if (handle == nullptr) {
      finished_.push_back({id, absl::ResourceExhaustedError("no memory for a connection")});
      return;
    }
    std::unique_ptr<Transfer>& kept = transfers_[handle];
    kept.reset(new Transfer{handle, id, std::move(request), response});
    Transfer& transfer = *kept;
    curl::easy_setopt(handle, CURLOPT_ERRORBUFFER, transfer.reason);
    curl::easy_setopt(handle, CURLOPT_URL, transfer.request.url.c_str());
    curl::easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);
    curl::easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl::easy_setopt(handle, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    if (!transfer.request.use_proxy) curl::easy_setopt(handle, CURLOPT_PROXY, "");
    SetAuthorities(handle);
    SetMethod(handle, transfer);
    SetCallbacks(handle, transfer);
    SetLimits(handle, transfer.request);
    transfer.headers = HeaderList(transfer.request);
    curl::easy_setopt(handle, CURLOPT_HTTPHEADER, transfer.headers);
    if (curl::multi_add_handle(handles_.multi, handle) == CURLM_OK) return Move();
    finished_.push_back({id, OutcomeOf(transfer, CURLE_FAILED_INIT)});
    Remove(transfers_.find(handle));
  }

  std::optional<Finished> Wait(absl::Duration timeout) override {
    const absl::Duration until = SteadyNow() + timeout;
    while (finished_.empty() && !transfers_.empty()) {
      Move();
      const absl::Duration left = until - SteadyNow();
      if (!finished_.empty() || left <= absl::ZeroDuration()) break;
      curl::multi_poll(
          handles_.multi, nullptr, 0,
          static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kLongestPoll))) + 1, nullptr);
    }
    if (finished_.empty()) return std::nullopt;
    Finished first = std::move(finished_.front());
    finished_.pop_front();
    return first;
  }

 private:
  using Transfers = std::map<CURL*, std::unique_ptr<Transfer>>;

  CURL* TakeHandle() {
    if (handles_.multi == nullptr) return nullptr;
    if (handles_.idle.empty()) return curl::easy_init();
    CURL* const handle = handles_.idle.back();
    handles_.idle.pop_back();
    return handle;
  }

  // Moves what can be moved without waiting.
  void Move() {
    int running = 0, queued = 0;
    curl::multi_perform(handles_.multi, &running);
    while (const CURLMsg* message = curl::multi_info_read(handles_.multi, &queued)) {
      if (message->msg != CURLMSG_DONE) continue;
      const auto at = transfers_.find(message->easy_handle);
      const CURLcode code = message->data.result;
      CurlLong status = 0;
      curl::easy_getinfo(at->first, CURLINFO_RESPONSE_CODE, &status);
      at->second->response.status = static_cast<int>(status);
      finished_.push_back({at->second->id, OutcomeOf(*at->second, code)});
      Remove(at);
    }
  }

  // A transfer that is not finished takes its connection with it; others leave theirs.
  void Remove(Transfers::iterator at) {
    curl::multi_remove_handle(handles_.multi, at->first);
    curl::easy_reset(at->first);
    handles_.idle.push_back(at->first);
    curl::slist_free_all(at->second->headers);
    transfers_.erase(at);
  }

  void SetAuthorities(CURL* handle) const {
    const auto& [file, directory] = client_.authorities_;
    if (file.empty() && directory.empty()) return;
    curl::easy_setopt(handle, CURLOPT_CAINFO, file.empty() ? nullptr : file.c_str());
    curl::easy_setopt(handle, CURLOPT_CAPATH, directory.empty() ? nullptr : directory.c_str());
  }

  CurlClient& client_;
  Handles handles_;
  Transfers transfers_;
  std::deque<Finished> finished_;
};

std::unique_ptr<HttpBatch> CurlClient::NewBatch() { return std::make_unique<Batch>(*this); }

absl::Status CurlClient::Perform(const HttpRequest& request, HttpResponse& response) {
  Batch batch(*this);
  batch.Start(0, request, response);
  return batch.Wait(absl::InfiniteDuration())->status;
}

}  // namespace

CertificateAuthorities FindCertificateAuthorities(const std::string& root) {
  for (const char* name : {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE"}) {
    const std::string path = EnvironmentVariable(name);
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return {.file = "", .directory = path};
    if (!path.empty()) return {.file = path, .directory = ""};
  }
  CertificateAuthorities found = {EnvironmentVariable("SSL_CERT_FILE"),
                                  EnvironmentVariable("SSL_CERT_DIR")};
  if (!found.file.empty() || !found.directory.empty()) return found;
  for (const char* path : kFiles) {
    if (access((root + path).c_str(), R_OK) == 0) return {.file = root + path, .directory = ""};
  }
  for (const char* path : kDirectories) {
    if (access((root + path).c_str(), R_OK) == 0) return {.file = "", .directory = root + path};
  }
  return {};
}

std::unique_ptr<HttpClient> MakeHttpClient() { return std::make_unique<CurlClient>(); }

}  // namespace tessera::s3
