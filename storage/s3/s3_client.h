#ifndef TESSERA_STORAGE_S3_S3_CLIENT_H_
#define TESSERA_STORAGE_S3_S3_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/s3/request_sender.h"
#include "storage/s3/xml.h"

namespace tessera::s3 {

// See S3Client::Get(): a store answers each connection at its own rate.
inline constexpr uint64_t kMinRangeBytes = uint64_t{2} << 20;
inline constexpr uint64_t kMaxRanges = 4;

// Objects and uploads of one bucket.
//
// An etag is what the store tells versions of an object apart by: a generation in Google's.
//
// Requests that fail in a way that may pass are repeated, see RequestSender. A repetition of a
// request that had succeeded without its answer arriving has the same effect: see PutIf() and
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

  // Fills `out` with bytes of the object that has this etag; Unavailable where it has another one
  // by now, DataLoss where it is too short. Long ones are fetched in up to kMaxRanges ranges of
  // kMinRangeBytes and more, over as many connections. A transfer that breaks is continued where it
  // broke; an answer with other bytes than those that were asked for is asked for again a few
  // times.
  absl::Status Get(const std::string& key, const std::string& etag, uint64_t offset_bytes,
                   std::span<std::byte> out);

  // The first `max_bytes` of an object, with its size and its etag, by one request.
  struct Contents {
    std::string bytes;
    uint64_t size_bytes = 0;  // of the whole object
    std::string etag;
  };
  absl::StatusOr<Contents> GetContents(const std::string& key, uint64_t max_bytes);

  // Creates or replaces an object.
  absl::Status Put(const std::string& key, std::span<const std::byte> body);
  // Replaces the object that has this etag, or creates one where `etag` is empty; returns the new
  // etag. AlreadyExists where another object is there, NotFound where the one to be replaced is
  // gone, unless this very call wrote what is there: objects carry a random number of the call that
  // wrote them. In a store that does not return this number, an object with the same contents
  // counts as written by it. `before_repeating`: see WriteCondition.
  using BeforeRepeating = std::function<absl::Status()>;
  absl::StatusOr<std::string> PutIf(const std::string& key, std::span<const std::byte> body,
                                    const std::string& etag,
                                    const BeforeRepeating& before_repeating = nullptr);
  // Whether the store obeys an etag of PutIf(). Tries it with the contents that the object has: a
  // store that replaces it nevertheless loses nothing. False, too, where the store has no such
  // condition.
  absl::StatusOr<bool> ObeysIfMatch(const std::string& key, std::span<const std::byte> contents);

  // Whether the object, of which Head() has just returned `info`, has these contents.
  absl::StatusOr<bool> Holds(const std::string& key, const ObjectInfo& info,
                             std::span<const std::byte> contents);

  // A multipart upload. Its object exists once it is completed, with parts in order of number.
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
  // Sends parts over a connection each, from the caller's memory; the checksum of one is computed
  // while those before it are on their way. Returns when all of them are there, or an error.
  absl::StatusOr<std::vector<UploadedPart>> UploadParts(const Upload& upload,
                                                        std::span<const PartBody> parts);
  absl::Status CompleteUpload(const Upload& upload, const std::vector<UploadedPart>& parts);
  // Aborts other uploads of the same key where there may be twins. Best effort.
  void AbortTwins(const Upload& upload);
  absl::Status AbortUpload(const std::string& key, const std::string& upload_id);
  absl::StatusOr<std::vector<UploadsPage::Upload>> ListUploads(const std::string& prefix);

  // All keys that begin with `prefix`; with `delimiter`, those with a further '/' are replaced by
  // their part up to it. At most about `max_keys` where that is not 0.
  absl::StatusOr<ListPage> List(const std::string& prefix, bool delimiter, int max_keys = 0);

  // Deletes the object that has this etag, or any if it is empty. OK if it is gone, or another one
  // is in its place: a repetition that arrives late spares what was put there meanwhile. Stores
  // that know no conditional deletion delete any.
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
  // Fetches ranges, and removes those that are there. Returns a sentence about an answer with
  // another range; empty where all are right.
  absl::StatusOr<std::string> GetOnce(const std::string& key, const std::string& etag,
                                      std::vector<Range>& ranges);
  // Whether the object, of which Head() has just returned `info`, consists of these parts.
  absl::StatusOr<bool> HoldsParts(const std::string& key, const ObjectInfo& info,
                                  const std::vector<UploadedPart>& parts);
  const Dialect& dialect() const { return options().dialect; }
  std::string WriterHeader() const;
  // The value of the header that protects a body, whose CRC-32C may be known.
  std::string Checksum(std::span<const std::byte> body,
                       std::optional<uint32_t> crc32c = std::nullopt) const;
  // The condition that the object has this etag.
  std::pair<std::string, std::string> IfVersion(const std::string& etag) const;
  // See PutIf(); without `conditions`, an object is replaced whatever it is.
  using Conditions = std::map<std::string, std::string>;
  absl::StatusOr<std::string> Write(const std::string& key, std::span<const std::byte> body,
                                    const Conditions& conditions, bool replaces,
                                    const BeforeRepeating& before_repeating);

  RequestSender sender_;
};

// The value of x-amz-checksum-crc32c.
std::string ChecksumHeader(uint32_t crc32c);

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_S3_CLIENT_H_
