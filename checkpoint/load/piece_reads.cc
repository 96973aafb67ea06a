#include "checkpoint/load/piece_reads.h"

#include <utility>

#include "absl/status/statusor.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/threads.h"

namespace tessera::ckpt {

absl::Status AddBuffer(uint64_t bytes, LoadReport& report, std::vector<AlignedBuffer>& to) {
  TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(bytes));
  report.buffer_bytes += buffer.capacity_bytes();
  to.push_back(std::move(buffer));
  return absl::OkStatus();
}

absl::Status PieceReads::MakeBuffers(const ReadSchedule::BufferCounts& counts) {
  workers_ = counts.workers;
  TESSERA_RETURN_IF_ERROR(MakeRing(counts.own));
  for (size_t i = 0; i < counts.private_pieces; ++i) {
    TESSERA_RETURN_IF_ERROR(AddBuffer(schedule_.largest_private, report_, private_buffers_));
  }
  const MutexLock lock(&mutex_);
  done_.resize(schedule_.own.size());
  for (AlignedBuffer& buffer : private_buffers_) free_private_.push_back(buffer.data());
  return absl::OkStatus();
}

absl::Status PieceReads::MakeRing(size_t count) {
  const uint64_t stride =
      RoundUp<uint64_t>(schedule_.largest_own, kIoAlignmentBytes) + ReadSchedule::kReadRoomBytes;
  if (count == 0) return absl::OkStatus();
  absl::StatusOr<HostMemory> shared = HostMemory::Create(count * stride);
  if (shared.ok()) {
    shared_memory_ = *std::move(shared);
    report_.buffer_bytes += shared_memory_->size_bytes();
  } else {
    TESSERA_RETURN_IF_ERROR(AddBuffer(count * stride, report_, ring_memory_));
  }
  std::byte* const begin =
      shared_memory_.has_value() ? shared_memory_->data() : ring_memory_[0].data();
  for (size_t i = 0; i < count; ++i) ring_.push_back(begin + i * stride);
  return absl::OkStatus();
}

void PieceReads::Start() {
  threads_ = StartThreads(workers_, [this](int worker) { Work(worker); });
}

bool PieceReads::WaitFor(size_t index, size_t released) {
  MutexLock lock(&mutex_);
  released_ = released;
  changed_.NotifyAll();
  while (done_[index] == Done::kNot) {
    if (!threads_.empty()) {
      changed_.Wait(&mutex_);
      continue;
    }
    lock.Unlock();
    if (std::optional<Task> task = StartNext(/*may_wait=*/true)) FinishTask(0, *task, task->Wait());
    lock.Lock();
  }
  return done_[index] == Done::kGood;
}

absl::Status PieceReads::Finish(bool stop) {
  {
    const MutexLock lock(&mutex_);
    stop_ = stop;
    released_ = schedule_.own.size();
  }
  changed_.NotifyAll();
  if (threads_.empty()) Work(0);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  const MutexLock lock(&mutex_);
  return error_;
}

std::optional<PieceReads::Task> PieceReads::NextTask(bool may_wait) {
  MutexLock lock(&mutex_);
  while (true) {
    if (stop_) return std::nullopt;
    const bool own_left = next_own_ < schedule_.own.size();
    if (own_left && next_own_ < released_ + ring_.size()) {
      const size_t index = next_own_++;
      return Task{.own = true, .index = index, .buffer = OwnBuffer(index), .is_read = error_.ok()};
    }
    const bool private_left = error_.ok() && next_private_ < schedule_.private_pieces.size();
    if (private_left && !free_private_.empty()) {
      std::byte* const buffer = free_private_.back();
      free_private_.pop_back();
      return Task{.own = false, .index = next_private_++, .buffer = buffer, .is_read = true};
    }
    if (!may_wait || (!own_left && !private_left)) return std::nullopt;
    changed_.Wait(&mutex_);
  }
}

std::optional<PieceReads::Task> PieceReads::StartNext(bool may_wait) {
  std::optional<Task> task = NextTask(may_wait);
  if (!task.has_value() || !task->is_read) return task;
  Try([&] {
    task->read = scanner_.StartPiece(PieceOf(*task), task->buffer);
    return absl::OkStatus();
  });
  return task;
}

absl::Status PieceReads::Task::Wait() {
  return CatchExceptions(kReadingForOthers, [&]() -> absl::Status {
    const std::unique_ptr<PendingIo> started = std::move(read);
    return started != nullptr ? started->Wait() : absl::CancelledError("after another error");
  });
}

void PieceReads::FinishTask(int worker, const Task& task, const absl::Status& read) {
  const FilePiece& piece = PieceOf(task);
  const absl::Status status = CatchExceptions(kReadingForOthers, [&] {
    return scanner_.FinishPiece(read, piece, task.buffer, worker, placer_.AsCallback());
  });
  const MutexLock lock(&mutex_);
  if (status.ok()) report_.bytes_read += piece.size();
  if (task.own) {
    done_[task.index] = status.ok() ? Done::kGood : Done::kFailed;
  } else {
    free_private_.push_back(task.buffer);
  }
  error_.Update(status);
  changed_.NotifyAll();
}

void PieceReads::Work(int worker) {
  ReadAhead([this](bool ahead) { return StartNext(/*may_wait=*/!ahead); },
            [&](const Task& task, const absl::Status& read) { FinishTask(worker, task, read); });
}

}  // namespace tessera::ckpt
