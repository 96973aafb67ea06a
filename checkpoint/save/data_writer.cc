#include "checkpoint/save/data_writer.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "base/checked_math.h"
#include "base/errno_status.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/threads.h"
#include "base/trace.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/pieces.h"

namespace tessera::ckpt {
namespace {

using Clock = PieceTable::Clock;
using Do = PieceTable::Do;

constexpr char kWritingFiles[] = "write a data file";

// Returns the device whose page-locked memory receives the copies of all devices.
std::shared_ptr<DeviceMemory> FirstDevice(const StateDict& state) {
  for (const ShardedTensor& tensor : state.tensors) {
    for (const Shard& shard : tensor.shards) {
      if (shard.device != nullptr) return shard.device;
    }
  }
  return nullptr;
}

PieceLayout LayOut(const DataWriterOptions& options, uint64_t limit_bytes) {
  const uint64_t wanted_bytes = options.traits.preferred_write_bytes;
  return LayOutPieces(options.save.checksum_chunk_bytes, options.save.io_threads, limit_bytes,
                      wanted_bytes > 0 ? wanted_bytes : kPieceBytes);
}

}  // namespace

StagingLayout LayOutStaging(const RankPlan& plan, const DataWriterOptions& options,
                            uint64_t limit_bytes) {
  const uint64_t piece_bytes = LayOut(options, limit_bytes).piece_bytes;
  uint64_t largest = 0, pieces = 0;
  for (const FilePlan& file : plan.files()) {
    largest = std::max(largest, std::min(file.size_bytes(), piece_bytes));
    pieces += CeilDivide(file.size_bytes(), piece_bytes);
  }
  return {piece_bytes, RoundUp(largest, kIoAlignmentBytes), pieces};
}

StagingRequest NeededStaging(const RankPlan& plan, const DataWriterOptions& options,
                             std::shared_ptr<DeviceMemory> device) {
  const StagingLayout layout = LayOutStaging(plan, options, options.save.staging_bytes);
  const uint64_t threads = LayOut(options, options.save.staging_bytes).workers;
  // Where there is room, a device copies to one buffer of a thread while the other one is written.
  const uint64_t most =
      device == nullptr
          ? threads
          : std::clamp(options.save.staging_bytes / std::max<uint64_t>(layout.stride_bytes, 1),
                       threads, 2 * threads);
  const uint64_t buffers = options.copy_threads > 0 ? layout.pieces : std::min(layout.pieces, most);
  const uint64_t chunk_bytes =
      RoundUp<uint64_t>(options.save.checksum_chunk_bytes, kIoAlignmentBytes);
  return {.wanted_bytes = buffers * layout.stride_bytes,
          .limit_bytes = options.save.staging_bytes,
          .least_bytes = std::min(chunk_bytes, layout.stride_bytes),
          .device = std::move(device)};
}

DataWriter::DataWriter(Storage& storage, std::string_view directory,
                       const DataWriterOptions& options, StagingPool& pool)
    : place_{storage, std::string(directory), options.save.checksum_chunk_bytes,
             options.traits.in_place_alignment_bytes},
      options_(options),
      pool_(pool) {}

absl::StatusOr<std::shared_ptr<DataWriter>> DataWriter::Make(
    Storage& storage, std::string_view directory, const StateDict& state, const RankState& local,
    const RankPlan& plan, const DataWriterOptions& options, StagingPool& pool) {
  std::shared_ptr<DataWriter> writer(new DataWriter(storage, directory, options, pool));
  const MutexLock lock(&writer->mutex_);
  TESSERA_RETURN_IF_ERROR(In("staging", writer->CutIntoPieces(state, local, plan)));
  return writer;
}

absl::Status DataWriter::CutIntoPieces(const StateDict& state, const RankState& local,
                                       const RankPlan& plan) {
  const StagingRequest needed = NeededStaging(plan, options_, FirstDevice(state));
  TESSERA_RETURN_IF_ERROR(pool_.Reserve(needed));
  // Only with less memory are pieces made smaller, since they do not fit the buffers of larger
  // ones.
  const uint64_t memory_bytes = pool_.memory().size();
  const StagingLayout layout = LayOutStaging(
      plan, options_,
      memory_bytes < needed.wanted_bytes ? memory_bytes : options_.save.staging_bytes);
  std::vector<MemoryIndex::Range> memory;
  std::vector<bool> in_place;
  uint64_t in_place_bytes = 0, total_bytes = 0;
  for (const FilePlan& file_plan : plan.files()) {
    TESSERA_ASSIGN_OR_RETURN(FileContents contents,
                             FileContents::Make(state, local, file_plan, slots_));
    FileWriter& file = files_.emplace_back(place_, std::move(contents));
    const size_t file_number = pieces_left_.size();
    const uint64_t size = file_plan.size_bytes();
    total_bytes += size;
    pieces_left_.push_back(0);
    for (uint64_t begin = 0; begin < size; begin += layout.piece_bytes) {
      const uint64_t end = std::min(size, begin + layout.piece_bytes);
      file.contents().ForEachMemory(begin, end, [&](const std::byte* first, const std::byte* last) {
        memory.push_back({first, last, pieces_.size()});
      });
      in_place.push_back(file.IsInPlace(begin, end));
      (in_place.back() ? in_place_bytes : staged_bytes_) += layout.stride_bytes;
      pieces_.push_back({&file, file_number, begin, end});
      ++pieces_left_.back();
    }
  }
  if (options_.copy_threads > 0) OrderPieces(memory, in_place);
  ahead_bytes_ = std::min(in_place_bytes, options_.copy_ahead_bytes);
  progress_.emplace(options_.save.progress, total_bytes);
  memory_ = MemoryIndex(std::move(memory));
  released_ = pieces_.empty();
  if (pieces_.empty()) return absl::OkStatus();
  std::vector<bool> on_device;
  for (const Piece& piece : pieces_) {
    on_device.push_back(piece.file->contents().OnDevice(piece.begin, piece.end));
  }
  table_ = PieceTable(
      std::move(in_place), CutBuffers(layout.stride_bytes),
      {.io_threads = options_.save.io_threads, .copy_threads = options_.copy_threads}, on_device);
  return absl::OkStatus();
}

void DataWriter::OrderPieces(std::vector<MemoryIndex::Range>& memory, std::vector<bool>& in_place) {
  std::vector<size_t> place(pieces_.size());
  std::vector<Piece> pieces;
  std::vector<bool> ordered_in_place;
  for (const size_t piece : UpdateOrder(memory, pieces_.size())) {
    place[piece] = pieces.size();
    pieces.push_back(std::move(pieces_[piece]));
    ordered_in_place.push_back(in_place[piece]);
  }
  pieces_.swap(pieces);
  in_place.swap(ordered_in_place);
  for (MemoryIndex::Range& range : memory) range.piece = place[range.piece];
}

StagingBuffers DataWriter::CutBuffers(uint64_t stride_bytes) const {
  // Two per thread keep the disk busy, however much was prefaulted before.
  const uint64_t least = 2 * static_cast<uint64_t>(options_.save.io_threads);
  return {pool_.memory(), stride_bytes, std::max(pool_.present_bytes() / stride_bytes, least)};
}

void DataWriter::WaitUntilCopied(const std::byte* data, uint64_t size_bytes) {
  if (released_.load(std::memory_order_acquire) || size_bytes == 0) return;
  WaitForPieces([&] { return memory_.PiecesIn(data, size_bytes); });
}

void DataWriter::WaitUntilAllCopied() {
  if (released_.load(std::memory_order_acquire)) return;
  WaitForPieces([&] {
    std::vector<size_t> all(pieces_.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  });
}

// A thread that cannot help, as without memory, ends the save, and waits for its end.
void DataWriter::WaitForPieces(absl::FunctionRef<std::vector<size_t>()> pieces) {
  const absl::Status helped = CatchExceptions("copy the state", [&] {
    Help({.pieces = pieces()});
    return absl::OkStatus();
  });
  if (helped.ok()) return;
  const MutexLock lock(&mutex_);
  if (released_.load(std::memory_order_acquire)) return;  // no help is needed any more
  KeepFirstError(helped);
  while (!released_.load(std::memory_order_acquire)) changed_.Wait(&mutex_);
}

// Takes all of its memory before it arrives.
void DataWriter::Help(PieceTable::Waiter waiter) {
  const MutexLock lock(&mutex_);
  Digests& digests = TakeIdleDigests();
  table_.Arrive(waiter);
  changed_.NotifyAll();
  while (true) {
    const PieceTable::Task task = table_.TakeAsWaiter(waiter);
    if (task.what == Do::kReleased) break;
    if (task.what == Do::kWait) {
      changed_.Wait(&mutex_);
    } else {
      const double processor_start = ThreadProcessorSeconds();
      KeepFirstError(CopyOrChecksum(task, nullptr, digests));
      processor_seconds_ += ThreadProcessorSeconds() - processor_start;
    }
  }
  table_.Leave();
  idle_digests_.push_back(&digests);
}

// Returns digests that no waiter uses. There is room to give them back.
DataWriter::Digests& DataWriter::TakeIdleDigests() {
  if (idle_digests_.empty()) {
    idle_digests_.reserve(waiter_digests_.size() + 1);
    idle_digests_.push_back(&waiter_digests_.emplace_back(slots_.size()));
  }
  Digests& digests = *idle_digests_.back();
  idle_digests_.pop_back();
  return digests;
}

absl::StatusOr<WriteReport> DataWriter::Run() {
  const absl::Status written = CatchExceptions(kWritingFiles, [&] {
    WritePieces();
    return absl::OkStatus();
  });
  const MutexLock lock(&mutex_);
  KeepFirstError(written);
  while (table_.reads()) changed_.Wait(&mutex_);   // waiters copy, too
  for (Piece& piece : pieces_) piece.copies = {};  // which a save that failed has not finished
  released_.store(true, std::memory_order_release);
  changed_.NotifyAll();
  if (!pieces_.empty()) KeepForTheNextSave();
  TESSERA_RETURN_IF_ERROR(error_);
  const absl::Duration start = SteadyNow();
  if (!files_.empty()) {
    TESSERA_RETURN_IF_ERROR(In("syncing", place_.storage.SyncDirectory(place_.directory)));
  }
  for (const FileWriter& file : files_) {
    TESSERA_RETURN_IF_ERROR(In("syncing", file.CheckThere()));
  }
  spent_.syncing += (SteadyNow() - start) * static_cast<double>(workers_.size());
  return Report();
}

void DataWriter::WritePieces() {
  workers_.resize(std::min<size_t>(options_.save.io_threads, pieces_.size()));
  for (Worker& worker : workers_) worker.digests.resize(slots_.size());
  std::vector<std::thread> others =
      StartThreads(static_cast<int>(workers_.size()) - 1, [this, trace = BoundTrace()](int other) {
        const absl::Status status = CatchExceptions(kWritingFiles, [&] {
          const TraceThread traced(trace, "save writers");
          DoTasks(workers_[other + 1]);
          return absl::OkStatus();
        });
        const MutexLock lock(&mutex_);
        KeepFirstError(status);
      });
  if (!workers_.empty()) DoTasks(workers_[0]);
  for (std::thread& thread : others) thread.join();
}

// An update that was ahead of the disk in this save will be so in the next one: the memory for its
// copies is made ready.
void DataWriter::KeepForTheNextSave() {
  const StagingBuffers& buffers = table_.buffers();
  const uint64_t stride_bytes = buffers.stride_bytes();
  pool_.SetPresent(buffers.touched_bytes());
  if (table_.updated_first() > 0) pool_.Want(staged_bytes_ + table_.updated_first() * stride_bytes);
}

void DataWriter::KeepFirstError(const absl::Status& status) {
  error_.Update(status);
  if (!status.ok()) table_.Fail();
  changed_.NotifyAll();
}

void DataWriter::EndTask(const PieceTable::Task& task, PieceTable::Worker* worker,
                         const PieceTable::Result& result, Clock::time_point now) {
  table_.End(task, worker, result, now);
  if (table_.all_released() && !copied_at_.has_value()) {
    copied_at_ = SteadyNow();
    released_.store(true, std::memory_order_release);
  }
  changed_.NotifyAll();
}

// Finishes writes in flight after an error, too: the disk still reads memory that others need.
void DataWriter::DoTasks(Worker& worker) {
  const double processor_start = ThreadProcessorSeconds();
  const MutexLock lock(&mutex_);
  while (!table_.over() || worker.table.writing.has_value()) {
    absl::Status status;
    try {
      if (error_.ok() && options_.save.is_cancelled && options_.save.is_cancelled()) {
        KeepFirstError(absl::CancelledError("the caller has ended the save"));
      }
      const PieceTable::Task task = table_.Take(worker.table, Clock::now());
      if (task.what == Do::kWait) {
        changed_.Wait(&mutex_);
        continue;
      }
      if (task.what == Do::kRest) {
        changed_.WaitUntil(&mutex_, table_.rests_until());
        continue;
      }
      status = DoTask(task, worker);
    } catch (const std::exception& error) {
      status = ExceptionStatus(error, kWritingFiles);
    }
    KeepFirstError(status);
  }
  processor_seconds_ += ThreadProcessorSeconds() - processor_start;
}

absl::Status DataWriter::DoTask(const PieceTable::Task& task, Worker& worker) {
  switch (task.what) {
    case Do::kWriteCopy:
    case Do::kWriteInPlace:
      return In("writing", StartWrite(task, worker));
    case Do::kFinishWrite:
      return FinishWrite(task, worker);
    default:
      return CopyOrChecksum(task, &worker.table, worker.digests);
  }
}

template <typename Body>
absl::Status DataWriter::Unlocked(const char* action, const Body& body) {
  struct Relock {
    Mutex& mutex;
    ~Relock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.lock(); }
  };
  mutex_.unlock();
  const Relock relock{mutex_};
  return CatchExceptions(action, body);
}

absl::Status DataWriter::ReadPiece(const PieceTable::Task& task, bool on_device, Digests& digests) {
  Piece& piece = pieces_[task.piece];
  if (task.what == Do::kCopy && on_device) {
    return In("staging",
              piece.file->contents().StartCopy(piece.begin, piece.end, task.buffer, piece.copies));
  }
  if (task.what == Do::kCopy) {
    piece.file->Copy(piece.begin, piece.end, task.buffer, digests);
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(In("staging", piece.copies.Wait()));
  piece.file->Checksum(piece.begin, piece.end, task.buffer, digests);
  return absl::OkStatus();
}

// Ends the task in any case.
absl::Status DataWriter::CopyOrChecksum(const PieceTable::Task& task, PieceTable::Worker* worker,
                                        Digests& digests) {
  const bool on_device = table_.on_device(task.piece);
  PieceTable::Result result;
  const char* const action = task.what == Do::kCopy ? "copy" : "compute checksums";
  const absl::Status read = Unlocked(action, [&] {
    const absl::Duration start = SteadyNow();
    const double processor_start = ThreadProcessorSeconds();
    const absl::Status status = ReadPiece(task, on_device, digests);
    result.processor_seconds = ThreadProcessorSeconds() - processor_start;
    result.seconds = SecondsSince(start);
    return status;
  });
  result.ok = read.ok();
  if (worker != nullptr) spent_.copying += absl::Seconds(result.seconds);
  EndTask(task, worker, result, Clock::now());
  return read;
}

absl::Status DataWriter::StartWrite(const PieceTable::Task& task, Worker& worker) {
  const Piece& piece = pieces_[task.piece];
  if (task.what == Do::kWriteInPlace) changed_.NotifyAll();  // another thread may compute checksums
  const absl::Duration start = SteadyNow();
  const absl::Status started = Unlocked(kWritingFiles, [&] {
    return task.what == Do::kWriteCopy
               ? piece.file->StartWriteOfCopy(piece.begin, piece.end, task.buffer, worker.writes)
               : piece.file->StartWriteInPlace(piece.begin, piece.end, worker.between,
                                               worker.writes);
  });
  spent_.writing += SteadyNow() - start;
  return started;
}

absl::Status DataWriter::FinishWrite(const PieceTable::Task& task, Worker& worker) {
  const Piece& piece = pieces_[task.piece];
  const absl::Duration start = SteadyNow();
  const absl::Status written = Unlocked(kWritingFiles, [&] {
    const FileWriter::Writes writes = std::exchange(worker.writes, {});
    TraceSpan span("save", task.buffer != nullptr ? "write" : "write in place");
    span.Add("bytes", static_cast<int64_t>(piece.end - piece.begin));
    absl::Status status;
    for (const std::unique_ptr<PendingIo>& part : writes) status.Update(part->Wait());
    if (status.ok()) progress_->Add(piece.end - piece.begin);
    return status;
  });
  const absl::Duration end = SteadyNow();
  spent_.writing += end - start;
  EndTask(task, &worker.table, {.ok = written.ok()}, Clock::now());
  TESSERA_RETURN_IF_ERROR(In("writing", written));
  if (--pieces_left_[piece.file_number] == 0 && error_.ok()) {
    const absl::Status synced = Unlocked("sync a data file", [&] { return piece.file->Sync(); });
    spent_.syncing += SteadyNow() - end;
    TESSERA_RETURN_IF_ERROR(In("syncing", synced));
  }
  table_.Settle();
  return absl::OkStatus();
}

WriteReport DataWriter::Report() const {
  WriteReport report;
  for (const FileWriter& file : files_) file.AddTo(report);
  for (const auto& [tensor, slot] : slots_) {
    LogicalDigest digest;
    for (const Worker& worker : workers_) digest += worker.digests[slot];
    for (const Digests& digests : waiter_digests_) digest += digests[slot];
    TensorReport& tensor_report = *report.add_tensors();
    tensor_report.set_manifest_tensor(tensor);
    *tensor_report.mutable_digest() = ToProto(digest);
  }
  const double threads = std::max(1.0, static_cast<double>(workers_.size()));
  report.set_copying(absl::ToDoubleSeconds(spent_.copying / threads));
  report.set_writing(absl::ToDoubleSeconds(spent_.writing / threads));
  report.set_syncing(absl::ToDoubleSeconds(spent_.syncing / threads));
  return report;
}

}  // namespace tessera::ckpt
