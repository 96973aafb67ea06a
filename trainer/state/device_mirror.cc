#include "trainer/state/device_mirror.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/threads.h"
#include "glog/logging.h"

namespace tessera {

int64_t MirrorPieceBytes(double latency, double seconds, int64_t bytes) {
  constexpr double kCopiesInLatency = 32, kMiB = 1 << 20;
  const double rate = static_cast<double>(bytes) / std::max(seconds - latency, 1e-9);
  const double wanted = std::ceil(kCopiesInLatency * latency * rate / kMiB);
  return static_cast<int64_t>(std::clamp(wanted, 1.0, 64.0) * kMiB);
}

absl::StatusOr<std::unique_ptr<DeviceMirror>> DeviceMirror::Create(
    Stream& compute, std::span<const TensorView> buffers, const DeviceMirrorOptions& options) {
  CHECK_GE(options.piece_bytes, 0);
  TESSERA_ASSIGN_OR_RETURN(Stream copy, Stream::Create(compute.context()));
  TESSERA_ASSIGN_OR_RETURN(Event ready, Event::Create(compute.context()));
  std::unique_ptr<DeviceMirror> mirror(
      new DeviceMirror(compute, std::move(copy), std::move(ready), options));
  for (const TensorView& buffer : buffers) TESSERA_RETURN_IF_ERROR(mirror->Add(buffer));
  int64_t piece_bytes = options.piece_bytes;
  if (piece_bytes == 0) {
    TESSERA_ASSIGN_OR_RETURN(piece_bytes, mirror->MeasurePieceBytes());
  }
  TESSERA_RETURN_IF_ERROR(mirror->CutIntoPieces(piece_bytes));
  mirror->OrderPieces();
  if (options.bytes_per_second > 0) {
    TESSERA_ASSIGN_OR_RETURN(mirror->pacer_,
                             StartThread([state = mirror.get()] { state->Pace(); }));
  }
  return mirror;
}

DeviceMirror::~DeviceMirror() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (pacer_.joinable()) pacer_.join();
  // The copies end before their memory.
  copy_.context().KeepError("copies of the state", copy_.Synchronize());
}

absl::Status DeviceMirror::Add(const TensorView& buffer) {
  CHECK(buffer.contiguous());
  if (buffer.elements() == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(PinnedBuffer host,
                           PinnedBuffer::Allocate(copy_.context(), buffer.bytes()));
  std::memset(host.data(), 0, static_cast<size_t>(buffer.bytes()));
  ranges_.push_back(
      {.device = buffer.as<char>(), .bytes = buffer.bytes(), .host = std::move(host)});
  return absl::OkStatus();
}

absl::StatusOr<int64_t> DeviceMirror::MeasurePieceBytes() {
  if (ranges_.empty()) return int64_t{1} << 20;
  const Range& range = ranges_[0];
  const int64_t small = std::min<int64_t>(range.bytes, 4096);
  const int64_t large = std::min<int64_t>(range.bytes, int64_t{16} << 20);
  double best[2] = {HUGE_VAL, HUGE_VAL};
  for (int i = 0; i < 6; ++i) {
    const absl::Duration start = SteadyNow();
    copy_.Copy(range.device, i % 2 == 0 ? small : large, range.host.data());
    TESSERA_RETURN_IF_ERROR(copy_.Synchronize());
    best[i % 2] = std::min(best[i % 2], SecondsSince(start));
  }
  std::memset(range.host.data(), 0, static_cast<size_t>(large));
  return MirrorPieceBytes(best[0], best[1], large);
}

absl::Status DeviceMirror::CutIntoPieces(int64_t piece_bytes) {
  const MutexLock lock(&mutex_);
  for (const Range& range : ranges_) {
    for (int64_t begin = 0; begin < range.bytes; begin += piece_bytes) {
      TESSERA_ASSIGN_OR_RETURN(Event copied, Event::Create(copy_.context()));
      pieces_.push_back({.device = range.device + begin,
                         .host = static_cast<char*>(range.host.data()) + begin,
                         .bytes = std::min(piece_bytes, range.bytes - begin),
                         .at = static_cast<double>(begin) / static_cast<double>(range.bytes),
                         .copied = std::move(copied)});
    }
  }
  return absl::OkStatus();
}

void DeviceMirror::OrderPieces() {
  const MutexLock lock(&mutex_);
  std::vector<Piece*> order;
  for (Piece& piece : pieces_) order.push_back(&piece);
  std::ranges::stable_sort(order, {}, &Piece::at);
  std::vector<Piece> pieces;
  pieces.reserve(order.size());
  for (Piece* piece : order) pieces.push_back(std::move(*piece));
  pieces_.swap(pieces);
}

TensorView DeviceMirror::OnHost(const TensorView& memory) const {
  if (memory.empty() || memory.elements() == 0) return memory;
  const char* const at = memory.as<char>();
  for (const Range& range : ranges_) {
    if (at < range.device || at >= range.device + range.bytes) continue;
    CHECK_LE(at + memory.bytes(), range.device + range.bytes);
    return TensorView(static_cast<char*>(range.host.data()) + (at - range.device), memory.dtype(),
                      memory.shape(), memory.strides());
  }
  LOG(FATAL) << "memory that is not mirrored: " << ShapeToString(memory.shape());
}

int64_t DeviceMirror::bytes() const {
  int64_t sum = 0;
  for (const Range& range : ranges_) sum += range.bytes;
  return sum;
}

void DeviceMirror::StartDownload() {
  ready_.Record(compute_);
  copy_.Wait(ready_);
  const MutexLock lock(&mutex_);
  CHECK(!downloading_);
  downloading_ = true;
  next_ = 0;
  for (Piece& piece : pieces_) piece.queued = false;
  if (options_.bytes_per_second > 0) {
    changed_.NotifyAll();
  } else {
    QueueAll();
  }
}

void DeviceMirror::QueuePiece(Piece& piece) {
  if (piece.queued) return;
  piece.queued = true;
  copy_.Copy(piece.device, piece.bytes, piece.host);
  piece.copied.Record(copy_);
}

void DeviceMirror::QueueAll() {
  for (; next_ < pieces_.size(); ++next_) QueuePiece(pieces_[next_]);
}

void DeviceMirror::Pace() {
  copy_.context().KeepError("copies of the state", copy_.context().runtime().Select());
  const MutexLock lock(&mutex_);
  while (!stopping_) {
    if (!downloading_ || next_ == pieces_.size()) {
      changed_.Wait(&mutex_);
      continue;
    }
    Piece& piece = pieces_[next_++];
    if (piece.queued) continue;
    QueuePiece(piece);
    const auto next_at = std::chrono::steady_clock::now() +
                         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                             std::chrono::duration<double>(static_cast<double>(piece.bytes) /
                                                           options_.bytes_per_second));
    while (!stopping_ && next_ < pieces_.size() && std::chrono::steady_clock::now() < next_at) {
      changed_.WaitUntil(&mutex_, next_at);
    }
  }
}

void DeviceMirror::BeforeOverwrite(const TensorView& memory) {
  const MutexLock lock(&mutex_);
  if (!downloading_ || memory.empty()) return;
  const char* const begin = memory.as<char>();
  const char* const end = begin + memory.bytes();
  for (Piece& piece : pieces_) {
    if (piece.device + piece.bytes <= begin || end <= piece.device) continue;
    QueuePiece(piece);
    compute_.Wait(piece.copied);
  }
}

absl::StatusOr<bool> DeviceMirror::IsDownloaded() {
  const MutexLock lock(&mutex_);
  if (!downloading_) return true;
  if (next_ < pieces_.size()) return false;
  for (const Piece& piece : pieces_) {
    TESSERA_ASSIGN_OR_RETURN(const bool done, piece.copied.IsDone());
    if (!done) return false;
  }
  downloading_ = false;
  return true;
}

absl::Status DeviceMirror::FinishDownload() {
  const MutexLock lock(&mutex_);
  if (!downloading_) return absl::OkStatus();
  QueueAll();
  changed_.NotifyAll();
  downloading_ = false;
  return copy_.Synchronize();
}

absl::Status DeviceMirror::Upload() {
  TESSERA_RETURN_IF_ERROR(FinishDownload());
  // What the compute stream still does with the old state comes first.
  ready_.Record(compute_);
  copy_.Wait(ready_);
  {
    const MutexLock lock(&mutex_);
    for (const Piece& piece : pieces_) copy_.Copy(piece.host, piece.bytes, piece.device);
  }
  return copy_.Synchronize();
}

}  // namespace tessera
