#include "compute/kernels/cuda/testing/memory_access.h"

#include <cstring>
#include <span>
#include <utility>

namespace tessera::simt {
namespace {

constexpr uint32_t kSeveral = ~uint32_t{0};
constexpr size_t kMaxKeptPages = 4096;

// Whether a block other than `self` is recorded.
bool HasOther(uint32_t recorded, uint32_t self) { return recorded != 0 && recorded != self; }

bool Race(GlobalAccess::Kind kind, uint32_t other, const char* how, std::string* error) {
  *error += kind == GlobalAccess::Kind::kRead ? "reads what " : "writes what ";
  *error += other == kSeveral ? "other blocks" : "block " + std::to_string(other - 1);
  *error += how;
  return false;
}

}  // namespace

void SharedAccess::Reset(int64_t bytes, int threads) {
  memory_.assign(bytes, static_cast<char>(0xff));
  const auto cells = static_cast<size_t>((bytes + kCellBytes - 1) / kCellBytes);
  if (cells_.size() < cells) cells_.resize(cells);
  first_epoch_ = ++block_epoch_;
  warp_epochs_.assign((threads + kWarpSize - 1) / kWarpSize, 1);
  fences_.assign(threads, 0);
  published_ = fences_;
  copies_.assign(threads, {});
}

// Whether an access of `other` in these epochs comes before one of `thread` now.
bool SharedAccess::Ordered(int thread, int other, uint32_t block_epoch, uint32_t warp_epoch) const {
  if (thread == other || block_epoch != block_epoch_) return true;
  const int warp = thread / kWarpSize;
  return other / kWarpSize == warp && warp_epoch != warp_epochs_[warp];
}

// Whether a read is right and recorded, as most are: several warps, or the thread itself, have read
// the same since the last barriers. A write by another thread since then would be a race, which has
// been found.
bool SharedAccess::AddsNothing(const Cell& cell, int thread, uint32_t warp_epoch) const {
  if (cell.read_epoch != block_epoch_ || cell.copying) return false;
  return cell.block_readers || (cell.reader == thread && cell.read_warp_epoch == warp_epoch);
}

const char* SharedAccess::CheckRead(Cell& cell, int thread) const {
  if (cell.write_epoch < first_epoch_) return "reads shared memory that nothing has written";
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
  cell.reader = static_cast<int16_t>(thread);
  cell.read_epoch = block_epoch_;
  cell.read_warp_epoch = warp_epochs_[warp];
  return nullptr;
}

const char* SharedAccess::CheckWrite(Cell& cell, int thread) const {
  const int warp = thread / kWarpSize;
  if (!Ordered(thread, cell.writer, cell.write_epoch, cell.write_warp_epoch)) {
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
  cell.writer = static_cast<int16_t>(thread);
  cell.write_epoch = block_epoch_;
  cell.write_warp_epoch = warp_epochs_[thread / kWarpSize];
  cell.write_fence = fences_[thread];
  cell.copying = copying;
}

const char* SharedAccess::Check(int thread, int64_t begin, int64_t bytes, Use use) {
  Cell* cell = cells_.data() + begin / kCellBytes;
  Cell* const end = cells_.data() + (begin + bytes) / kCellBytes;
  if (use == Use::kRead) {
    const uint32_t warp_epoch = warp_epochs_[thread / kWarpSize];
    while (cell != end && AddsNothing(*cell, thread, warp_epoch)) ++cell;
  }
  return cell == end ? nullptr : Record(thread, {cell, end}, use);
}

const char* SharedAccess::Record(int thread, std::span<Cell> cells, Use use) const {
  const bool reads = use == Use::kRead || use == Use::kReadByWarp;
  for (Cell& cell : cells) {
    if (cell.copying) return "uses what is being copied, with no wait in between";
    if (!reads && cell.products > 0) return "writes what a product reads, with no wait in between";
    const char* error = reads ? CheckRead(cell, thread) : CheckWrite(cell, thread);
    if (use == Use::kReadByWarp && error == nullptr) error = CheckRead(cell, thread ^ 1);
    if (error != nullptr) return error;
    if (!reads) SetWritten(cell, thread, use == Use::kCopy);
  }
  return nullptr;
}

const char* SharedAccess::BeginProductRead(int thread, int64_t begin, int64_t bytes) {
  const char* const error = Check(thread, begin, bytes, Use::kReadByWarp);
  if (error != nullptr) return error;
  for (int64_t i = begin / kCellBytes; i < (begin + bytes) / kCellBytes; ++i) {
    Cell& cell = cells_[i];
    if (published_[cell.writer] <= cell.write_fence) {
      return "multiplies what was written with no fence.proxy.async and barrier in between";
    }
    ++cell.products;
  }
  return nullptr;
}

const char* SharedAccess::EndProductRead(int thread, int64_t begin, int64_t bytes) {
  for (int64_t i = begin / kCellBytes; i < (begin + bytes) / kCellBytes; ++i) --cells_[i].products;
  return Check(thread, begin, bytes, Use::kReadByWarp);
}

void SharedAccess::FinishCopies(int thread) {
  for (const Copy& copy : copies_[thread]) {
    copy.from == nullptr ? std::memset(copy.to, 0, 16) : std::memcpy(copy.to, copy.from, 16);
    const int64_t first = (copy.to - memory_.data()) / kCellBytes;
    for (int64_t i = 0; i < 16 / kCellBytes; ++i) SetWritten(cells_[first + i], thread, false);
  }
  copies_[thread].clear();
}

void GlobalAccess::Reset(FindMemory find_memory) {
  ++launch_;
  find_memory_ = std::move(find_memory);
  if (pages_.size() <= kMaxKeptPages) return;
  pages_.clear();
  recent_ = {};
}

// A page has bytes of one piece of the device's memory only: pieces begin at pages.
GlobalAccess::Page& GlobalAccess::FindPage(uintptr_t at) {
  const uintptr_t index = at / kPageBytes;
  std::unique_ptr<Page>& page = pages_[index];
  if (page == nullptr) page = std::make_unique<Page>();
  if (page->launch != launch_) {
    page->index = index;
    page->launch = launch_;
    page->memory = find_memory_ == nullptr ? Extent{0, UINTPTR_MAX}
                                           : find_memory_(reinterpret_cast<const void*>(at));
    page->cells.fill({});
  }
  recent_[index % kRecentPages] = page.get();
  return *page;
}

bool GlobalAccess::Check(int64_t block, const void* address, int64_t bytes, Kind kind,
                         std::string* error) {
  const uint32_t self = static_cast<uint32_t>(block) + 1;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address) / kCellBytes * kCellBytes;
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + static_cast<uintptr_t>(bytes);
  Page* page = &PageAt(begin);
  if (begin < page->memory.begin || end > page->memory.end) {
    *error += kind == Kind::kRead ? "reads" : "writes";
    *error += page->memory.end == 0 ? " memory that is not the device's"
                                    : " beyond a piece of the device's memory";
    return false;
  }
  for (uintptr_t at = begin; at < end; at += kCellBytes) {
    if (at > begin && at % kPageBytes == 0) page = &PageAt(at);
    Cell& cell = page->cells[at % kPageBytes / kCellBytes];
    uint32_t& own = kind == Kind::kRead    ? cell.reader
                    : kind == Kind::kWrite ? cell.writer
                                           : cell.atomic;
    // What races with an access that is recorded has been found.
    if (own == self || own == kSeveral) continue;
    if (HasOther(cell.writer, self)) return Race(kind, cell.writer, " writes", error);
    if (kind != Kind::kAtomic && HasOther(cell.atomic, self)) {
      return Race(kind, cell.atomic, " changes by an atomic operation", error);
    }
    if (kind != Kind::kRead && HasOther(cell.reader, self)) {
      return Race(kind, cell.reader, " reads", error);
    }
    own = own == 0 ? self : kSeveral;
  }
  return true;
}

}  // namespace tessera::simt

#if !__has_feature(thread_sanitizer)

// What code calls that was compiled with -fsanitize=thread.
extern "C" {

// NOLINTBEGIN(bugprone-reserved-identifier): their names are the compiler's
void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void** /*at*/) {}
void __tsan_vptr_update(void** /*at*/, void* /*value*/) {}

// The standard library counts references by these.
int __tsan_atomic32_fetch_add(int* at, int value, int order) {
  (void)order;
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_sub(int* at, int value, int order) {
  return __tsan_atomic32_fetch_add(at, -value, order);
}

#define TESSERA_DEFINE_ACCESSES(bytes)                                                           \
  void __tsan_read##bytes(void* at) {                                                            \
    tessera::simt::internal::AccessGlobal(at, bytes, tessera::simt::GlobalAccess::Kind::kRead);  \
  }                                                                                              \
  void __tsan_write##bytes(void* at) {                                                           \
    tessera::simt::internal::AccessGlobal(at, bytes, tessera::simt::GlobalAccess::Kind::kWrite); \
  }

TESSERA_DEFINE_ACCESSES(1)
TESSERA_DEFINE_ACCESSES(2)
TESSERA_DEFINE_ACCESSES(4)
TESSERA_DEFINE_ACCESSES(8)
TESSERA_DEFINE_ACCESSES(16)
#undef TESSERA_DEFINE_ACCESSES

void __tsan_unaligned_read2(void* at) { __tsan_read2(at); }
void __tsan_unaligned_read4(void* at) { __tsan_read4(at); }
void __tsan_unaligned_read8(void* at) { __tsan_read8(at); }
void __tsan_unaligned_read16(void* at) { __tsan_read16(at); }
void __tsan_unaligned_write2(void* at) { __tsan_write2(at); }
void __tsan_unaligned_write4(void* at) { __tsan_write4(at); }
void __tsan_unaligned_write8(void* at) { __tsan_write8(at); }
void __tsan_unaligned_write16(void* at) { __tsan_write16(at); }
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"

#endif
