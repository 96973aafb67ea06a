#include "checkpoint/save/piece_table.h"

#include <algorithm>
#include <utility>

namespace tessera::ckpt {
namespace {

// The number of copies and checksums that a thread does during its own write while an update waits
// for them; otherwise it does one. A storage may write only while a thread waits for it, so that
// more of them would delay the write.
constexpr int kTasksPerWrite = 4;

}  // namespace

PieceTable::PieceTable(std::vector<bool> in_place, StagingBuffers buffers, const Options& options,
                       const std::vector<bool>& on_device)
    : options_(options),
      buffers_(std::move(buffers)),
      unreleased_(in_place.size()),
      unwritten_(in_place.size()),
      unsummed_(in_place.size()) {
  for (const bool piece : in_place) pieces_.push_back({.in_place = piece});
  for (size_t i = 0; i < on_device.size(); ++i) pieces_[i].on_device = on_device[i];
  pending_in_place_ = std::ranges::count(in_place, true);
  for (PieceQueue* const queue : {&to_checksum_, &started_, &copied_}) queue->reserve(size());
  for (CopyOrder* const order : {&to_stage_, &in_place_, &ahead_}) order->set_count(size());
}

bool PieceTable::MayRead() const {
  const bool by_all = options_.copy_threads == 0 || waiters_ > 0;
  return reading_ < (by_all ? options_.io_threads : options_.copy_threads);
}

// Copies go ahead of writes in memory that was touched before and, while a thread waits, in new
// memory, too.
bool PieceTable::MayCopy() const {
  return (waiters_ > 0 ? buffers_.has_any() : buffers_.has_present()) && MayRead();
}

// A checksum takes as much from the program's threads as a copy, but is not needed until a thread
// waits for the memory.
bool PieceTable::MayChecksum(Clock::time_point now) const {
  if (had_waiters_) return reading_ < options_.io_threads;
  const int threads = options_.copy_threads == 0 ? options_.io_threads : options_.copy_threads;
  return now >= rests_until_ && reading_ < threads;
}

bool PieceTable::CanCopyTheRest() const {
  return had_waiters_ && buffers_.count() >= pending_in_place_;
}

// A worker whose write is in flight does up to kTasksPerWrite other tasks first, and then finishes
// the write. Any other worker does the first of these that there is:
//
// 1. a copy, if MayCopy();
// 2. a write in place, if a thread waits, no copy is ready or the rest can be copied;
// 3. a write of a copy;
// 4. the end of a device's copy;
// 5. a copy of what an update will reach next;
// 6. the checksums of a piece in place.
PieceTable::Task PieceTable::Take(Worker& worker, Clock::time_point now) {
  if (worker.writing.has_value()) {
    const size_t index = *worker.writing;
    const Piece& piece = pieces_[index];
    const bool is_waited_for = piece.wanted && piece.state == State::kBusy;
    if (!is_waited_for && worker.tasks_meanwhile < (waiters_ > 0 ? kTasksPerWrite : 1) && !over()) {
      ++worker.tasks_meanwhile;
      if (const auto ahead = NextAhead()) return BeginCopy(*ahead);
      if (const auto started = NextToFinish()) return BeginChecksum(*started, Do::kFinishCopy);
      if (const auto missing = MayChecksum(now) ? NextToChecksum(/*wanted=*/false) : std::nullopt) {
        return BeginChecksum(*missing);
      }
    }
    worker.writing.reset();
    return {.what = Do::kFinishWrite, .piece = index, .buffer = piece.buffer};
  }
  if (const auto copy = MayCopy() ? NextToCopy() : std::nullopt) return BeginCopy(*copy);
  if (waiters_ > 0 || copied_.empty() || CanCopyTheRest()) {
    if (const auto in_place = NextInPlace()) return BeginWrite(*in_place, worker);
  }
  if (!copied_.empty()) {
    const size_t piece = copied_.front();
    copied_.pop_front();
    return BeginWrite(piece, worker);
  }
  if (const auto started = NextToFinish()) return BeginChecksum(*started, Do::kFinishCopy);
  if (const auto ahead = NextAhead()) return BeginCopy(*ahead);
  if (const auto missing = MayChecksum(now) ? NextToChecksum(/*wanted=*/false) : std::nullopt) {
    return BeginChecksum(*missing);
  }
  return {.what = now < rests_until_ ? Do::kRest : Do::kWait};
}

void PieceTable::Arrive(const Waiter& waiter) {
  for (const size_t piece : waiter.pieces) {
    if (IsPending(piece)) to_stage_.Want(piece);
    pieces_[piece].wanted = true;
    if (piece + 1 < size()) ahead_.Want(piece + 1);
  }
  wanted_checksums_.insert(wanted_checksums_.begin(), waiter.pieces.begin(), waiter.pieces.end());
  if (!std::exchange(had_waiters_, true)) updated_first_ = pending_in_place_;
  ++waiters_;
}

PieceTable::Task PieceTable::TakeAsWaiter(Waiter& waiter) {
  const std::vector<size_t>& pieces = waiter.pieces;
  size_t& released = waiter.released;
  size_t& started = waiter.started;
  while (released < pieces.size() && IsReleased(pieces[released])) ++released;
  if (released == pieces.size()) return {.what = Do::kReleased};
  while (started < pieces.size() && !IsPending(pieces[started])) ++started;
  if (started < pieces.size() && buffers_.has_any() && !over()) return BeginCopy(pieces[started]);
  if (const auto wanted = NextToChecksum(/*wanted=*/true)) return BeginChecksum(*wanted);
  if (const auto ahead = NextAhead()) return BeginCopy(*ahead);
  if (const auto missing = NextToChecksum(/*wanted=*/false)) return BeginChecksum(*missing);
  return {.what = Do::kWait};
}

std::optional<size_t> PieceTable::NextToCopy() {
  const auto is_pending = [&](size_t i) { return IsPending(i); };
  if (const std::optional<size_t> wanted = to_stage_.Wanted(is_pending)) return wanted;
  return to_stage_.Next([&](size_t i) { return IsPending(i) && !pieces_[i].in_place; });
}

// A piece that a thread waits for is left to copies while there is memory for them. If all pieces
// can be copied, the disk begins at the other end: otherwise it would write what the update needs
// next.
std::optional<size_t> PieceTable::NextInPlace() {
  if (!buffers_.has_any()) {
    const std::optional<size_t> wanted = to_stage_.Wanted([&](size_t i) { return IsPending(i); });
    if (wanted && pieces_[*wanted].in_place) return wanted;
  }
  const auto is_left = [&](size_t i) {
    return IsPending(i) && pieces_[i].in_place && !pieces_[i].wanted;
  };
  return CanCopyTheRest() ? in_place_.Last(is_left) : in_place_.Next(is_left);
}

// While an update waits, the pieces that it reaches next are copied, although the disk could read
// them in place. One thread at a time touches new memory, which takes longer than the copy.
std::optional<size_t> PieceTable::NextAhead() {
  if (waiters_ == 0 || over() || !buffers_.has_any()) return std::nullopt;
  if (!buffers_.has_present() && touching_ > 0) return std::nullopt;
  const auto is_pending = [&](size_t i) { return IsPending(i) && pieces_[i].in_place; };
  if (const std::optional<size_t> soon = ahead_.Wanted(is_pending)) return soon;
  return ahead_.Next(is_pending);
}

std::optional<size_t> PieceTable::NextToChecksum(bool wanted) {
  const auto next = [&](auto& queue) -> std::optional<size_t> {
    while (!queue.empty() && !NeedsChecksum(pieces_[queue.front()])) queue.pop_front();
    return queue.empty() ? std::nullopt : std::optional(queue.front());
  };
  if (over()) return std::nullopt;
  if (const std::optional<size_t> piece = next(wanted_checksums_)) return piece;
  const std::optional<size_t> piece = next(to_checksum_);
  return piece.has_value() && wanted && !pieces_[*piece].wanted ? std::nullopt : piece;
}

// The oldest copy ends first. Its checksums take as much from the program's threads as a copy.
std::optional<size_t> PieceTable::NextToFinish() {
  if (started_.empty() || !MayRead()) return std::nullopt;
  const size_t piece = started_.front();
  started_.pop_front();
  return piece;
}

// Preconditions: the piece is pending; there is a buffer.
PieceTable::Task PieceTable::BeginCopy(size_t index) {
  Piece& piece = pieces_[index];
  piece.state = State::kBusy;
  piece.staged = true;
  const bool touches = !buffers_.has_present();
  piece.buffer = buffers_.Take();
  pending_in_place_ -= piece.in_place ? 1 : 0;
  touching_ += touches ? 1 : 0;
  ++reading_;
  ++piece.readers;
  return {.what = Do::kCopy, .piece = index, .buffer = piece.buffer, .touches = touches};
}

// Precondition: NeedsChecksum(), or the copy of the piece was started.
PieceTable::Task PieceTable::BeginChecksum(size_t index, Do what) {
  Piece& piece = pieces_[index];
  piece.checksum = Checksum::kBusy;
  ++reading_;
  ++piece.readers;
  return {.what = what, .piece = index, .buffer = piece.buffer};
}

PieceTable::Task PieceTable::BeginWrite(size_t index, Worker& worker) {
  Piece& piece = pieces_[index];
  worker.writing = index;
  worker.tasks_meanwhile = 0;
  if (piece.staged) return {.what = Do::kWriteCopy, .piece = index, .buffer = piece.buffer};
  piece.state = State::kBusy;
  --pending_in_place_;
  ++piece.readers;
  to_checksum_.push_back(index);
  return {.what = Do::kWriteInPlace, .piece = index};
}

void PieceTable::End(const Task& task, Worker* worker, const Result& result,
                     Clock::time_point now) {
  if (!result.ok) failed_ = true;
  Piece& piece = pieces_[task.piece];
  switch (task.what) {
    case Do::kCopy:
    case Do::kFinishCopy:
      EndRead(task);
      (piece.checksum == Checksum::kDone ? copied_ : started_).push_back(task.piece);
      break;
    case Do::kChecksum:
      EndRead(task);
      if (worker == nullptr) break;
      // Computes checksums ahead of time only if the program leaves the processors to it: otherwise
      // the thread takes longer than it computes, and rests.
      worker->checksum_seconds += result.processor_seconds;
      if (IsProcessorShared(result.seconds, result.processor_seconds) &&
          options_.copy_threads > 0 && !had_waiters_) {
        rests_until_ =
            now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                      kChecksumRestRatio * std::exchange(worker->checksum_seconds, 0)));
      }
      break;
    case Do::kFinishWrite:
      piece.written = result.ok;
      if (piece.staged) {
        buffers_.Return(std::exchange(piece.buffer, nullptr));
      } else {
        --piece.readers;
        TryToRelease(piece);
      }
      break;
    case Do::kWriteCopy:
    case Do::kWriteInPlace:
    case Do::kRest:
    case Do::kWait:
    case Do::kReleased:
      break;
  }
}

void PieceTable::EndRead(const Task& task) {
  Piece& piece = pieces_[task.piece];
  touching_ -= task.touches ? 1 : 0;
  --reading_;
  --piece.readers;
  if (task.what != Do::kCopy || !piece.on_device) {
    piece.checksum = Checksum::kDone;
    --unsummed_;
  }
  TryToRelease(piece);
}

void PieceTable::TryToRelease(Piece& piece) {
  if (piece.state == State::kReleased) return;
  if (!piece.staged && !(piece.written && piece.checksum == Checksum::kDone)) return;
  piece.state = State::kReleased;
  --unreleased_;
}

}  // namespace tessera::ckpt
