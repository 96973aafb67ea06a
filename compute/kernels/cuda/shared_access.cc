#include "compute/kernels/cuda/shared_access.h"

#include <cstdint>
#include <cstring>

#include "compute/kernels/cuda/simt_common.h"

namespace tessera::simt {
namespace {

constexpr int64_t kCellBytes = 2;

}  // namespace

void SharedAccess::Reset(int64_t bytes, int threads) {
  memory_.assign(bytes, static_cast<char>(0xff));
  cells_.assign((bytes + kCellBytes - 1) / kCellBytes, Cell());
  block_epoch_ = 1;
  warp_epochs_.assign((threads + kWarpSize - 1) / kWarpSize, 1);
  copies_.assign(threads, {});
}

// Whether an access of `other` in these epochs comes before one of `thread` now.
bool SharedAccess::Ordered(int thread, int other, uint32_t block_epoch, uint32_t warp_epoch) const {
  if (thread == other || block_epoch != block_epoch_) return true;
  const int warp = thread / kWarpSize;
  return other / kWarpSize == warp && warp_epoch != warp_epochs_[warp];
}

const char* SharedAccess::CheckRead(Cell& cell, int thread) const {
  if (cell.write_epoch == 0) return "reads shared memory that nothing has written";
  // Whatever it adds is known: most reads are such.
  if (cell.block_readers && cell.read_epoch == block_epoch_ && cell.write_epoch != block_epoch_) {
    return nullptr;
  }
  if (!Ordered(thread, cell.writer, cell.write_epoch, cell.write_warp_epoch)) {
    return "reads what another thread wrote with no barrier in between";
  }
  const int warp = thread / kWarpSize;
  if (cell.read_epoch != block_epoch_) {
    cell.block_readers = false;
    cell.warp_readers = false;
  } else if (cell.reader / kWarpSize != warp) {
    cell.block_readers = true;
  } else if (cell.read_warp_epoch != warp_epochs_[warp]) {
    cell.warp_readers = false;
  } else if (cell.reader != thread) {
    cell.warp_readers = true;
  }
  cell.reader = thread;
  cell.read_epoch = block_epoch_;
  cell.read_warp_epoch = warp_epochs_[warp];
  return nullptr;
}

const char* SharedAccess::CheckWrite(Cell& cell, int thread) const {
  const int warp = thread / kWarpSize;
  if (cell.write_epoch != 0 &&
      !Ordered(thread, cell.writer, cell.write_epoch, cell.write_warp_epoch)) {
    return "writes what another thread wrote with no barrier in between";
  }
  const bool read_since = cell.read_epoch == block_epoch_;
  const bool read_by_warp =
      read_since && cell.warp_readers && cell.read_warp_epoch == warp_epochs_[warp];
  if (read_since && (cell.block_readers || read_by_warp ||
                     !Ordered(thread, cell.reader, cell.read_epoch, cell.read_warp_epoch))) {
    return "writes what another thread read with no barrier in between";
  }
  return nullptr;
}

void SharedAccess::SetWritten(Cell& cell, int thread, bool copying) const {
  cell.writer = thread;
  cell.write_epoch = block_epoch_;
  cell.write_warp_epoch = warp_epochs_[thread / kWarpSize];
  cell.copying = copying;
}

const char* SharedAccess::Check(int thread, int64_t begin, int64_t bytes, Use use) {
  for (int64_t i = begin / kCellBytes; i < (begin + bytes) / kCellBytes; ++i) {
    Cell& cell = cells_[i];
    if (cell.copying) return "uses what is being copied, with no wait in between";
    const bool reads = use == Use::kRead || use == Use::kReadByWarp;
    const char* error = reads ? CheckRead(cell, thread) : CheckWrite(cell, thread);
    if (use == Use::kReadByWarp && error == nullptr) error = CheckRead(cell, thread ^ 1);
    if (error != nullptr) return error;
    if (!reads) SetWritten(cell, thread, use == Use::kCopy);
  }
  return nullptr;
}

void SharedAccess::FinishCopies(int thread) {
  for (const Copy& copy : copies_[thread]) {
    copy.from == nullptr ? std::memset(copy.to, 0, 16) : std::memcpy(copy.to, copy.from, 16);
    const int64_t first = (copy.to - memory_.data()) / kCellBytes;
    for (int64_t i = 0; i < 16 / kCellBytes; ++i) SetWritten(cells_[first + i], thread, false);
  }
  copies_[thread].clear();
}

}  // namespace tessera::simt
