#include "checkpoint/save/data_writer.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "base/trace.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/save/phase.h"

namespace tessera::ckpt {
namespace {

// The unit of copying, digesting and checksumming: well within the second-level cache. A multiple
// of every element size, as are all chunk sizes, so that no element crosses a boundary.
constexpr uint64_t kBlockBytes = 128 << 10;

// A piece with more bytes than these that are not in place is copied as a whole.
constexpr uint64_t kMaxBetweenBytes = 1 << 20;

constexpr char kWritingFiles[] = "write a data file";

constexpr size_t kWritesPerThread = 1;  // in flight

// So many pieces are copied or checked by a thread whose write is in flight before it waits for
// that, while an update waits; otherwise one.
constexpr int kReadsPerWrite = 4;

// Ratio of idle time to the time of checks while the program wants the processors.
constexpr int kRestRatio = 20;

bool IsInPlace(const std::vector<FileContents::Segment>& segments) {
  uint64_t between = 0;
  bool any = false;
  for (const FileContents::Segment& segment : segments) {
    if (segment.in_place != nullptr) any = true;
    if (segment.in_place == nullptr) between += segment.end - segment.begin;
  }
  return any && between <= kMaxBetweenBytes;
}

}  // namespace

absl::StatusOr<std::shared_ptr<DataWriter>> DataWriter::Make(
    Storage& storage, std::string_view directory, const StateDict& state, const RankState& local,
    const RankPlan& plan, const DataWriterOptions& options, StagingPool& pool) {
  std::shared_ptr<DataWriter> writer(new DataWriter(storage, directory, options, pool));
  const MutexLock lock(&writer->mutex_);
  TESSERA_RETURN_IF_ERROR(InPhase(kStaging, writer->CutIntoPieces(state, local, plan)));
  return writer;
}

absl::Status DataWriter::CutIntoPieces(const StateDict& state, const RankState& local,
                                       const RankPlan& plan) {
  const StagingRequest needed = NeededStaging(plan, options_);
  TESSERA_RETURN_IF_ERROR(pool_.Reserve(needed));
  // Only with less memory are pieces made smaller, since they do not fit the buffers of larger
  // ones.
  const uint64_t memory_bytes = pool_.memory().size();
  const StagingLayout layout = LayOutStaging(
      plan, options_, memory_bytes < needed.wanted_bytes ? memory_bytes : options_.staging_bytes);
  std::vector<MemoryIndex::Range> memory;
  uint64_t in_place_bytes = 0;
  for (const FilePlan& file_plan : plan.files()) {
    File& file = files_.emplace_back();
    TESSERA_ASSIGN_OR_RETURN(file.contents, FileContents::Make(state, local, file_plan, slots_));
    const uint64_t size = file_plan.size_bytes();
    file.crcs.resize(CeilDivide(size, options_.chunk_bytes));
    for (uint64_t begin = 0; begin < size; begin += layout.piece_bytes) {
      const uint64_t end = std::min(size, begin + layout.piece_bytes);
      file.contents.ForEachMemory(begin, end, [&](const std::byte* first, const std::byte* last) {
        memory.push_back({first, last, piece_count_});
      });
      const bool in_place =
          IsInPlace(file.contents.Segments(begin, end, options_.in_place_alignment));
      (in_place ? in_place_bytes : staged_bytes_) += layout.stride_bytes;
      pending_in_place_ += in_place ? 1 : 0;
      pieces_.push_back({&file, begin, end, in_place});
      ++piece_count_;
      ++file.pieces_left;
    }
  }
  if (options_.copy_ahead_threads > 0) OrderPieces(memory);
  ahead_bytes_ = std::min(in_place_bytes, options_.ahead_bytes);
  uint64_t total_bytes = 0;
  for (const File& file : files_) total_bytes += file.contents.size_bytes();
  progress_.emplace(options_.progress, total_bytes);
  memory_ = MemoryIndex(std::move(memory));
  to_stage_.set_count(piece_count_);
  in_place_.set_count(piece_count_);
  ahead_.set_count(piece_count_);
  pieces_to_copy_ = pieces_left_ = unchecked_ = piece_count_;
  released_ = piece_count_ == 0;
  if (piece_count_ > 0) CutBuffers(layout.stride_bytes);
  return absl::OkStatus();
}

void DataWriter::OrderPieces(std::vector<MemoryIndex::Range>& memory) {
  const std::vector<size_t> order = UpdateOrder(memory, piece_count_);
  std::vector<size_t> place(piece_count_);
  std::vector<Piece> pieces;
  pieces.reserve(piece_count_);
  for (const size_t piece : order) {
    place[piece] = pieces.size();
    pieces.push_back(pieces_[piece]);
  }
  pieces_.swap(pieces);
  for (MemoryIndex::Range& range : memory) range.piece = place[range.piece];
}

void DataWriter::CutBuffers(uint64_t stride_bytes) {
  // Two per thread keep the disk busy, however much was prefaulted before.
  const uint64_t least = 2 * static_cast<uint64_t>(options_.io_threads);
  touch_seconds_ = pool_.touch_seconds_per_byte() * static_cast<double>(stride_bytes);
  buffers_ = StagingBuffers(pool_.memory(), stride_bytes,
                            std::max(pool_.present_bytes() / stride_bytes, least));
}

void DataWriter::WaitUntilCopied(const std::byte* data, uint64_t size_bytes) {
  if (released_.load(std::memory_order_acquire) || size_bytes == 0) return;
  WaitForPieces(memory_.PiecesIn(data, size_bytes));
}

void DataWriter::WaitUntilAllCopied() {
  if (released_.load(std::memory_order_acquire)) return;
  std::vector<size_t> all(piece_count_);
  std::iota(all.begin(), all.end(), 0);
  WaitForPieces(all);
}

// A finished save reads nothing more, but what is in progress has to complete.
bool DataWriter::IsReleased(size_t piece) const {
  return pieces_[piece].state == PieceState::kReleased || (Over() && pieces_[piece].readers == 0);
}

void DataWriter::WaitForPieces(const std::vector<size_t>& pieces) {
  const MutexLock lock(&mutex_);
  for (const size_t piece : pieces) {
    if (IsPending(piece)) to_stage_.Want(piece);
    pieces_[piece].wanted = true;
    if (piece + 1 < piece_count_) ahead_.Want(piece + 1);
  }
  // As a rule the caller comes to the neighbours next.
  for (const size_t next : {1, 0}) {
    for (const size_t piece : pieces) {
      if (piece + next < piece_count_) to_check_.push_front(piece + next);
    }
  }
  if (!had_waiters_) came_first_to_ = pending_in_place_;
  ++waiters_;
  had_waiters_ = true;
  changed_.NotifyAll();
  size_t released = 0, started = 0;  // so many of the pieces, from the first on
  while (true) {
    while (released < pieces.size() && IsReleased(pieces[released])) ++released;
    if (released == pieces.size()) break;
    while (started < pieces.size() && !IsPending(pieces[started])) ++started;
    if (started < pieces.size() && buffers_.has_any() && !Over()) {
      CopyAsWaiter(pieces[started]);
    } else if (const std::optional<size_t> wanted = NextToCheck(/*wanted=*/true)) {
      CheckAsWaiter(*wanted);
    } else if (const std::optional<size_t> ahead = NextAhead()) {
      CopyAsWaiter(*ahead);
    } else if (const std::optional<size_t> check = NextToCheck(/*wanted=*/false)) {
      CheckAsWaiter(*check);
    } else {
      changed_.Wait(&mutex_);
    }
  }
  --waiters_;
}

std::optional<std::chrono::steady_clock::time_point> DataWriter::copied_at() const {
  const MutexLock lock(&mutex_);
  return copied_at_;
}

absl::StatusOr<WriteReport> DataWriter::Run() {
  const size_t workers = std::min<size_t>(options_.io_threads, piece_count_);
  {
    const MutexLock lock(&mutex_);
    started_at_ = std::chrono::steady_clock::now();
  }
  workers_.resize(workers);
  for (Worker& worker : workers_) worker.digests.resize(slots_.size());
  std::vector<std::thread> others =
      StartThreads(static_cast<int>(workers) - 1, [this, trace = BoundTrace()](int other) {
        const absl::Status status = CatchNoMemory(kWritingFiles, [&] {
          const TraceThread traced(trace, "save writers");
          Work(workers_[other + 1]);
          return absl::OkStatus();
        });
        const MutexLock lock(&mutex_);
        Note(status);
      });
  if (workers > 0) Work(workers_[0]);
  for (std::thread& thread : others) thread.join();

  const MutexLock lock(&mutex_);
  while (copying_ > 0) changed_.Wait(&mutex_);  // waiters copy, too
  released_.store(true, std::memory_order_release);
  changed_.NotifyAll();
  if (piece_count_ > 0) KeepForTheNextSave();
  TESSERA_RETURN_IF_ERROR(error_);
  if (!files_.empty()) {
    TESSERA_RETURN_IF_ERROR(InPhase(kSyncing, storage_.SyncDirectory(directory_)));
  }
  for (const File& file : files_) {
    TESSERA_RETURN_IF_ERROR(
        InPhase(kSyncing, CheckDataFile(storage_, JoinPath(directory_, file.contents.path()),
                                        file.contents.size_bytes())));
  }
  return Report();
}

// What an update came to before the disk did, it will come to in the next save, too.
void DataWriter::KeepForTheNextSave() {
  const uint64_t stride_bytes = buffers_.stride_bytes();
  pool_.SetPresent(buffers_.touched_bytes());
  pool_.set_touch_seconds_per_byte(touch_seconds_ / static_cast<double>(stride_bytes));
  if (came_first_to_ > 0) pool_.Want(staged_bytes_ + came_first_to_ * stride_bytes);
}

CopyLoad DataWriter::Load() const {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> elapsed = now - started_at_;
  const size_t written = std::max<size_t>(1, piece_count_ - pieces_left_);
  return {.waiters = waiters_,
          .copying = copying_,
          .writing = writing_,
          .has_copied = !copied_.empty(),
          .had_waiters = had_waiters_,
          .rests = now < rests_until_,
          .has_present = buffers_.has_present(),
          .has_untouched = buffers_.has_untouched(),
          .touching = touching_,
          .touch_seconds = touch_seconds_,
          .disk_seconds = elapsed.count() / static_cast<double>(written)};
}

// Copies while permitted, otherwise writes: what is waited for from where it is, as it need not be
// copied then, before what was copied. What is written from where it is is checked meanwhile, and
// what an update will come to is copied: few pieces for each write, as a storage may write only
// while a thread waits for it.
void DataWriter::Work(Worker& worker) {
  const double processor_start = ThreadProcessorSeconds();
  const MutexLock lock(&mutex_);
  while (!Over()) {
    bool has_waited = false;
    absl::Status status;
    try {
      status = Act(worker, has_waited);
    } catch (const std::bad_alloc& error) {
      status = NoMemoryStatus(error, kWritingFiles);
    }
    if (!has_waited) Note(status);
  }
  // After an error: the disk still reads memory that others wait for.
  while (!worker.writes.empty()) FinishFirst(worker).IgnoreError();
  processor_seconds_ += ThreadProcessorSeconds() - processor_start;
}

// One thing at a time. No exception leaves what is done without the mutex.
absl::Status DataWriter::Act(Worker& worker, bool& has_waited) {
  const CopyLoad load = Load();
  const bool must_finish = MustFinish(worker);
  const bool may_write = !must_finish && worker.writes.size() < kWritesPerThread;
  const std::optional<size_t> copy =
      may_write && policy_.MayCopy(load) ? NextToCopy() : std::nullopt;
  const std::optional<size_t> in_place = may_write && !copy ? NextInPlace(load) : std::nullopt;
  const bool may_read = !must_finish && (worker.writes.empty() ||
                                         worker.has_read < (waiters_ > 0 ? kReadsPerWrite : 1));
  if (copy) {
    CopyPiece(*copy, worker.digests);
  } else if (in_place && (waiters_ > 0 || copied_.empty() || CanCopyTheRest(load))) {
    return StartInPlace(*in_place, worker);
  } else if (may_write && !copied_.empty()) {
    Piece& piece = pieces_[copied_.front()];
    copied_.pop_front();
    return StartStaged(piece, worker);
  } else if (const std::optional<size_t> ahead = may_read ? NextAhead() : std::nullopt) {
    ++worker.has_read;
    CopyPiece(*ahead, worker.digests);
  } else if (const std::optional<size_t> check = may_read && policy_.MayCheck(load)
                                                     ? NextToCheck(/*wanted=*/false)
                                                     : std::nullopt) {
    ++worker.has_read;
    CheckAsWorker(*check, worker);
  } else if (!worker.writes.empty()) {
    return FinishFirst(worker);
  } else if (load.rests) {
    has_waited = true;
    changed_.WaitUntil(&mutex_, rests_until_);
  } else {
    has_waited = true;
    changed_.Wait(&mutex_);
  }
  return absl::OkStatus();
}

void DataWriter::Note(const absl::Status& status) {
  error_.Update(status);
  changed_.NotifyAll();
}

bool DataWriter::MustFinish(const Worker& worker) const {
  return std::ranges::any_of(worker.writes, [](const Write& write) {
    return write.piece->wanted && write.piece->state == PieceState::kBusy;
  });
}

std::optional<size_t> DataWriter::NextToCopy() {
  const Piece* const pieces = pieces_.data();
  const auto is_pending = [&](size_t i) { return pieces[i].state == PieceState::kPending; };
  const std::optional<size_t> wanted = to_stage_.Wanted(is_pending);
  if (wanted) return wanted;
  return to_stage_.Next([&](size_t i) { return is_pending(i) && !pieces[i].in_place; });
}

bool DataWriter::CanCopyTheRest(const CopyLoad& load) const {
  const size_t buffers =
      buffers_.present() + (CopyPolicy::TouchingPays(load) ? buffers_.untouched() : 0);
  return load.had_waiters && buffers >= pending_in_place_;
}

// A piece that is waited for is left to those who copy it while they have memory. Where all can be
// copied, an update that has begun and the disk work towards each other; otherwise the disk would
// write what the update waits for next.
std::optional<size_t> DataWriter::NextInPlace(const CopyLoad& load) {
  const Piece* const pieces = pieces_.data();
  const auto is_pending = [&](size_t i) {
    return pieces[i].state == PieceState::kPending && pieces[i].in_place;
  };
  if (!load.has_present && !load.has_untouched) {
    const std::optional<size_t> wanted =
        to_stage_.Wanted([&](size_t i) { return pieces[i].state == PieceState::kPending; });
    if (wanted && is_pending(*wanted)) return wanted;
  }
  const auto is_left = [&](size_t i) { return is_pending(i) && !pieces[i].wanted; };
  return CanCopyTheRest(load) ? in_place_.Last(is_left) : in_place_.Next(is_left);
}

std::optional<size_t> DataWriter::NextAhead() {
  if (!CopyPolicy::MayCopyAhead(Load()) || Over()) return std::nullopt;
  const Piece* const pieces = pieces_.data();
  const auto is_pending = [&](size_t i) {
    return pieces[i].state == PieceState::kPending && pieces[i].in_place;
  };
  const std::optional<size_t> soon = ahead_.Wanted(is_pending);
  return soon ? soon : ahead_.Next(is_pending);
}

std::optional<size_t> DataWriter::NextToCheck(bool wanted) {
  while (!to_check_.empty() && !NeedsCheck(pieces_[to_check_.front()])) to_check_.pop_front();
  if (to_check_.empty() || Over() || (wanted && !pieces_[to_check_.front()].wanted)) {
    return std::nullopt;
  }
  return to_check_.front();
}

// Preconditions: the piece is pending; there is a buffer. The checks take the program's processors
// at some time: least while it waits, and while the bytes are in the cache.
void DataWriter::CopyPiece(size_t index, Digests& digests) {
  Piece& piece = pieces_[index];
  piece.state = PieceState::kBusy;
  piece.staged = true;
  const bool touches = !buffers_.has_present();
  touching_ += touches ? 1 : 0;
  piece.buffer = buffers_.Take();
  pending_in_place_ -= piece.in_place ? 1 : 0;
  ++copying_;
  ++piece.readers;
  mutex_.unlock();
  const double processor_start = ThreadProcessorSeconds();
  const absl::Status copied = CatchNoMemory("copy", [&] {
    CopyBytes(piece, digests);
    return absl::OkStatus();
  });
  const double used = ThreadProcessorSeconds() - processor_start;
  mutex_.lock();
  Note(copied);
  if (touches) {
    --touching_;
    touch_seconds_ = used;
  }
  SetChecked(piece);
  --copying_;
  --piece.readers;
  TryToRelease(piece);
  copied_.push_back(index);
}

// Precondition: NeedsCheck().
void DataWriter::CheckInPlace(size_t index, Digests& digests) {
  Piece& piece = pieces_[index];
  piece.check = CheckState::kChecking;
  ++copying_;
  ++piece.readers;
  mutex_.unlock();
  const absl::Status checked = CatchNoMemory("check", [&] {
    CheckBytes(piece, digests);
    return absl::OkStatus();
  });
  mutex_.lock();
  Note(checked);
  --copying_;
  --piece.readers;
  SetChecked(piece);
  TryToRelease(piece);
}

// Checks ahead of time only where the program leaves the processors to it: otherwise this thread
// takes longer than it computes, and rests.
void DataWriter::CheckAsWorker(size_t index, Worker& worker) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const double processor_start = ThreadProcessorSeconds();
  CheckInPlace(index, worker.digests);
  const std::chrono::duration<double> used(ThreadProcessorSeconds() - processor_start);
  worker.check_seconds += used.count();
  const Clock::time_point end = Clock::now();
  if (end - start <= 1.5 * used || !policy_.YieldsProcessors(Load())) return;
  rests_until_ = end + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(kRestRatio * worker.check_seconds));
  worker.check_seconds = 0;
}

void DataWriter::ReadAsWaiter(void (DataWriter::*read)(size_t, Digests&), size_t index) {
  if (idle_digests_.empty()) {
    idle_digests_.push_back(&waiter_digests_.emplace_back(Digests(slots_.size())));
  }
  Digests* const digests = idle_digests_.back();
  idle_digests_.pop_back();
  const double processor_start = ThreadProcessorSeconds();
  (this->*read)(index, *digests);
  processor_seconds_ += ThreadProcessorSeconds() - processor_start;
  idle_digests_.push_back(digests);
}

void DataWriter::SetChecked(Piece& piece) {
  piece.check = CheckState::kChecked;
  --unchecked_;
  changed_.NotifyAll();
}

void DataWriter::TryToRelease(Piece& piece) {
  const bool done = piece.staged || (piece.written && piece.check == CheckState::kChecked);
  if (!done) return;
  piece.state = PieceState::kReleased;
  if (--pieces_to_copy_ == 0) {
    copied_at_ = std::chrono::steady_clock::now();
    released_.store(true, std::memory_order_release);
  }
  changed_.NotifyAll();
}

void DataWriter::CopyBytes(const Piece& piece, Digests& digests) const {
  TraceSpan span("save", "copy and check");
  span.Add("bytes", static_cast<int64_t>(piece.end - piece.begin));
  for (uint64_t begin = piece.begin; begin < piece.end; begin += kBlockBytes) {
    const uint64_t end = std::min(piece.end, begin + kBlockBytes);
    std::byte* const out = piece.buffer + (begin - piece.begin);
    uint64_t at = begin;
    piece.file->contents.CopyAndDigest(begin, end, out, digests,
                                       [&](std::span<const std::byte> bytes) {
                                         ExtendChecksums(*piece.file, at, bytes);
                                         at += bytes.size();
                                       });
  }
}

void DataWriter::CheckBytes(const Piece& piece, Digests& digests) const {
  const TraceSpan span("save", "check");
  File& file = *piece.file;
  for (uint64_t begin = piece.begin, end; begin < piece.end; begin = end) {
    uint32_t& crc = file.crcs[begin / options_.chunk_bytes];
    end = std::min(piece.end, (begin / options_.chunk_bytes + 1) * options_.chunk_bytes);
    crc = file.contents.Check(begin, end, digests, crc);
  }
}

absl::Status DataWriter::StartStaged(Piece& piece, Worker& worker) {
  ++writing_;
  Write& write = worker.writes.emplace_back(Write{&piece, {}});
  mutex_.unlock();
  const absl::Status started =
      InPhase(kWriting, CatchNoMemory(kWritingFiles, [&] { return WriteStaged(write); }));
  mutex_.lock();
  return started;
}

absl::Status DataWriter::StartInPlace(size_t index, Worker& worker) {
  Piece& piece = pieces_[index];
  piece.state = PieceState::kBusy;
  --pending_in_place_;
  ++writing_;
  ++piece.readers;
  Write& write = worker.writes.emplace_back(Write{&piece, {}});
  to_check_.push_back(index);
  changed_.NotifyAll();  // another thread may check
  mutex_.unlock();
  const absl::Status started = InPhase(
      kWriting, CatchNoMemory(kWritingFiles, [&] { return WriteSegments(write, worker.between); }));
  mutex_.lock();
  return started;
}

absl::Status DataWriter::FinishFirst(Worker& worker) {
  Write write = std::move(worker.writes.front());
  worker.writes.pop_front();
  worker.has_read = 0;
  Piece& piece = *write.piece;
  File& file = *piece.file;
  mutex_.unlock();
  const absl::Status written = CatchNoMemory(kWritingFiles, [&] {
    absl::Status status;
    TraceSpan span("save", piece.staged ? "write" : "write in place");
    span.Add("bytes", static_cast<int64_t>(piece.end - piece.begin));
    for (const std::unique_ptr<PendingIo>& part : write.parts) status.Update(part->Wait());
    return status;
  });
  if (written.ok()) progress_->Add(piece.end - piece.begin);
  mutex_.lock();
  --writing_;
  piece.written = written.ok();
  if (piece.staged) {
    buffers_.Return(std::exchange(piece.buffer, nullptr));
  } else {
    --piece.readers;
    TryToRelease(piece);
  }
  changed_.NotifyAll();
  TESSERA_RETURN_IF_ERROR(InPhase(kWriting, written));
  if (--file.pieces_left == 0 && error_.ok()) {
    mutex_.unlock();
    const absl::Status synced = CatchNoMemory("sync a data file", [&] { return SyncFile(file); });
    mutex_.lock();
    TESSERA_RETURN_IF_ERROR(InPhase(kSyncing, synced));
  }
  --pieces_left_;
  return absl::OkStatus();
}

absl::Status DataWriter::CreateFile(File& file) {
  std::call_once(file.created, [&] {
    auto created =
        storage_.Create(JoinPath(directory_, file.contents.path()), file.contents.size_bytes());
    file.create_status = created.status();
    if (created.ok()) file.file = *std::move(created);
  });
  return file.create_status;
}

absl::Status DataWriter::WriteStaged(Write& write) {
  const Piece& piece = *write.piece;
  TESSERA_RETURN_IF_ERROR(CreateFile(*piece.file));
  const std::span crcs = std::span(piece.file->crcs).subspan(piece.begin / options_.chunk_bytes);
  write.parts.push_back(piece.file->file->StartWriteAt(
      piece.begin, {piece.buffer, piece.end - piece.begin}, {options_.chunk_bytes, crcs}));
  return absl::OkStatus();
}

// What is in place is written while the bytes between are put together.
absl::Status DataWriter::WriteSegments(Write& write, AlignedBuffer& between) {
  const Piece& piece = *write.piece;
  TESSERA_RETURN_IF_ERROR(CreateFile(*piece.file));
  const FileContents& contents = piece.file->contents;
  const std::vector<FileContents::Segment> segments =
      contents.Segments(piece.begin, piece.end, options_.in_place_alignment);
  for (const FileContents::Segment& segment : segments) {
    if (segment.in_place == nullptr) continue;
    write.parts.push_back(piece.file->file->StartWriteAt(
        segment.begin, {segment.in_place, segment.end - segment.begin}, {}));
  }
  for (const FileContents::Segment& segment : segments) {
    if (segment.in_place != nullptr) continue;
    if (between.size_bytes() == 0) {
      TESSERA_ASSIGN_OR_RETURN(between, AlignedBuffer::Allocate(kMaxBetweenBytes));
    }
    contents.Copy(segment.begin, segment.end, between.data());
    TESSERA_RETURN_IF_ERROR(
        piece.file->file->WriteAt(segment.begin, {between.data(), segment.end - segment.begin}));
  }
  return absl::OkStatus();
}

absl::Status DataWriter::SyncFile(const File& file) {
  const TraceSpan span("save", "sync");
  const absl::Status synced = file.file->Sync();
  return synced.ok() ? file.file->Close() : synced;
}

// Precondition: the bytes of one chunk arrive in order.
void DataWriter::ExtendChecksums(File& file, uint64_t offset,
                                 std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const uint64_t chunk = offset / options_.chunk_bytes;
    const uint64_t left = (chunk + 1) * options_.chunk_bytes - offset;
    const std::span<const std::byte> next = bytes.first(std::min<uint64_t>(left, bytes.size()));
    file.crcs[chunk] = ExtendCrc32c(file.crcs[chunk], next);
    offset += next.size();
    bytes = bytes.subspan(next.size());
  }
}

WriteReport DataWriter::Report() const {
  WriteReport report;
  for (const File& file : files_) {
    FileReport& file_report = *report.add_files();
    file_report.set_file_index(file.contents.index());
    file_report.mutable_chunk_crc32c()->Add(file.crcs.begin(), file.crcs.end());
    report.set_bytes(report.bytes() + file.contents.size_bytes());
  }
  for (const auto& [tensor, slot] : slots_) {
    LogicalDigest digest;
    for (const Worker& worker : workers_) digest += worker.digests[slot];
    for (const Digests& digests : waiter_digests_) digest += digests[slot];
    TensorReport& tensor_report = *report.add_tensors();
    tensor_report.set_manifest_tensor(tensor);
    tensor_report.mutable_digest()->set_lo(digest.lo);
    tensor_report.mutable_digest()->set_hi(digest.hi);
  }
  return report;
}

}  // namespace tessera::ckpt
