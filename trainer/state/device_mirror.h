#ifndef TESSERA_TRAINER_STATE_DEVICE_MIRROR_H_
#define TESSERA_TRAINER_STATE_DEVICE_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace tessera {

struct DeviceMirrorOptions {
  int64_t piece_bytes = 0;  // that an update waits for; 0: MirrorPieceBytes() of this device
  // The rate of copies that nothing waits for; 0: as fast as the device copies.
  double bytes_per_second = 0;
};

// The smallest pieces that keep the copy engine busy: an update waits for a whole one, but each has
// a fixed cost, which is hidden where the copies before it take longer. At most a 32nd of the time
// is lost to it where nothing hides it. Whole MiB, 1 to 64. `latency`: of a copy of hardly any
// bytes, in seconds; `seconds`: of a copy of `bytes`.
int64_t MirrorPieceBytes(double latency, double seconds, int64_t bytes);

// The state of one rank that lies in the memory of a device, once more in pinned host memory, where
// checkpoints are written from and loaded to.
//
// Copies run in pieces on a stream of their own: those of all buffers side by side, since an update
// changes the same part of weights, master weights and moments at once, and waits for the pieces up
// to there. A download holds the state as the compute stream has left it at StartDownload(): what
// is queued there afterwards may read the state, and call BeforeOverwrite() before it changes it.
// The host never waits for that.
//
// Threads: BeforeOverwrite() next to one thread that calls the rest.
class DeviceMirror {
 public:
  // `buffers`: contiguous, in device memory; they and `compute`, on which they are changed, outlive
  // the mirror. The mirror starts as zeros.
  static absl::StatusOr<std::unique_ptr<DeviceMirror>> Create(
      Stream& compute, std::span<const TensorView> buffers,
      const DeviceMirrorOptions& options = {});
  ~DeviceMirror();
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  // The same elements in the mirror. CHECKs that `memory` lies in one buffer; empty views stay so.
  TensorView OnHost(const TensorView& memory) const;
  int64_t bytes() const;

  // Begins to copy the device's state to the mirror, whose contents nothing may read until that has
  // ended. Precondition: no download is in progress.
  void StartDownload();
  // What is queued on the compute stream from now on runs after the download of `memory`.
  void BeforeOverwrite(const TensorView& memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the download has ended; true without one.
  absl::StatusOr<bool> IsDownloaded() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for it. After an error it has ended, too; the mirror's contents are undefined.
  absl::Status FinishDownload() ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies the mirror to the device, before what is queued on the compute stream from now on, and
  // waits for it.
  absl::Status Upload();

 private:
  struct Piece {
    char* device;
    char* host;
    int64_t bytes;
    double at;  // where it begins, as a part of its buffer
    Event copied;
    bool queued = true;  // in the download in progress
  };
  struct Range {
    char* device;
    int64_t bytes;
    PinnedBuffer host;
  };
  DeviceMirror(Stream& compute, Stream copy, Event ready, const DeviceMirrorOptions& options)
      : compute_(compute), copy_(std::move(copy)), ready_(std::move(ready)), options_(options) {}

  absl::Status Add(const TensorView& buffer);
  // MirrorPieceBytes() of copies from the first buffer, which end in zeros.
  absl::StatusOr<int64_t> MeasurePieceBytes();
  absl::Status CutIntoPieces(int64_t piece_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void OrderPieces() ABSL_LOCKS_EXCLUDED(mutex_);
  void QueuePiece(Piece& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void QueueAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues pieces at the speed of the options.
  void Pace() ABSL_LOCKS_EXCLUDED(mutex_);

  Stream& compute_;
  Stream copy_;
  Event ready_;  // the state on the compute stream, or the upload on the copy stream
  const DeviceMirrorOptions options_;
  std::vector<Range> ranges_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // no piece before it is left to queue
  bool downloading_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread pacer_;  // with a limit of speed
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_DEVICE_MIRROR_H_
