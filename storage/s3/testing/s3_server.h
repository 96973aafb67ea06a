#ifndef TESSERA_STORAGE_S3_TESTING_S3_SERVER_H_
#define TESSERA_STORAGE_S3_TESTING_S3_SERVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "storage/s3/s3_client.h"
#include "storage/s3/sigv4.h"
#include "storage/s3/testing/http_server.h"

namespace tessera::s3 {

// The effect of a fault on a request to which it applies.
enum class FaultKind {
  kRefuse,         // is answered with Fault::status and code, without effect
  kDrop,           // never arrives: the connection is closed
  kLoseAnswer,     // takes effect, but the connection is closed
  kTear,           // takes effect; the connection is closed after half of the answer's body
  kStall,          // is not answered until the server stops
  kSlow,           // is answered slowly
  kDamageRequest,  // arrives with a flipped bit in its body
  kDamageAnswer,   // takes effect; a bit of the answer's body is flipped
  kShortenRange,   // is answered with fewer bytes than it asks for
  kDamageStored,   // is stored with a flipped bit, and answered with the checksum of that
};

struct Fault {
  FaultKind kind = FaultKind::kRefuse;
  int status = 500;
  std::string code = "InternalError";
  std::string method;         // empty: any
  std::string key_part = "";  // the key contains it
  std::string query = "";     // this parameter is there
  int skip = 0;               // requests that match, before the first that it applies to
  int period = 1;             // it applies to each so many-th of those that match after that
  int times = 1;
  // Called instead of the fault: the request is in flight until the function returns, and then
  // takes effect. Requests that the function sends are answered meanwhile.
  std::function<void()> meanwhile = nullptr;
};

// The vendor whose rules a server keeps.
enum class Vendor {
  kAmazon,
  kVolcano,  // TOS: buckets are hosts, x-tos-forbid-overwrite; conditions on versions are ignored
  kAliyun,   // OSS: buckets are hosts, x-oss-forbid-overwrite; other conditions of writes are 501
  kGoogle,   // GOOG4 signatures, generations instead of ETags; x-amz-* is refused
};

struct S3ServerOptions {
  Vendor vendor = Vendor::kAmazon;
  const Certificate* certificate = nullptr;  // see HttpServer
  std::string bucket = "bucket";
  std::string region = "eu-test-1";
  Credentials credentials = {
      .access_key_id = "TESTKEY", .secret_access_key = "a/secret+key", .session_token = ""};
  bool verify = true;  // signatures and checksums
  int max_keys = 1000;
  uint64_t min_part_bytes = uint64_t{5} << 20;
  absl::Duration clock_offset = absl::ZeroDuration();
  bool ignores_conditions = false;  // If-None-Match, and what others have instead
  bool ignores_matches = false;     // If-Match of PUT
  bool keeps_metadata = true;       // x-amz-meta-*
  std::string denied_method = "";   // is answered with AccessDenied
  // A folder in which every object is also a file, named by its key, for other programs. Empty:
  // none. Folders without a file in them are removed.
  std::string mirror = "";
  bool listens = true;  // false: requests come by Handle() alone
};

// A store that speaks the S3 protocol on a port of this machine, in memory: for tests. One bucket,
// in the path or in the host's name. Checks signatures and checksums, keeps to the limits of S3 and
// makes faults on request.
class S3Server {
 public:
  explicit S3Server(S3ServerOptions options = {});
  ~S3Server();

  std::string endpoint() const { return http_ ? http_->url() : "http://store"; }
  std::vector<std::string> connections() const { return http_->connections(); }
  // Returns the host that each request names.
  std::vector<std::string> hosts() const;
  // Answers a request.
  HttpReply Handle(HttpMessage& request);
  // Waits until every request that has arrived has taken effect, or is lost.
  void WaitUntilIdle();
  // Returns options of a client that may do everything, with pauses short enough for tests.
  ClientOptions ForClient() const;
  // Returns options of a client that repeats no request: it gives up where it would pause.
  ClientOptions ForImpatientClient() const;

  // Accepts only these credentials from now on. The token of earlier ones has expired.
  void SetCredentials(Credentials credentials);

  void AddFault(Fault fault);
  // Returns how often faults have been applied.
  int fault_count() const;
  void ClearFaults();

  std::vector<std::string> keys() const;
  std::string contents(const std::string& key) const;
  void PutObject(const std::string& key, std::string contents);
  size_t upload_count() const;
  // Makes uploads older by `age`.
  void AgeUploads(absl::Duration age);
  // Returns the requests: "PUT a/b?partNumber=1&uploadId=1".
  std::vector<std::string> requests() const;

 private:
  struct Object {
    std::vector<std::shared_ptr<const std::string>> chunks;
    uint64_t size_bytes = 0;
    std::string etag;
    std::string generation;
    std::string checksum;
    std::map<std::string, std::string> metadata;
  };
  struct PendingUpload {
    std::string key;
    std::map<std::string, std::string> metadata;
    std::map<int, Object> parts;
    absl::Time initiated;
  };

  HttpReply Answer(HttpMessage& request);
  const Fault* FindFault(const HttpMessage& request, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the key of a request to the bucket; nullopt for any other request.
  std::optional<std::string> KeyOf(const HttpMessage& request) const;
  HttpReply Check(const HttpMessage& request, const Credentials& credentials) const;
  // Returns status 200 if the condition of a write or a deletion allows it, otherwise the answer.
  HttpReply CheckCondition(const HttpMessage& request, const std::string& key) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<std::string, std::string> HeadersOf(const Object& object) const;
  HttpReply Dispatch(const HttpMessage& request, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpReply Get(const HttpMessage& request, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpReply Put(const HttpMessage& request, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpReply PutPart(const HttpMessage& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpReply CreateUpload(const HttpMessage& request, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpReply CompleteUpload(const HttpMessage& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpReply List(const HttpMessage& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpReply ListUploads(const HttpMessage& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HttpReply DeleteMany(const HttpMessage& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Store(const std::string& key, Object object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes an object without checksum and metadata.
  Object MakeObject(std::vector<std::shared_ptr<const std::string>> chunks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const S3ServerOptions options_;
  mutable Mutex mutex_;
  Credentials credentials_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Object> objects_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, PendingUpload> uploads_ ABSL_GUARDED_BY(mutex_);  // by id
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  Fault current_fault_ ABSL_GUARDED_BY(mutex_);
  int fault_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // calls of Handle()
  CondVar idle_;
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mutex_), hosts_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> http_;  // last: its threads use the rest
};

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_TESTING_S3_SERVER_H_
