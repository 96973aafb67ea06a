#include "checkpoint/save/data_writer.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/thread_priority.h"
#include "base/threads.h"
#include "checkpoint/save/phase.h"
#include "checkpoint/storage/pieces.h"

namespace tessera::ckpt {
namespace {

// What is copied, digested and checksummed in one go: fits the second-level cache with room to
// spare. A multiple of every element size, as are all chunk sizes, so that no element straddles a
// border.
constexpr uint64_t kBlockBytes = 128 << 10;

// How pieces lie in staging memory.
struct StagingLayout {
  uint64_t piece_bytes;
  uint64_t stride_bytes;  // from buffer to buffer: aligned for direct I/O
  uint64_t pieces;        // of all files
};

StagingLayout LayOutStaging(const RankPlan& plan, const DataWriterOptions& options,
                            uint64_t limit_bytes) {
  const uint64_t piece_bytes =
      LayOutPieces(options.chunk_bytes, options.io_threads, limit_bytes).piece_bytes;
  uint64_t largest = 0, pieces = 0;
  for (const FilePlan& file : plan.files()) {
    largest = std::max(largest, std::min(file.size_bytes(), piece_bytes));
    pieces += CeilDivide(file.size_bytes(), piece_bytes);
  }
  return {piece_bytes, RoundUp(largest, kIoAlignmentBytes), pieces};
}

}  // namespace

absl::StatusOr<std::shared_ptr<DataWriter>> DataWriter::Make(
    Storage& storage, std::string_view directory, const StateDict& state, const LocalPlan& local,
    const RankPlan& plan, const DataWriterOptions& options, StagingPool& pool) {
  std::shared_ptr<DataWriter> writer(new DataWriter(storage, directory, options, pool));
  TESSERA_RETURN_IF_ERROR(InPhase(kStaging, writer->CutIntoPieces(state, local, plan)));
  writer->IndexMemory();
  return writer;
}

StagingRequest DataWriter::NeededStaging(const RankPlan& plan, const DataWriterOptions& options) {
  const StagingLayout layout = LayOutStaging(plan, options, options.staging_bytes);
  const uint64_t threads =
      LayOutPieces(options.chunk_bytes, options.io_threads, options.staging_bytes).workers;
  const uint64_t buffers =
      options.copy_ahead_threads > 0 ? layout.pieces : std::min(layout.pieces, threads);
  const uint64_t chunk_bytes = RoundUp<uint64_t>(options.chunk_bytes, kIoAlignmentBytes);
  return {.wanted_bytes = buffers * layout.stride_bytes,
          .limit_bytes = options.staging_bytes,
          .least_bytes = std::min(chunk_bytes, layout.stride_bytes)};
}

absl::Status DataWriter::CutIntoPieces(const StateDict& state, const LocalPlan& local,
                                       const RankPlan& plan) {
  const StagingRequest needed = NeededStaging(plan, options_);
  TESSERA_RETURN_IF_ERROR(pool_.Reserve(needed));
  // Smaller pieces where there is less memory only: they would not fit what larger ones do.
  const uint64_t memory_bytes = pool_.memory().size();
  const StagingLayout layout = LayOutStaging(
      plan, options_, memory_bytes < needed.wanted_bytes ? memory_bytes : options_.staging_bytes);
  for (const FilePlan& file_plan : plan.files()) {
    File& file = files_.emplace_back();
    TESSERA_ASSIGN_OR_RETURN(file.contents, OutputFile::Make(state, local, file_plan, slots_));
    const uint64_t size = file_plan.size_bytes();
    file.crcs.resize(CeilDivide(size, options_.chunk_bytes));
    for (uint64_t begin = 0; begin < size; begin += layout.piece_bytes) {
      pieces_.push_back({&file, begin, std::min(size, begin + layout.piece_bytes)});
      ++file.pieces_left;
    }
  }
  pieces_to_copy_ = pieces_left_ = pieces_.size();
  released_ = pieces_.empty();
  if (!pieces_.empty()) CutBuffers(layout.stride_bytes);
  return absl::OkStatus();
}

void DataWriter::CutBuffers(uint64_t stride_bytes) {
  stride_bytes_ = stride_bytes;
  const std::span<std::byte> memory = pool_.memory();
  const uint64_t buffers = memory.size() / stride_bytes;
  // Two for each thread keep the disk busy whatever was touched before.
  const uint64_t least = 2 * static_cast<uint64_t>(options_.io_threads);
  const uint64_t ready = std::min(buffers, std::max(pool_.present_bytes() / stride_bytes, least));
  for (uint64_t i = ready; i-- > 0;) free_.push_back(memory.data() + i * stride_bytes);
  untouched_ = memory.subspan(ready * stride_bytes, (buffers - ready) * stride_bytes);
}

void DataWriter::IndexMemory() {
  for (size_t p = 0; p < pieces_.size(); ++p) {
    pieces_[p].file->contents.ForEachMemory(pieces_[p].begin, pieces_[p].end,
                                            [&](const std::byte* first, const std::byte* last) {
                                              memory_.push_back({first, last, p});
                                            });
  }
  std::ranges::sort(memory_, {}, &MemoryRange::first);
  const std::byte* end = nullptr;
  for (const MemoryRange& range : memory_) {
    end = std::max(end, range.last);
    memory_ends_.push_back(end);
  }
}

std::vector<size_t> DataWriter::PiecesIn(const std::byte* data, uint64_t size_bytes) const {
  const std::byte* const end = data + size_bytes;
  std::vector<size_t> found;
  size_t i = std::ranges::upper_bound(memory_ends_, data) - memory_ends_.begin();
  for (; i < memory_.size() && memory_[i].first < end; ++i) {
    if (memory_[i].last > data) found.push_back(memory_[i].piece);
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void DataWriter::WaitUntilCopied(const std::byte* data, uint64_t size_bytes) {
  if (released_.load(std::memory_order_acquire) || size_bytes == 0) return;
  WaitForPieces(PiecesIn(data, size_bytes));
}

void DataWriter::WaitUntilAllCopied() {
  if (released_.load(std::memory_order_acquire)) return;
  std::vector<size_t> all(pieces_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  WaitForPieces(all);
}

void DataWriter::WaitForPieces(const std::vector<size_t>& pieces) {
  Lock lock(mutex_);
  const auto is_pending = [&](size_t p) { return pieces_[p].state == PieceState::kPending; };
  // A save that is over copies nothing more, but what it had begun has to end.
  const auto is_released = [&](size_t p) {
    return pieces_[p].state == PieceState::kCopied || (Over() && is_pending(p));
  };
  std::ranges::copy_if(pieces, std::back_inserter(wanted_), is_pending);
  ++waiters_;
  changed_.notify_all();
  auto unreleased = pieces.begin(), pending = pieces.begin();
  while (true) {
    unreleased = std::find_if_not(unreleased, pieces.end(), is_released);
    if (unreleased == pieces.end()) break;
    pending = std::find_if(pending, pieces.end(), is_pending);
    if (pending != pieces.end() && (!free_.empty() || !untouched_.empty()) && !Over()) {
      CopyPiece(lock, pieces_[*pending], nullptr);
    } else {
      changed_.wait(lock);
    }
  }
  --waiters_;
}

std::optional<std::chrono::steady_clock::time_point> DataWriter::copied_at() const {
  const Lock lock(mutex_);
  return copied_at_;
}

absl::StatusOr<WriteReport> DataWriter::Run() {
  const size_t workers = std::min<size_t>(options_.io_threads, pieces_.size());
  digests_.assign(workers, Digests(slots_.size()));
  std::vector<std::thread> others =
      StartThreads(static_cast<int>(workers) - 1, [this](int other) { Work(digests_[other + 1]); });
  if (workers > 0) Work(digests_[0]);
  for (std::thread& thread : others) thread.join();

  Lock lock(mutex_);
  changed_.wait(lock, [&] { return copying_ == 0; });  // those who wait for the copy make it too
  released_.store(true, std::memory_order_release);
  changed_.notify_all();
  if (!pieces_.empty()) pool_.SetPresent(untouched_.data() - pool_.memory().data());
  TESSERA_RETURN_IF_ERROR(error_);
  if (!files_.empty()) {
    TESSERA_RETURN_IF_ERROR(InPhase(kSyncing, storage_.SyncDirectory(directory_)));
  }
  return Report();
}

// Who waits for the copy leaves the processor to those who make it.
bool DataWriter::MayCopy() const {
  const bool all = options_.copy_ahead_threads == 0 || waiters_ > 0;
  return (!free_.empty() || MayTouch()) &&
         copying_ < (all ? options_.io_threads : options_.copy_ahead_threads);
}

// Memory that is written becomes free, too, and soon: the disk must not stand still meanwhile.
bool DataWriter::MayTouch() const {
  const bool disk_is_busy = copied_.empty() || writing_ >= (options_.io_threads + 1) / 2;
  return waiters_ > 0 && !untouched_.empty() && disk_is_busy;
}

// Precondition: there is one.
std::byte* DataWriter::TakeBuffer() {
  if (!free_.empty()) {
    std::byte* const buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  std::byte* const buffer = untouched_.data();
  untouched_ = untouched_.subspan(stride_bytes_);
  return buffer;
}

// Copies while it may, else writes.
void DataWriter::Work(Digests& digests) {
  const double processor_start = ThreadProcessorSeconds();
  Lock lock(mutex_);
  while (!Over()) {
    const std::optional<size_t> next = MayCopy() ? NextToCopy() : std::nullopt;
    if (next) {
      CopyPiece(lock, pieces_[*next], waiters_ > 0 ? nullptr : &digests);
    } else if (!copied_.empty()) {
      Piece& piece = pieces_[copied_.front()];
      copied_.pop_front();
      const absl::Status written = WritePiece(lock, piece, digests);
      if (error_.ok()) error_ = written;
      changed_.notify_all();
    } else {
      changed_.wait(lock);
    }
  }
  processor_seconds_ += ThreadProcessorSeconds() - processor_start;
}

std::optional<size_t> DataWriter::NextToCopy() {
  while (!wanted_.empty()) {
    const size_t wanted = wanted_.front();
    wanted_.pop_front();
    if (pieces_[wanted].state == PieceState::kPending) return wanted;
  }
  while (next_ < pieces_.size() && pieces_[next_].state != PieceState::kPending) ++next_;
  if (next_ == pieces_.size()) return std::nullopt;
  return next_;
}

// Releases the lock meanwhile. Preconditions: the piece is pending; a buffer is free.
void DataWriter::CopyPiece(Lock& lock, Piece& piece, Digests* digests) {
  piece.state = PieceState::kCopying;
  piece.buffer = TakeBuffer();
  ++copying_;
  lock.unlock();
  for (uint64_t begin = piece.begin; begin < piece.end; begin += kBlockBytes) {
    const uint64_t end = std::min(piece.end, begin + kBlockBytes);
    std::byte* const out = piece.buffer + (begin - piece.begin);
    if (digests == nullptr) {
      piece.file->contents.Copy(begin, end, out);
      continue;
    }
    uint64_t at = begin;
    piece.file->contents.CopyAndDigest(begin, end, out, *digests,
                                       [&](std::span<const std::byte> bytes) {
                                         ExtendChecksums(*piece.file, at, bytes);
                                         at += bytes.size();
                                       });
  }
  lock.lock();
  piece.checked = digests != nullptr;
  piece.state = PieceState::kCopied;
  copied_.push_back(&piece - pieces_.data());
  --copying_;
  if (--pieces_to_copy_ == 0) {
    copied_at_ = std::chrono::steady_clock::now();
    released_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

// Releases the lock meanwhile.
absl::Status DataWriter::WritePiece(Lock& lock, Piece& piece, Digests& digests) {
  File& file = *piece.file;
  ++writing_;
  lock.unlock();
  if (!piece.checked) {
    file.contents.Digest(piece.begin, piece.end, piece.buffer, digests);
    ExtendChecksums(file, piece.begin, {piece.buffer, piece.end - piece.begin});
  }
  const absl::Status written = InPhase(kWriting, WriteToFile(piece));
  lock.lock();
  --writing_;
  free_.push_back(std::exchange(piece.buffer, nullptr));
  changed_.notify_all();
  TESSERA_RETURN_IF_ERROR(written);
  if (--file.pieces_left == 0) {
    lock.unlock();
    absl::Status synced = file.file->Sync();
    if (synced.ok()) synced = file.file->Close();
    lock.lock();
    TESSERA_RETURN_IF_ERROR(InPhase(kSyncing, synced));
  }
  --pieces_left_;
  return absl::OkStatus();
}

absl::Status DataWriter::WriteToFile(const Piece& piece) {
  File& file = *piece.file;
  std::call_once(file.created, [&] {
    auto created = storage_.Create(absl::StrCat(directory_, "/", file.contents.path()),
                                   file.contents.size_bytes());
    file.create_status = created.status();
    if (created.ok()) file.file = *std::move(created);
  });
  TESSERA_RETURN_IF_ERROR(file.create_status);
  return file.file->WriteAt(piece.begin, {piece.buffer, piece.end - piece.begin});
}

// Precondition: the bytes of one chunk come in their order.
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
    for (const Digests& digests : digests_) digest += digests[slot];
    TensorReport& tensor_report = *report.add_tensors();
    tensor_report.set_manifest_tensor(tensor);
    tensor_report.mutable_digest()->set_lo(digest.lo);
    tensor_report.mutable_digest()->set_hi(digest.hi);
  }
  return report;
}

}  // namespace tessera::ckpt
