#include "trainer/state/device_mirror.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "base/threads.h"
#include "glog/logging.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<DeviceMirror>> DeviceMirror::Create(
    Stream& compute, std::span<const TensorView> buffers, const DeviceMirrorOptions& options) {
  CHECK_GT(options.piece_bytes, 0);
  TESSERA_ASSIGN_OR_RETURN(Stream copy, Stream::Create(compute.context()));
  TESSERA_ASSIGN_OR_RETURN(Event ready, Event::Create(compute.context()));
  std::unique_ptr<DeviceMirror> mirror(
      new DeviceMirror(compute, std::move(copy), std::move(ready), options));
  for (const TensorView& buffer : buffers) TESSERA_RETURN_IF_ERROR(mirror->Add(buffer));
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
  const MutexLock lock(&mutex_);
  for (int64_t begin = 0; begin < buffer.bytes(); begin += options_.piece_bytes) {
    TESSERA_ASSIGN_OR_RETURN(Event copied, Event::Create(copy_.context()));
    pieces_.push_back({.device = buffer.as<char>() + begin,
                       .host = static_cast<char*>(host.data()) + begin,
                       .bytes = std::min(options_.piece_bytes, buffer.bytes() - begin),
                       .at = static_cast<double>(begin) / static_cast<double>(buffer.bytes()),
                       .copied = std::move(copied)});
  }
  ranges_.push_back(
      {.device = buffer.as<char>(), .bytes = buffer.bytes(), .host = std::move(host)});
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
