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

// Returns the size of the smallest pieces that keep the copy engine busy, in whole MiB, 1 to 64. An
// update waits for a whole piece, but each piece has a fixed cost. The cost is hidden if the copies
// before it take longer; otherwise it is at most a 32nd of the time. `latency` is the time of a
// copy of hardly any bytes, in seconds, `seconds` that of a copy of `bytes`.
int64_t MirrorPieceBytes(double latency, double seconds, int64_t bytes);

// A copy, in pinned host memory, of one rank's state in the memory of a device. Checkpoints are
// written from the mirror and loaded into it.
//
// Copies run in pieces on a stream of their own. All buffers are copied side by side, because an
// update changes the same part of weights, master weights and moments at once, and waits only for
// the pieces up to that part. A download holds the state that the compute stream has left at
// StartDownload(). Later work of the compute stream may read the state; call BeforeOverwrite()
// before queuing work that changes the state. The host never waits for the copy.
//
// Threads: BeforeOverwrite() next to one thread that calls the rest.
class DeviceMirror {
 public:
  // Creates a mirror of zeros. `buffers` are contiguous, in device memory; they and `compute`, on
  // which they are changed, must outlive the mirror.
  static absl::StatusOr<std::unique_ptr<DeviceMirror>> Create(
      Stream& compute, std::span<const TensorView> buffers,
      const DeviceMirrorOptions& options = {});
  ~DeviceMirror();
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  // Returns the mirror's copy of `memory`. CHECKs that `memory` lies in one buffer; empty views
  // stay empty.
  TensorView OnHost(const TensorView& memory) const;
  int64_t bytes() const;

  // Begins to copy the device's state to the mirror, which nothing may read until the download has
  // ended. Precondition: no download is in progress.
  void StartDownload();
  // Makes work that is queued on the compute stream from now on run after the download of `memory`.
  void BeforeOverwrite(const TensorView& memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the download has ended; true without one.
  absl::StatusOr<bool> IsDownloaded() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for the download. After an error it has ended, too, and the mirror's contents are
  // undefined.
  absl::Status FinishDownload() ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies the mirror to the device, before work that is queued on the compute stream from now on,
  // and waits for the copy.
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
  // Measures MirrorPieceBytes() by copies from the first buffer, which leave zeros.
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
