#ifndef TESSERA_STORAGE_S3_S3_STORAGE_H_
#define TESSERA_STORAGE_S3_S3_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/s3/s3_client.h"
#include "storage/storage.h"

namespace tessera {

struct S3StorageOptions {
  s3::ClientOptions client;
  std::string prefix;  // "runs/a"; empty: the whole bucket
  std::string name;    // of the bucket, in messages; empty: s3://bucket

  // Whether to prepare for writing: proves at once that the endpoint answers, the bucket exists,
  // and objects can be listed, created without replacing one, and deleted. Repeats these
  // requests for at most 15 s each.
  bool create_root = false;

  // A regular expression (ECMAScript). With create_root, removes an upload that began
  // stale_upload_age ago if the expression matches its whole path below the prefix. Empty: removes
  // no upload.
  std::string own_uploads;
  absl::Duration stale_upload_age = absl::Hours(24);

  uint64_t part_bytes = uint64_t{8} << 20;  // at least; see s3::ChoosePartBytes
  // The limit of memory for parts that are not complete. Besides, each thread in a call has up to
  // s3::kPartsAtOnce connections, each with up to twice s3::kHttpBufferBytes between its socket and
  // the caller's memory: 2 MiB a thread. Parts that are neither complete nor the file's last bytes
  // are rare when files are written in order; a program whose writes are more scattered gets
  // ResourceExhausted.
  uint64_t max_buffered_bytes = uint64_t{1} << 30;
};

// Opens a prefix of a bucket of S3, or of a store that speaks its protocol.
//
// A file is an object, which appears as a whole at Sync() or Close(), whichever is first, and does
// not change after that; a reader of an object that is replaced gets Unavailable. Write() is a
// conditional request (If-None-Match, If-Match, or what the store has instead). Before an object is
// replaced for the first time, the store has to prove that it honours the condition: Unimplemented
// if it does not.
//
// Directories are prefixes: each exists while there is an object in it. SyncDirectory() has nothing
// to do. MakeDirectory() creates nothing, but aborts the uploads that others have begun inside, and
// so does DeleteTree(). Rename() of a directory is Unimplemented, since it could not be atomic.
// Rename() of a small file copies and deletes it, so that both names exist for a moment.
//
// Errors: those of Storage; FailedPrecondition if there is no such bucket. Thread-safe.
absl::StatusOr<std::unique_ptr<Storage>> OpenS3Storage(const S3StorageOptions& options);

}  // namespace tessera

#endif  // TESSERA_STORAGE_S3_S3_STORAGE_H_
