#ifndef TESSERA_STORAGE_S3_S3_CLIENT_H_
#define TESSERA_STORAGE_S3_S3_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/s3/request_sender.h"
#include "storage/s3/xml.h"

namespace tessera::s3 {

// The limits of ranges in S3Client::Get(). A store answers each connection at its own rate.
inline constexpr uint64_t kMinRangeBytes = uint64_t{2} << 20;
inline constexpr uint64_t kMaxRanges = 4;

// A client for the objects and uploads of one bucket.
//
// An etag identifies a version of an object; in Google's store it is a generation.
//
// Requests whose failure may pass are repeated, see RequestSender. Repeating a request that had
// succeeded, but whose answer was lost, has the same effect as one request: see PutIf() and
// CompleteUpload().
//
// Errors: those of RequestSender; NotFound (no such key or upload), AlreadyExists (PutIf() that
// must not replace). The caller adds operation and name to the message.
//
// Thread-safe.
class S3Client {
 public:
  explicit S3Client(ClientOptions options) : sender_(std::move(options)) {}

  const ClientOptions& options() const { return sender_.options(); }

  struct ObjectInfo {
    uint64_t size_bytes = 0;
    std::string etag;
    std::string writer;  // see PutIf()
  };
  absl::StatusOr<ObjectInfo> Head(const std::string& key);

  // Fills `out` with bytes of the object that has this etag. Unavailable if it has another etag by
  // now, DataLoss if it is too short. Long reads are fetched in up to kMaxRanges ranges of
  // kMinRangeBytes and more, over as many connections. A broken transfer is continued where it
  // broke; an answer with the wrong bytes is requested again a few times.
  absl::Status Get(const std::string& key, const std::string& etag, uint64_t offset_bytes,
                   std::span<std::byte> out);

  // The first `max_bytes` of an object, with its size and etag, read by one request.
  struct Contents {
    std::string bytes;
    uint64_t size_bytes = 0;  // of the whole object
    std::string etag;
  };
  absl::StatusOr<Contents> GetContents(const std::string& key, uint64_t max_bytes);

  // Creates or replaces an object.
  absl::Status Put(const std::string& key, std::span<const std::byte> body);
  // Replaces the object that has this etag, or creates one if `etag` is empty; returns the new
  // etag. AlreadyExists if another object is there, NotFound if the one to replace is gone. An
  // object that this very call wrote is not an error: objects carry a random number of the call
  // that wrote them. In a store that does not return this number, an object with the same contents
  // counts as written by the call. `before_repeating` as in WriteCondition.
  using BeforeRepeating = std::function<absl::Status()>;
  absl::StatusOr<std::string> PutIf(const std::string& key, std::span<const std::byte> body,
                                    const std::string& etag,
                                    const BeforeRepeating& before_repeating = nullptr);
  // Returns whether the store obeys an etag of PutIf(). Tries with the present contents of the
  // object, so that nothing is lost if the store replaces it nevertheless. False also if the store
  // has no such condition.
  absl::StatusOr<bool> ObeysIfMatch(const std::string& key, std::span<const std::byte> contents);

  // Returns whether the object that `info` describes, fresh from Head(), has these contents.
  absl::StatusOr<bool> Holds(const std::string& key, const ObjectInfo& info,
                             std::span<const std::byte> contents);

  // A multipart upload. Its object, with parts in order of number, exists once the upload is
  // completed.
  struct Upload {
    std::string key;
    std::string id;
    std::string writer;
    bool may_have_twins =
        false;  // the request was repeated: an earlier one may have succeeded, too
  };
  absl::StatusOr<Upload> CreateUpload(const std::string& key);
  struct PartBody {
    int number = 0;
    std::span<const std::byte> bytes;
    std::optional<uint32_t> crc32c = std::nullopt;  // where it is known
  };
  // Sends parts over a connection each, from the caller's memory; the checksum of a part is
  // computed while the parts before it are in flight. Returns when all parts have arrived, or with
  // an error.
  absl::StatusOr<std::vector<UploadedPart>> UploadParts(const Upload& upload,
                                                        std::span<const PartBody> parts);
  absl::Status CompleteUpload(const Upload& upload, const std::vector<UploadedPart>& parts);
  // Aborts other uploads of the same key if there may be twins. Best effort.
  void AbortTwins(const Upload& upload);
  absl::Status AbortUpload(const std::string& key, const std::string& upload_id);
  absl::StatusOr<std::vector<UploadsPage::Upload>> ListUploads(const std::string& prefix);

  // Returns all keys that begin with `prefix`, but at most about `max_keys` if it is not 0. With
  // `delimiter`, keys with a further '/' are replaced by their part up to it.
  absl::StatusOr<ListPage> List(const std::string& prefix, bool delimiter, int max_keys = 0);

  // Deletes the object that has this etag, or any object if `etag` is empty. OK if it is gone, or
  // another one is in its place, so that a late repetition spares an object that was put there
  // meanwhile. Stores without conditional deletion delete any object.
  absl::Status Delete(const std::string& key, const std::string& etag);
  absl::Status DeleteAll(const std::vector<std::string>& keys);

  void Abandon() { sender_.Abandon(); }  // see Storage::Abandon()
  int64_t request_count() const { return sender_.request_count(); }

 private:
  struct Range {
    uint64_t offset_bytes = 0;
    std::span<std::byte> out;
    uint64_t received_bytes = 0;  // by attempts that broke
  };
  // Fetches ranges, and removes complete ones. Returns a sentence about an answer with another
  // range; empty if all are right.
  absl::StatusOr<std::string> GetOnce(const std::string& key, const std::string& etag,
                                      std::vector<Range>& ranges);
  // Returns whether the object that `info` describes, fresh from Head(), consists of these parts.
  absl::StatusOr<bool> HoldsParts(const std::string& key, const ObjectInfo& info,
                                  const std::vector<UploadedPart>& parts);
  const Dialect& dialect() const { return options().dialect; }
  std::string WriterHeader() const;
  // Returns the value of the header that protects a body, whose CRC-32C may be known.
  std::string Checksum(std::span<const std::byte> body,
                       std::optional<uint32_t> crc32c = std::nullopt) const;
  // Returns the condition that the object has this etag.
  std::pair<std::string, std::string> IfVersion(const std::string& etag) const;
  // Puts an object, as in PutIf(). Without `conditions`, any object is replaced.
  using Conditions = std::map<std::string, std::string>;
  absl::StatusOr<std::string> Write(const std::string& key, std::span<const std::byte> body,
                                    const Conditions& conditions, bool replaces,
                                    const BeforeRepeating& before_repeating);

  RequestSender sender_;
};

// Returns the value of x-amz-checksum-crc32c.
std::string ChecksumHeader(uint32_t crc32c);

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_S3_CLIENT_H_
